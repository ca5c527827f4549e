//! The daemon dies without warning, again and again, in the middle of its work.

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
    disk::{self, Remains},
    figures, turn, until,
    wait::PATIENCE,
};

use crate::script::work;

const CUTS: usize = 20;
/// Longest time between the start of a process and a cluster with a leader, where limits are held.
const BACK_WITHIN: Duration = Duration::from_secs(2);
/// How often a founding is interrupted.
const FOUNDINGS: u32 = 12;
/// Lengths at which the log of each is torn.
const TORN: usize = 6;
/// Deployments that come and go.
const NAMES: usize = 3;
/// Longest stretch of work between two cuts.
const WORK: Duration = Duration::from_millis(1500);

/// What a power cut could have left as well: the write-ahead log without its last part. Either
/// that is refused, or nothing that was acknowledged is missing.
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
    let Ok(remains) = Remains::open(copy) else {
        return Ok(false);
    };
    let ahead = remains.replay(remains.state.clone(), remains.last_index())?;
    history.check(&ahead).map_err(anyhow::Error::msg)?;
    Ok(true)
}

/// What a dead daemon left, checked against what it had acknowledged and against its own log, as
/// far as that still reaches back to the cut before: `compacted` counts those it does not.
fn examine(
    data_dir: &Path,
    copy: &Path,
    last: Option<&Remains>,
    history: &History,
    compacted: &mut usize,
) -> Result<Remains> {
    disk::copy(data_dir, copy)?;
    let first = Remains::open(copy)?;
    let (digest, index) = (first.state.digest(), first.state.applied_index);
    drop(first);
    let remains = Remains::open(copy)?;
    ensure!(
        remains.state.digest() == digest,
        "a second look shows another state"
    );
    ensure!(
        remains.state.applied_index == index,
        "a second look shows another index"
    );
    if let Some(last) = last {
        // From the state after the cut before this one, the log leads exactly here.
        if remains.follows(&last.state) {
            let replayed = remains.replay(last.state.clone(), index)?;
            ensure!(
                replayed.digest() == digest,
                "the log does not lead to the state at {index}"
            );
        } else {
            *compacted += 1;
        }
    }
    // What is in the log and not yet applied will be.
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
async fn a_daemon_that_is_killed_at_any_moment_is_back_at_once_and_has_forgotten_nothing()
-> Result<()> {
    let _turn = turn::alone().await;
    let mut rng = Rng::announced();
    let mut daemon = Daemon::found(Settings::default()).await?;
    let steady = Workload::new("steady", [Service::new("web").replicas(2)]);
    let revision = daemon.api().apply(&steady).await?;
    daemon.api().converged(&steady).await?;
    let containers = daemon.engine().containers(daemon.cluster_id()).await?;
    let mut workloads: Vec<Workload> = (0..NAMES)
        .map(|n| Workload::new(&format!("cut{n}"), [Service::new("web")]))
        .collect();
    let mut history = History::default();
    history.applied(&steady.name, revision);

    let mut last: Option<Remains> = None;
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
        // What was in doubt is in doubt no more: a client has seen how it ended.
        history.settle(&shown);
        last = Some(remains);
    }
    println!("torn logs refused and accepted: {tails:?}");
    let in_time = figures::times("back after a cut", times, BACK_WITHIN);
    ensure!(
        compacted < CUTS / 4,
        "after {compacted} cuts of {CUTS} the log was too short to check"
    );
    ensure!(
        tails.iter().all(|count| *count > 0),
        "torn logs refused and accepted: {tails:?}"
    );

    // The survivor is in working order: everything that is wanted runs, and only that.
    let wanted: Vec<&Workload> = workloads
        .iter()
        .filter(|w| history.is_there(&w.name))
        .collect();
    for workload in wanted.iter().copied().chain([&steady]) {
        daemon.api().converged(workload).await?;
    }
    let count = wanted.len() + 2;
    until("no container too many", PATIENCE, || async {
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
async fn a_daemon_that_is_killed_while_it_founds_a_cluster_has_one_or_none() -> Result<()> {
    let _turn = turn::shared().await;
    let mut daemon = Daemon::new(Settings::default()).await?;
    let mut outcomes = [0; 2];
    // The first is left alone, to know how long one takes: the others are cut short.
    let mut founding_takes = None;
    for round in 0..=FOUNDINGS {
        daemon.spawn()?;
        let api = daemon.api().clone();
        until("the API answers", PATIENCE, || api.status()).await?;
        let started = Instant::now();
        let founding = tokio::spawn({
            let api = api.clone();
            async move { api.init().await }
        });
        let acknowledged = if let Some(longest) = founding_takes {
            // From at once to just before the end.
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
        let status = until("the API answers", PATIENCE, || api.status()).await?;
        ensure!(
            status.initialized || !acknowledged,
            "round {round}: the cluster is forgotten"
        );
        outcomes[usize::from(status.initialized)] += 1;
        if !status.initialized {
            api.init().await?;
        }
        until("a leader", PATIENCE, || async {
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
