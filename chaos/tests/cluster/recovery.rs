//! Recovery of a cluster that lost its majority for good, and of a backup as a new cluster.
//!
//! In full, after `cargo build --release -p jaco-cli -p jaco-chaos --bins`:
//! `JACO_BACKUPS=20 cargo test --release -p jaco-chaos --test cluster recovery`.
//! `JACO_BACKUPS` is how many backups are taken under load.

use std::{
    fs::{self, File},
    net::IpAddr,
    ops::Range,
    path::{Path, PathBuf},
    process::Output,
    time::{Duration, Instant},
};

use jaco_chaos::{
    Api, Lab, Registers, Rng,
    disk::{self, OfflineDatabase},
    lab::network,
    size, test_permits, time_limits, until,
    wait::WAIT_TIMEOUT,
};
use jaco_net::{pki::files::NodeFiles, quic::Settings};
use jaco_proto::v1;
use jaco_raftnode::{
    archive::{self, Archive, ArchiveLimits},
    offline::{self, OfflineState, Replay},
    storage,
};
use jaco_state::{State, restore::restored};
use serde_json::Value;

use crate::{
    hostile::attacker::{endpoint, files_of, peer_address},
    setup::three_voters,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Limit of the time in which a node without a majority refuses a write.
const REFUSED_WITHIN: Duration = Duration::from_secs(2);
/// Number of writes after which the backups are checked: followers keep twice as many log entries,
/// which leaves room for those written during one more backup.
const WRITES: usize = 2000;

/// JSON output of a successful command.
fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn opened(path: &Path) -> Archive {
    archive::read(File::open(path).unwrap(), "", &ArchiveLimits::default()).unwrap()
}

async fn refused(lab: &Lab, files: &NodeFiles, target: u8) {
    let hub = lab.network().namespace().to_owned();
    let from = (hub.as_str(), IpAddr::V4(network::HUB));
    let endpoint = endpoint(lab, from, files, target, Settings::default());
    let host = lab.node(target).host().to_owned();
    let error = endpoint.dial(&host, peer_address(lab, target)).await;
    let error = error.unwrap_err();
    assert!(
        error.is_not_member(),
        "{} at n{target}: {error}",
        files.hostname
    );
}

async fn issue(lab: &Lab, index: u8, identity: &str) -> Result<(), String> {
    let request = v1::TokenIssueRequest {
        identity: identity.to_owned(),
        allows_privileged: false,
    };
    let mut tokens = lab.node(index).api().tokens();
    let issued = tokens.issue(request).await;
    issued
        .map(drop)
        .map_err(|status| jaco_proto::error::DecodedError::from(status).code)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_is_recovered_from_the_last_survivor() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut lab = three_voters(rng.number()).await;
    let apis = lab.nodes().iter().map(|node| node.api().clone()).collect();
    let clients = Registers::start(apis, 4, rng.number());
    until("some writes", LIMIT, || async { some_writes(&clients) })
        .await
        .unwrap();
    let outcome = clients.stop().await.unwrap();
    // Writes that only two disks hold are lost with these, as operators are warned at a restore:
    // let all be replicated first.
    lab.wait_same_state().await.unwrap();
    let former: Vec<NodeFiles> = (1..=3).map(|index| files_of(&lab, index)).collect();

    for index in [2, 3] {
        lab.node_mut(index).kill().unwrap();
        lab.node_mut(index).wipe().unwrap();
    }
    until("quorum_lost", WAIT_TIMEOUT, || async {
        match issue(&lab, 1, "lost").await {
            Err(code) if code == "quorum_lost" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    let asked = Instant::now();
    assert_eq!(issue(&lab, 1, "lost").await.unwrap_err(), "quorum_lost");
    time_limits::time("a write is refused", asked.elapsed(), REFUSED_WITHIN).unwrap();
    let mut credentials = lab.node(1).api().registry();
    let listed = credentials.list(v1::RegistryCredentialListRequest {}).await;
    assert!(!listed.unwrap().into_inner().credentials.is_empty());

    // The survivor's database is exported, and restored on another machine as the first node of a
    // new cluster.
    lab.node_mut(1).stop().await.unwrap();
    let path = lab.dir().join("survivor.tgz");
    let shown = path.display().to_string();
    let words = [
        "backup",
        "--offline",
        "--uncommitted",
        "--output",
        &shown,
        "-o",
        "json",
    ];
    let saved = json(&lab.node(1).jaco(&words).await.unwrap());
    let raft = lab.node(1).path("data/raft");
    let OfflineState {
        state,
        position,
        last,
    } = offline::read(&raft, Replay::WholeLog).unwrap();
    let archive = opened(&path);
    assert_eq!(position, last);
    assert_eq!(saved["snapshot_index"], position.index);
    assert_eq!(saved["last_term"], last.term);
    assert_eq!(saved["last_index"], last.index);
    assert_eq!(saved["state_digest"], hex::encode(state.digest()).as_str());
    assert_eq!(archive.state.digest(), state.digest());

    let words = ["restore", "--input", &shown, "--name", "n2", "-o", "json"];
    let made = json(&lab.node(2).jaco(&words).await.unwrap());
    println!("saved {saved}\nmade {made}");
    assert_eq!(made["state_digest"], saved["state_digest"]);
    assert_eq!(made["snapshot_index"], saved["snapshot_index"]);
    lab.node_mut(1).wipe().unwrap();
    lab.node_mut(2).start().await.unwrap();
    assert_eq!(lab.wait_voters(1).await.unwrap(), ["n2"]);
    outcome
        .check(&lab.node(2).api().linearizable())
        .await
        .unwrap();
    for files in &former {
        refused(&lab, files, 2).await;
    }

    for index in [1, 3] {
        lab.node_mut(index).start().await.unwrap();
        lab.join(index, 2).await.unwrap();
    }
    lab.wait_members(3).await.unwrap();
    lab.wait_voters(3).await.unwrap();
    issue(&lab, 1, "found").await.unwrap();
    let index = lab.wait_same_state().await.unwrap();
    println!("three of them agree at index {index}");
    for node in lab.nodes() {
        outcome.check(&node.api().linearizable()).await.unwrap();
        for files in &former {
            refused(&lab, files, node.index()).await;
        }
    }
}

fn some_writes(clients: &Registers) -> Result<(), usize> {
    let accepted = clients.accepted();
    if accepted >= 200 {
        Ok(())
    } else {
        Err(accepted)
    }
}

fn members(lab: &Lab) -> Vec<Api> {
    let nodes = lab.nodes()[..3].iter();
    nodes.map(|node| node.api().clone()).collect()
}

/// Takes backups of these numbers while clients write, through the members in turn, and returns
/// their paths. Stops early once so much was written that the log might not reach back to the
/// previous check.
async fn backups(lab: &Lab, load: &Registers, numbers: Range<usize>) -> Vec<PathBuf> {
    until("some writes", LIMIT, || async { some_writes(load) })
        .await
        .unwrap();
    let mut taken = Vec::new();
    for n in numbers {
        let before = load.accepted();
        if before >= WRITES {
            break;
        }
        load.next_accepted(Instant::now(), LIMIT).await.unwrap();
        let path = lab.dir().join(format!("backup-{n}.tgz"));
        let shown = path.display().to_string();
        let through = lab.node(u8::try_from(n % 3 + 1).unwrap());
        let words = ["backup", "--output", &shown, "-o", "json"];
        json(&through.jaco(&words).await.unwrap());
        println!("{} writes during backup {n}", load.accepted() - before);
        taken.push(path);
    }
    taken
}

/// Checks each backup against a replay of the stopped members' logs from an earlier state; returns
/// the first member's last state.
fn verified(lab: &Lab, taken: &[PathBuf], from: State, round: usize) -> State {
    let ends: Vec<OfflineDatabase> = (1..=3)
        .map(|index| {
            let copy = lab.dir().join(format!("end-{round}-{index}"));
            disk::copy(&lab.node(index).path("data"), &copy).unwrap();
            OfflineDatabase::open(&copy).unwrap()
        })
        .collect();
    // The leader may have compacted entries that followers still have.
    let lead_there = ends
        .iter()
        .zip(1..)
        .filter(|(end, _)| end.reaches_back_to(&from));
    let lead_there: Vec<_> = lead_there.collect();
    assert!(lead_there.len() >= 2, "the log of {lead_there:?} only");
    for path in taken {
        let archive = opened(path);
        let index = archive.meta.snapshot_index;
        for (end, member) in &lead_there {
            let then = end.replay(from.clone(), index).unwrap();
            assert_eq!(
                hex::encode(then.digest()),
                hex::encode(archive.state.digest()),
                "{index} on n{member}"
            );
        }
        let members = lead_there.len();
        println!(
            "index {index} on {members}: {}",
            hex::encode(archive.state.digest())
        );
    }
    ends[0].state.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_under_load_equals_state_at_its_index() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut lab = Lab::builder()
        .nodes(4)
        .seed(rng.number())
        .start()
        .await
        .unwrap();
    lab.init().await.unwrap();
    for index in [2, 3] {
        lab.join(index, 1).await.unwrap();
    }
    lab.wait_voters(3).await.unwrap();
    // The logs lead from this state to those of the first backups.
    lab.wait_same_state().await.unwrap();
    let begin = lab.dir().join("begin");
    lab.node_mut(3).stop().await.unwrap();
    disk::copy(&lab.node(3).path("data"), &begin).unwrap();
    lab.node_mut(3).start().await.unwrap();
    lab.wait_members(3).await.unwrap();

    let mut from = OfflineDatabase::open(&begin).unwrap().state;
    let count = size("JACO_BACKUPS", 4);
    let mut saved = Vec::new();
    while saved.len() < count {
        let load = Registers::start(members(&lab), 8, rng.number());
        let taken = backups(&lab, &load, saved.len()..count).await;
        let outcome = load.stop().await.unwrap();
        println!("errors: {:?}", outcome.errors);
        lab.wait_same_state().await.unwrap();
        for index in 1..=3 {
            lab.node_mut(index).stop().await.unwrap();
        }
        from = verified(&lab, &taken, from, saved.len());
        saved.extend(taken);
        if saved.len() < count {
            for index in 1..=3 {
                lab.node_mut(index).start().await.unwrap();
            }
            lab.wait_members(3).await.unwrap();
        }
    }
    println!("{} backups are the state at their index", saved.len());
    assert_eq!(saved.len(), count);

    // Restores the last backup on a machine that never was a member.
    let path = saved.pop().expect("at least one backup");
    let archive = opened(&path);
    let shown = path.display().to_string();
    lab.node_mut(4).stop().await.unwrap();
    lab.node_mut(4).wipe().unwrap();
    let words = ["restore", "--input", &shown, "--name", "n4", "-o", "json"];
    let made = json(&lab.node(4).jaco(&words).await.unwrap());
    assert_eq!(
        made["state_digest"],
        hex::encode(archive.state.digest()).as_str()
    );
    let (state, position) = storage::read_offline(&lab.node(4).path("data/raft")).unwrap();
    assert_eq!(position, archive.meta.position());
    let own = v1::Node::clone(&state.nodes["n4"]);
    assert_eq!(state.digest(), restored(&archive.state, own).0.digest());
    lab.node_mut(4).start().await.unwrap();
    assert_eq!(lab.wait_voters(1).await.unwrap(), ["n4"]);
    issue(&lab, 4, "goes-on").await.unwrap();
    fs::remove_file(path).unwrap();
}
