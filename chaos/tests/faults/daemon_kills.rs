//! Repeated kills of the daemon in the middle of its work.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use jaco_chaos::{
    Container, Daemon, History, Rng, Service, Settings, Workload,
    disk::{self, OfflineDatabase},
    test_permits, time_limits, until,
    wait::WAIT_TIMEOUT,
};

use crate::script::work;

const CUTS: usize = 20;
/// Limit of the time from the start of a process to a cluster with a leader, if limits are enabled.
const BACK_WITHIN: Duration = Duration::from_secs(2);
/// Number of interrupted cluster initialisations.
const FOUNDINGS: u32 = 12;
/// Number of torn copies of the log per cut.
const TORN: usize = 6;
/// Number of deployments that are applied and deleted.
const NAMES: usize = 3;
/// Longest time of work between two cuts.
const WORK: Duration = Duration::from_millis(1500);

/// Checks a copy of the data whose write-ahead log lost its end, as a power cut could leave it:
/// either it is refused, or no acknowledged write is missing.
fn examine_torn(data_dir: &Path, copy: &Path, rng: &mut Rng, history: &History) -> Result<bool> {
    disk::copy(data_dir, copy)?;
    let logs = fs::read_dir(copy.join("raft"))?
        .map(|entry| Ok(entry?.path()))
        .filter(|path: &Result<_>| {
            path.as_ref()
                .is_ok_and(|path| path.extension().is_some_and(|ext| ext == "log"))
        });
    let newest = logs
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .max()
        .context("no log")?;
    let length = fs::metadata(&newest)?.len();
    let kept = length - length.min(rng.within(1..2048));
    fs::File::options()
        .write(true)
        .open(&newest)?
        .set_len(kept)?;
    let Ok(remains) = OfflineDatabase::open(copy) else {
        return Ok(false);
    };
    let ahead = remains.replay(remains.state.clone(), remains.last_index())?;
    history.check(&ahead).map_err(anyhow::Error::msg)?;
    Ok(true)
}

/// Checks the data of a killed daemon against the acknowledged writes, and against a replay of its
/// own log from the cut before. `compacted` counts cuts for which the log does not reach back that
/// far.
fn examine(
    data_dir: &Path,
    copy: &Path,
    last: Option<&OfflineDatabase>,
    history: &History,
    compacted: &mut usize,
) -> Result<OfflineDatabase> {
    disk::copy(data_dir, copy)?;
    let first = OfflineDatabase::open(copy)?;
    let (digest, index) = (first.state.digest(), first.state.applied_index);
    drop(first);
    let remains = OfflineDatabase::open(copy)?;
    ensure!(
        remains.state.digest() == digest,
        "reopening shows another state"
    );
    ensure!(
        remains.state.applied_index == index,
        "reopening shows another index"
    );
    if let Some(last) = last {
        // The log leads from the state after the previous cut exactly to this one.
        if remains.reaches_back_to(&last.state) {
            let replayed = remains.replay(last.state.clone(), index)?;
            ensure!(
                replayed.digest() == digest,
                "the log does not lead to the state at {index}"
            );
        } else {
            *compacted += 1;
        }
    }
    // Entries not applied yet will be applied at the next start.
    let ahead = remains.replay(remains.state.clone(), remains.last_index())?;
    history.check(&ahead).map_err(anyhow::Error::msg)?;
    Ok(remains)
}

fn of<'a>(containers: &'a [Container], workload: &Workload) -> Vec<&'a Container> {
    let ids = workload.replica_ids();
    containers
        .iter()
        .filter(|container| ids.contains(&container.replica))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_daemon_recovers_all_acknowledged_writes() -> Result<()> {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut daemon = Daemon::bootstrap(Settings::default()).await?;
    let steady = Workload::new("steady", [Service::new("web").replicas(2)]);
    let revision = daemon.api().apply(&steady).await?;
    daemon.api().converged(&steady).await?;
    let containers = daemon.engine().containers(daemon.cluster_id()).await?;
    let mut workloads: Vec<Workload> = (0..NAMES)
        .map(|n| Workload::new(&format!("cut{n}"), [Service::new("web")]))
        .collect();
    let mut history = History::default();
    history.applied(&steady.name, revision);

    let mut last: Option<OfflineDatabase> = None;
    let mut times = Vec::new();
    let mut tails = [0; 2];
    let mut compacted = 0;
    for cut in 0..CUTS {
        let stop = Arc::<AtomicBool>::default();
        let (api, choices) = (daemon.api().clone(), Rng::new(rng.number()));
        let worker = tokio::spawn(work(api, workloads, history, choices, Arc::clone(&stop)));
        tokio::time::sleep(rng.below(WORK)).await;
        daemon.kill()?;
        stop.store(true, Ordering::Release);
        (workloads, history) = worker.await?;

        let copy = daemon.scratch(&format!("cut-{cut}"));
        let remains = examine(
            daemon.data_dir(),
            &copy,
            last.as_ref(),
            &history,
            &mut compacted,
        )?;
        let now = daemon.engine().containers(daemon.cluster_id()).await?;
        ensure!(
            of(&now, &steady) == of(&containers, &steady),
            "cut {cut}: {now:#?}"
        );

        for torn in 0..TORN {
            let copy = daemon.scratch(&format!("torn-{cut}-{torn}"));
            let accepted = examine_torn(daemon.data_dir(), &copy, &mut rng, &history)?;
            tails[usize::from(accepted)] += 1;
            fs::remove_dir_all(copy)?;
        }

        times.push(daemon.start().await?);
        let shown = daemon.api().deployments().await?.deployments;
        history
            .check_deployments(&shown)
            .map_err(anyhow::Error::msg)?;
        // A client has read the outcome of all requests in doubt.
        history.resolve_doubts(&shown);
        last = Some(remains);
    }
    println!("torn logs refused and accepted: {tails:?}");
    let in_time = time_limits::times("back after a cut", times, BACK_WITHIN);
    ensure!(
        compacted < CUTS / 4,
        "after {compacted} cuts of {CUTS} the log was too short to check"
    );
    ensure!(
        tails.iter().all(|count| *count > 0),
        "torn logs refused and accepted: {tails:?}"
    );

    // Everything that is wanted runs, and nothing else.
    let wanted: Vec<&Workload> = workloads
        .iter()
        .filter(|w| history.exists(&w.name))
        .collect();
    for workload in wanted.iter().copied().chain([&steady]) {
        daemon.api().converged(workload).await?;
    }
    let count = wanted.len() + 2;
    until("no container too many", WAIT_TIMEOUT, || async {
        let found = daemon.engine().containers(daemon.cluster_id()).await?;
        ensure!(
            found.len() == count && found.iter().all(|c| c.running),
            "{found:#?}"
        );
        ensure!(
            of(&found, &steady) == of(&containers, &steady),
            "{found:#?}"
        );
        Ok(())
    })
    .await?;
    ensure!(daemon.panics().is_empty(), "{:#?}", daemon.panics());
    in_time
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_init_interrupted_by_kill_is_atomic() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let mut daemon = Daemon::new(Settings::default()).await?;
    let mut outcomes = [0; 2];
    // The first initialisation is not interrupted, to measure its duration.
    let mut founding_takes = None;
    for round in 0..=FOUNDINGS {
        daemon.spawn()?;
        let api = daemon.api().clone();
        until("the API answers", WAIT_TIMEOUT, || api.status()).await?;
        let started = Instant::now();
        let founding = tokio::spawn({
            let api = api.clone();
            async move { api.init().await }
        });
        let acknowledged = if let Some(longest) = founding_takes {
            // From the beginning to just before the end.
            tokio::time::sleep(longest * (round - 1) / FOUNDINGS).await;
            daemon.kill()?;
            founding.await?.is_ok()
        } else {
            founding.await??;
            founding_takes = Some(started.elapsed());
            daemon.kill()?;
            true
        };

        daemon.spawn()?;
        let status = until("the API answers", WAIT_TIMEOUT, || api.status()).await?;
        ensure!(
            status.initialized || !acknowledged,
            "round {round}: the cluster is forgotten"
        );
        outcomes[usize::from(status.initialized)] += 1;
        if !status.initialized {
            api.init().await?;
        }
        until("a leader", WAIT_TIMEOUT, || async {
            let status = api.status().await?;
            ensure!(!status.leader_hostname.is_empty(), "{status:?}");
            Ok(())
        })
        .await?;
        let workload = Workload::new("found", [Service::new("web").replicas(0)]);
        api.apply(&workload).await?;
        daemon.kill()?;
        fs::remove_dir_all(daemon.data_dir())?;
    }
    println!("without a cluster and with one: {outcomes:?}, founded in {founding_takes:?}");
    ensure!(
        outcomes[0] > 0,
        "no founding was cut short within {founding_takes:?}"
    );
    ensure!(daemon.panics().is_empty(), "{:#?}", daemon.panics());
    Ok(())
}
