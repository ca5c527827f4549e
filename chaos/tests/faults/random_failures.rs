//! Random failures of actors and containers during random work.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use jaco_chaos::{
    ContainerLog, Daemon, History, Rng, Service, Settings, Workload, test_permits, until,
    wait::WAIT_TIMEOUT,
};
use jaco_proto::v1::FailureMode;

use crate::script::work;

const ROUNDS: usize = 12;
const NAMES: usize = 3;
/// Longest pause between two failures.
const PAUSE: Duration = Duration::from_millis(250);
const FAILURES: usize = 6;

/// Kills a random container or actor, if it still exists.
async fn inject_failure(daemon: &Daemon, rng: &mut Rng) {
    if rng.within(0..4) == 0 {
        let containers = daemon.engine().containers(daemon.cluster_id()).await;
        if let Some(victim) = rng.choose(&containers.unwrap_or_default()) {
            // It may have exited in the meantime.
            let _ = daemon.engine().kill(&victim.id).await;
        }
        return;
    }
    let Ok(actors) = daemon.api().actors().await else {
        return;
    };
    let mode = if rng.within(0..2) == 0 {
        FailureMode::Kill
    } else {
        FailureMode::Panic
    };
    if let Some(victim) = rng.choose(&actors) {
        // The answer is lost if the actor that serves the call dies.
        let _ = daemon.api().kill_actor(&victim.path, mode).await;
    }
}

/// Restarts a daemon that has exited, as init would.
async fn restart_if_exited(daemon: &mut Daemon) -> Result<()> {
    let Some(status) = daemon.exited()? else {
        return Ok(());
    };
    ensure!(status.code() == Some(1), "the daemon ended with {status}");
    daemon.ended().await?;
    daemon.start().await?;
    Ok(())
}

/// Calls until there is an answer. A supervision tree that gives up takes a moment to end its
/// process, which is then restarted.
async fn retry_until_answered<T, E: Display>(
    daemon: &mut Daemon,
    mut call: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match call().await {
            Ok(answer) => return Ok(answer),
            Err(error) => ensure!(start.elapsed() < WAIT_TIMEOUT, "no answer, last: {error}"),
        }
        restart_if_exited(daemon).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_failures_lose_no_acknowledged_write() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let mut rng = Rng::announced();
    let mut daemon = Daemon::bootstrap(Settings::default()).await?;
    let log = ContainerLog::watch(daemon.engine(), daemon.cluster_id()).await?;
    let mut workloads: Vec<Workload> = (0..NAMES)
        .map(|n| Workload::new(&format!("storm{n}"), [Service::new("web")]))
        .collect();
    let mut history = History::default();
    for _ in 0..ROUNDS {
        let stop = Arc::<AtomicBool>::default();
        let (api, choices) = (daemon.api().clone(), Rng::new(rng.number()));
        let worker = tokio::spawn(work(api, workloads, history, choices, Arc::clone(&stop)));
        for _ in 0..FAILURES {
            tokio::time::sleep(rng.below(PAUSE)).await;
            inject_failure(&daemon, &mut rng).await;
            restart_if_exited(&mut daemon).await?;
        }
        stop.store(true, Ordering::Release);
        (workloads, history) = worker.await?;
        let api = daemon.api().clone();
        let shown = retry_until_answered(&mut daemon, async || api.deployments().await).await?;
        let shown = shown.deployments;
        history
            .check_deployments(&shown)
            .map_err(anyhow::Error::msg)?;
        history.resolve_doubts(&shown);
        log.check()?;
    }
    // Restart budgets may be spent by now; one more revision of all deployments resets them.
    for workload in &mut workloads {
        workload.revise(rng.number());
        let api = daemon.api().clone();
        retry_until_answered(&mut daemon, async || api.apply(workload).await).await?;
    }
    for workload in &workloads {
        daemon.api().converged(workload).await?;
    }
    let wanted: Vec<String> = workloads.iter().map(|w| w.replica("web", 0)).collect();
    until("exactly what is wanted", WAIT_TIMEOUT, || async {
        let found = daemon.engine().containers(daemon.cluster_id()).await?;
        ensure!(
            found.len() == wanted.len() && found.iter().all(|c| c.running),
            "{found:#?}"
        );
        Ok(())
    })
    .await?;
    ensure!(daemon.panics().is_empty(), "{:#?}", daemon.panics());
    log.check()
}
