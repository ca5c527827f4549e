//! The restart budget of a container: three restarts with growing delays, and no more.

use std::time::Duration;

use anyhow::{Result, ensure};
use jaco_chaos::{
    Api, ContainerLog, Daemon, Service, Settings, Workload, test_permits, until, wait::WAIT_TIMEOUT,
};
use jaco_proto::v1::{FailureMode, ReplicaState};

/// Waits until no failure of a replica counts any more.
async fn failures_forgotten(api: &Api, deployment: &str, id: &str) -> Result<()> {
    until("the counter is gone", WAIT_TIMEOUT, || async {
        let replicas = api.replicas(deployment).await.map_err(|e| e.to_string())?;
        match replicas.iter().find(|replica| replica.id == id) {
            Some(replica) if replica.restart_count == 0 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn crashing_container_exhausts_its_budget_until_fixed() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let mut daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api().clone();
    let log = ContainerLog::watch(daemon.engine(), daemon.cluster_id()).await?;
    let mut workload = Workload::new(
        "budget",
        [Service::new("job").script("exit 7"), Service::new("web")],
    );
    let (job, web) = (workload.replica("job", 0), workload.replica("web", 0));
    api.apply(&workload).await?;

    let seen = api
        .replica(&workload.name, &job, "is exhausted", |r| {
            r.code == "restart_exhausted"
        })
        .await?;
    ensure!(seen.state() == ReplicaState::Failed, "{seen:?}");
    let detail = |key: &str| seen.details.get(key).map(String::as_str);
    ensure!(detail("cause") == Some("container"), "{seen:?}");
    ensure!(detail("consecutive_failures") == Some("4"), "{seen:?}");
    ensure!(detail("exit_code") == Some("7"), "{seen:?}");
    let last = daemon.engine().container(daemon.cluster_id(), &job).await?;
    ensure!(!last.running, "{last:?}");
    log.wait_started(&job, &last.id).await?;
    // The engine reports the last death after the last start.
    until("the event of the last death", WAIT_TIMEOUT, || async {
        let deaths = log.times(&job, "die").len();
        ensure!(deaths >= 4, "{deaths} deaths");
        Ok(())
    })
    .await?;
    let starts = log.times(&job, "start");
    let deaths = log.times(&job, "die");
    ensure!(
        starts.len() == 4 && deaths.len() == 4,
        "{:#?}",
        log.events_of(&job)
    );
    for (n, seconds) in [1, 2, 4].into_iter().enumerate() {
        let waited = Duration::from_nanos(u64::try_from(starts[n + 1] - deaths[n])?);
        ensure!(
            waited >= Duration::from_secs(seconds),
            "restart {n} after {waited:?}"
        );
    }
    let mut containers: Vec<String> = log
        .events_of(&job)
        .into_iter()
        .filter(|i| i.action == "start")
        .map(|i| i.container)
        .collect();
    containers.dedup();
    ensure!(
        containers.len() == 4,
        "a container was started twice: {containers:?}"
    );
    api.replica(&workload.name, &web, "never noticed", |r| {
        r.state() == ReplicaState::Running
    })
    .await?;

    // A spent budget survives a restart of the actor and of the daemon.
    api.kill_actor(&format!("node/runtime/replica:{job}"), FailureMode::Kill)
        .await?;
    daemon.kill()?;
    daemon.start().await?;
    api.actor(&format!("node/runtime/replica:{job}"), "runs", |a| {
        a.state == "running"
    })
    .await?;
    let still = api
        .replica(&workload.name, &job, "is known", |_| true)
        .await?;
    ensure!(
        still.code == "restart_exhausted" && still.container_id == last.id,
        "{still:?}"
    );

    // The failure counter is part of the cluster's state; a new revision resets it.
    workload.services[0] = Service::new("job");
    api.apply(&workload).await?;
    api.converged(&workload).await?;
    let fixed = daemon.engine().container(daemon.cluster_id(), &job).await?;
    log.wait_started(&job, &fixed.id).await?;
    ensure!(
        log.times(&job, "start").len() == 5,
        "{:#?}",
        log.events_of(&job)
    );
    failures_forgotten(&api, &workload.name, &job).await?;
    log.check()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_container_restarts_and_its_budget_resets() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let log = ContainerLog::watch(daemon.engine(), daemon.cluster_id()).await?;
    let workload = Workload::new("again", [Service::new("web").replicas(2)]);
    let victim = workload.replica("web", 0);
    api.apply(&workload).await?;
    api.converged(&workload).await?;
    let before = daemon.engine().containers(daemon.cluster_id()).await?;
    // More kills than a budget without a reset would allow.
    for _ in 0..5 {
        let old = daemon
            .engine()
            .container(daemon.cluster_id(), &victim)
            .await?;
        daemon.engine().kill(&old.id).await?;
        api.replica(&workload.name, &victim, "runs anew", |r| {
            r.state() == ReplicaState::Running && r.container_id != old.id
        })
        .await?;
        failures_forgotten(api, &workload.name, &victim).await?;
    }
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(
        now.len() == 2 && now[1] == before[1],
        "the sibling was touched: {now:#?}"
    );
    log.check()
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_container_is_created_again() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let workload = Workload::new("gone", [Service::new("web").replicas(2)]);
    let victim = workload.replica("web", 0);
    api.apply(&workload).await?;
    api.converged(&workload).await?;
    let before = daemon.engine().containers(daemon.cluster_id()).await?;
    daemon.engine().remove(&before[0].id).await?;
    api.replica(&workload.name, &victim, "runs anew", |r| {
        r.state() == ReplicaState::Running && r.container_id != before[0].id
    })
    .await?;
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(
        now.len() == 2 && now[1] == before[1],
        "the sibling was touched: {now:#?}"
    );
    Ok(())
}
