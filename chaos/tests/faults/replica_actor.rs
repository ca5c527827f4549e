//! Failures of a replica's actor, which must not affect its container.

use anyhow::{Result, ensure};
use jaco_chaos::{Container, ContainerLog, Daemon, Service, Settings, Workload, test_permits};
use jaco_proto::v1::{FailureMode, ReplicaState};

const RESTARTS: u32 = 3;

/// Kills the actor of `victim` until its budget is exhausted, and checks each step.
async fn exhaust(
    daemon: &Daemon,
    workload: &Workload,
    victim: &str,
    mode: FailureMode,
    before: &[Container],
) -> Result<()> {
    let api = daemon.api();
    let path = format!("node/runtime/replica:{victim}");
    for restart in 1..=RESTARTS {
        api.kill_actor(&path, mode).await?;
        let back = api
            .actor(&path, "is restarted", |a| {
                a.restarts == restart && a.state == "running"
            })
            .await?;
        ensure!(!back.last_failure.is_empty(), "no reason: {back:?}");
        api.replica(&workload.name, victim, "is adopted", |r| {
            r.state() == ReplicaState::Running
        })
        .await?;
        let now = daemon.engine().containers(daemon.cluster_id()).await?;
        ensure!(
            now == before,
            "restart {restart} touched a container: {now:#?}\n{before:#?}"
        );
    }
    api.kill_actor(&path, mode).await?;
    api.actor(&path, "is exhausted", |actor| actor.state == "exhausted")
        .await?;
    let seen = api
        .replica(&workload.name, victim, "is exhausted", |r| {
            r.code == "restart_exhausted"
        })
        .await?;
    ensure!(seen.state() == ReplicaState::Failed, "{seen:?}");
    ensure!(
        seen.details.get("cause").map(String::as_str) == Some("actor"),
        "{seen:?}"
    );
    let shown = api.deployments().await?.replicas;
    let shown = shown.iter().find(|replica| replica.id == victim);
    ensure!(
        shown.is_some_and(|r| r.details.get("cause").map(String::as_str) == Some("actor")),
        "Deploy.Status shows {shown:?}"
    );
    Ok(())
}

async fn exhausted_actor_leaves_its_container_alone(mode: FailureMode) -> Result<()> {
    let _permits = test_permits::heavy().await;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let log = ContainerLog::watch(daemon.engine(), daemon.cluster_id()).await?;
    let workload = Workload::new(
        "actor",
        [Service::new("web").replicas(2), Service::new("side")],
    );
    let victim = workload.replica("web", 0);
    api.apply(&workload).await?;
    api.converged(&workload).await?;
    let before = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(
        before.len() == 3 && before.iter().all(|c| c.running),
        "{before:#?}"
    );

    exhaust(&daemon, &workload, &victim, mode, &before).await?;

    // Neither the sibling containers nor the victim's own were affected.
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(now == before, "{now:#?}\n{before:#?}");
    for replica in api.replicas(&workload.name).await? {
        ensure!(
            replica.id == victim || replica.state() == ReplicaState::Running,
            "a sibling is not running: {replica:?}"
        );
    }
    for actor in api.actors().await? {
        let hurt = actor.path.ends_with(&victim);
        ensure!(
            hurt || actor.state == "running" && actor.restarts == 0,
            "{actor:?}"
        );
    }

    // A new apply, even of the same manifests, resets the budget.
    api.apply(&workload).await?;
    api.converged(&workload).await?;
    let path = format!("node/runtime/replica:{victim}");
    api.actor(&path, "runs again", |actor| {
        actor.state == "running" && actor.restarts == 0
    })
    .await?;
    let after = daemon.engine().containers(daemon.cluster_id()).await?;
    let others = |all: &[Container]| -> Vec<Container> {
        all.iter()
            .filter(|c| c.replica != victim)
            .cloned()
            .collect()
    };
    ensure!(
        others(&after) == others(&before),
        "siblings were replaced: {after:#?}"
    );
    log.check()
}

#[tokio::test(flavor = "multi_thread")]
async fn panicking_replica_actor_adopts_until_exhausted() -> Result<()> {
    exhausted_actor_leaves_its_container_alone(FailureMode::Panic).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_replica_actor_adopts_until_exhausted() -> Result<()> {
    exhausted_actor_leaves_its_container_alone(FailureMode::Kill).await
}

#[tokio::test(flavor = "multi_thread")]
async fn restart_resets_exhausted_actor_and_adopts_container() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let mut daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api().clone();
    let workload = Workload::new("adopt", [Service::new("web")]);
    let victim = workload.replica("web", 0);
    api.apply(&workload).await?;
    api.converged(&workload).await?;
    let before = daemon.engine().containers(daemon.cluster_id()).await?;
    exhaust(&daemon, &workload, &victim, FailureMode::Panic, &before).await?;

    let status = daemon.stop().await?;
    ensure!(
        status.success(),
        "a stop on request is no failure: {status}"
    );
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(now == before, "the stop touched a container: {now:#?}");
    daemon.start().await?;
    api.converged(&workload).await?;
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(now == before, "{now:#?}\n{before:#?}");
    Ok(())
}
