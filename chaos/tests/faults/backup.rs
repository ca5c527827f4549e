//! Backup of a busy cluster, loss of its machine, and restore on another one.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use jaco_chaos::{
    Api, Daemon, History, Rng, Service, Settings, Workload,
    disk::{self, OfflineDatabase},
    test_permits, until,
    wait::WAIT_TIMEOUT,
};
use jaco_proto::v1::{self, AuditEventType};
use jaco_raftnode::{
    archive::{self, Archive, ArchiveLimits},
    storage,
};
use jaco_state::restore::restored;
use serde_json::Value;

use crate::script::work;

/// Hostname of the machine that takes over.
const SUCCESSOR: &str = "heir";
const BACKUPS: usize = 4;
/// Longest time of work between two backups.
const WORK: Duration = Duration::from_millis(400);
/// Number of kills of the restored daemon during its start, and the longest time before each.
const DEATHS: usize = 8;
const DEATH: Duration = Duration::from_millis(600);

fn opened(path: &Path) -> Result<Archive> {
    // An empty version skips the comparison with the version of the archive.
    Ok(archive::read(
        File::open(path)?,
        "",
        &ArchiveLimits::default(),
    )?)
}

/// JSON output of a successful command.
fn json(output: &Output) -> Result<Value> {
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{text}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Error output of a failed command.
fn report(output: &Output) -> Result<String> {
    ensure!(output.status.code() == Some(1), "{output:?}");
    ensure!(output.stdout.is_empty(), "{output:?}");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Issues tokens until `stop` is set.
async fn issue(api: Api, name: &str, stop: Arc<AtomicBool>) -> Result<()> {
    for n in 0.. {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let request = v1::TokenIssueRequest {
            identity: format!("{name}-{n}"),
            allows_privileged: false,
        };
        api.tokens().issue(request).await?;
    }
    Ok(())
}

async fn back_up(daemon: &Daemon, path: &Path) -> Result<Archive> {
    let shown = path.display().to_string();
    let output = daemon
        .jaco(&["backup", "--output", &shown, "-o", "json"])
        .await?;
    let printed = json(&output)?;
    let found = fs::metadata(path)?;
    ensure!(printed["path"] == shown.as_str() && printed["bytes"] == found.len());
    ensure!(found.permissions().mode() & 0o777 == 0o600, "{found:?}");
    opened(path)
}

async fn restore_into(daemon: &Daemon, input: &Path) -> Result<Output> {
    let input = input.display().to_string();
    daemon
        .jaco(&[
            "restore", "--input", &input, "--name", SUCCESSOR, "-o", "json",
        ])
        .await
}

/// Number of events of a type in the audit trail.
async fn events(daemon: &Daemon, kind: &str) -> Result<usize> {
    let output = daemon
        .jaco(&["audit", "--type", kind, "-o", "json"])
        .await?;
    Ok(json(&output)?.as_array().context("a list")?.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_under_load_restores_on_another_machine() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let mut rng = Rng::announced();
    let mut lost = Daemon::bootstrap(Settings::default()).await?;

    // The log leads from this state to every later one.
    lost.kill()?;
    let copy = lost.scratch("begin");
    disk::copy(lost.data_dir(), &copy)?;
    let begin = OfflineDatabase::open(&copy)?;
    lost.start().await?;

    let steady = Workload::new("steady", [Service::new("web").replicas(2)]);
    lost.api().apply(&steady).await?;
    lost.api().converged(&steady).await?;
    let output = lost
        .jaco(&["token", "issue", "--name", "ops", "-o", "json"])
        .await?;
    let token = json(&output)?["token"]
        .as_str()
        .context("token")?
        .to_owned();

    let stop = Arc::<AtomicBool>::default();
    let api = || lost.api().clone();
    let moving: Vec<_> = ["m0", "m1"]
        .map(|n| Workload::new(n, [Service::new("web")]))
        .into();
    let choices = Rng::new(rng.number());
    let history = History::default();
    let worker = tokio::spawn(work(api(), moving, history, choices, Arc::clone(&stop)));
    let issuers = ["a", "b"].map(|name| tokio::spawn(issue(api(), name, Arc::clone(&stop))));
    let mut saved: Vec<(PathBuf, Archive)> = Vec::new();
    for n in 0..BACKUPS {
        tokio::time::sleep(rng.below(WORK)).await;
        let path = lost.scratch(&format!("backup-{n}.tgz"));
        let archive = back_up(&lost, &path).await?;
        saved.push((path, archive));
    }
    stop.store(true, Ordering::Release);
    worker.await?;
    for issuer in issuers {
        issuer.await??;
    }
    ensure!(events(&lost, "backup_taken").await? == BACKUPS);

    // Offline backup and restore are refused while the daemon runs.
    let live = lost.scratch("live.tgz");
    let shown = live.display().to_string();
    let refused = lost
        .jaco(&["backup", "--offline", "--output", &shown])
        .await?;
    let refused = report(&refused)?;
    ensure!(refused.contains("another daemon is using"), "{refused}");
    ensure!(!live.exists());
    let refused = report(&restore_into(&lost, &saved[0].0).await?)?;
    ensure!(refused.starts_with("Error: restore_failed: "), "{refused}");
    ensure!(refused.contains("another daemon is using"), "{refused}");
    lost.kill()?;

    // Each archive equals a replay of the log up to its index.
    let offline = lost.scratch("offline.tgz");
    let shown = offline.display().to_string();
    let output = lost
        .jaco(&["backup", "--offline", "--output", &shown, "-o", "json"])
        .await?;
    let printed = json(&output)?;
    let copy = lost.scratch("end");
    disk::copy(lost.data_dir(), &copy)?;
    let end = OfflineDatabase::open(&copy)?;
    let mut indexes = BTreeSet::new();
    for (_, archive) in &saved {
        let index = archive.meta.snapshot_index;
        let replayed = end.replay(begin.state.clone(), index)?;
        ensure!(
            replayed.digest() == archive.state.digest(),
            "the archive of {index} is of another state"
        );
        indexes.insert(index);
    }
    ensure!(indexes.len() == BACKUPS, "no work between backups");
    let exported = opened(&offline)?;
    // The log of an only voter is included to its end.
    let whole = end.replay(end.state.clone(), end.last_index())?;
    ensure!(exported.state.digest() == whole.digest());
    ensure!(printed["snapshot_index"] == exported.meta.snapshot_index);
    ensure!(printed["last_index"] == end.last_index());
    ensure!(exported.meta.snapshot_index == end.last_index());

    // The machine is lost, with all its containers.
    let cluster_id = lost.cluster_id().to_owned();
    lost.engine().sweep(&cluster_id).await?;

    let settings = Settings {
        hostname: Some(SUCCESSOR.to_owned()),
        pool: Some(lost.pool()),
        ..Settings::default()
    };
    let mut successor = Daemon::new(settings).await?;
    successor.adopt(&cluster_id);
    let (path, archive) = saved.pop().context("a backup")?;
    let printed = json(&restore_into(&successor, &path).await?)?;
    ensure!(printed["cluster_id"] == cluster_id.as_str(), "{printed}");
    ensure!(printed["snapshot_index"] == archive.meta.snapshot_index);
    let refused = report(&restore_into(&successor, &path).await?)?;
    ensure!(refused.contains("refusing to overwrite"), "{refused}");
    let (state, position) = storage::read_offline(&successor.data_dir().join("raft"))?;
    let own = v1::Node::clone(&state.nodes[SUCCESSOR]);
    ensure!(state.digest() == restored(&archive.state, own).0.digest());
    ensure!(position == archive.meta.position());

    // Kills during the start do not repeat the restore event: it is recorded once.
    for _ in 0..DEATHS {
        successor.spawn()?;
        tokio::time::sleep(rng.below(DEATH)).await;
        successor.kill()?;
    }
    successor.start().await?;
    until("the marker is gone", WAIT_TIMEOUT, || async {
        let marker = successor.data_dir().join("restore.txt");
        ensure!(!marker.exists(), "it is there");
        Ok(())
    })
    .await?;
    ensure!(events(&successor, "restore_completed").await? == 1);

    let status = successor.api().status().await?;
    let names: Vec<_> = status.nodes.iter().map(|n| n.hostname.as_str()).collect();
    ensure!(
        names == [SUCCESSOR] && status.leader_hostname == SUCCESSOR,
        "{status:?}"
    );
    let voters: Vec<_> = status.suffrages.iter().map(|s| s.kind()).collect();
    ensure!(voters == [v1::node_suffrage::Kind::Voter]);

    // Old operator tokens work over TLS, with the old CA.
    let ca = successor
        .data_dir()
        .join("node/ca.crt")
        .display()
        .to_string();
    let remote = [
        "--server",
        &successor.address(),
        "--token",
        &token,
        "--ca-cert",
        &ca,
    ];
    let output = successor
        .jaco(&[&["token", "list", "-o", "json"], &remote[..]].concat())
        .await?;
    let listed = json(&output)?;
    let listed = listed["tokens"].as_array().context("tokens")?.len();
    ensure!(listed == archive.state.tokens.len());

    // The old audit trail is complete and keeps its log indexes.
    let output = successor.jaco(&["audit", "-o", "json"]).await?;
    let shown = json(&output)?;
    let shown = shown.as_array().context("a list")?;
    let before = archive.meta.snapshot_index;
    let old = shown
        .iter()
        .filter(|event| event["raft_index"].as_u64().is_some_and(|at| at <= before));
    ensure!(old.count() == archive.state.audit.len());
    let kind = AuditEventType::BackupTaken;
    let taken = archive.state.audit.values().filter(|e| e.r#type() == kind);
    ensure!(taken.count() == BACKUPS - 1, "an archive is not in itself");

    // The deployments run again, under the id of the old cluster.
    successor.api().converged(&steady).await?;
    let found = successor.engine().containers(&cluster_id).await?;
    let ids: BTreeSet<_> = found.iter().map(|c| c.replica.as_str()).collect();
    ensure!(
        steady
            .replica_ids()
            .iter()
            .all(|id| ids.contains(id.as_str())),
        "{found:#?}"
    );
    let more = Workload::new("more", [Service::new("web")]);
    successor.api().apply(&more).await?;
    successor.api().converged(&more).await?;
    ensure!(successor.panics().is_empty(), "{:#?}", successor.panics());
    Ok(())
}
