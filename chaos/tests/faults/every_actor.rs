//! One failure of every actor in the tree.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use jaco_chaos::{
    Api, Container, ContainerLog, Daemon, Rng, Service, Settings, Workload, test_permits, until,
    wait::WAIT_TIMEOUT,
};
use jaco_proto::{ErrorCode, v1::FailureMode};
use tonic::Code;

const ROOT: &str = "node";

/// Paths of all actors but the root, whose end is that of the daemon.
async fn paths(api: &Api) -> Result<BTreeSet<String>> {
    let actors = api.actors().await?;
    Ok(actors
        .into_iter()
        .map(|actor| actor.path)
        .filter(|path| path != ROOT)
        .collect())
}

/// Waits until the tree has exactly these actors, all of them running.
async fn wait_tree(api: &Api, expected: &BTreeSet<String>) -> Result<()> {
    until("the tree is whole", WAIT_TIMEOUT, || async {
        let actors = api.actors().await.map_err(|error| error.to_string())?;
        let up = actors
            .iter()
            .filter(|a| a.state == "running")
            .map(|a| a.path.clone());
        let up: BTreeSet<String> = up.filter(|path| path != ROOT).collect();
        if up == *expected && actors.len() == expected.len() + 1 {
            Ok(())
        } else {
            let missing: Vec<_> = expected.difference(&up).collect();
            let extra: Vec<_> = up.difference(expected).collect();
            Err(format!("missing {missing:?}, unexpected {extra:?}"))
        }
    })
    .await
}

/// Injects a failure into an actor, and waits until it was restarted.
async fn fail_actor(api: &Api, path: &str, mode: FailureMode) -> Result<()> {
    let find = |actors: Vec<jaco_proto::v1::ActorInfo>| {
        actors.into_iter().find(|actor| actor.path == path)
    };
    let from = Instant::now();
    until(&format!("{path} can be hurt"), WAIT_TIMEOUT, || async {
        match api.kill_actor(path, mode).await {
            Ok(()) => Ok(()),
            // The actor is starting, or was stopped together with the previous victim.
            Err(error) if error.known() == Some(ErrorCode::ValidationFailed) => Err(error),
            // The actor that serves the call is gone.
            Err(error) => match error.grpc {
                Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal => Ok(()),
                _ => Err(error),
            },
        }
    })
    .await?;
    until(&format!("{path} is a new one"), WAIT_TIMEOUT, || async {
        let actor = api.actors().await.map(find).map_err(|e| e.to_string())?;
        let actor = actor.ok_or("it is not there")?;
        let younger = u128::from(actor.uptime_ms) < from.elapsed().as_millis();
        if actor.state == "running" && !actor.last_failure.is_empty() && younger {
            Ok(())
        } else {
            Err(format!("{actor:?}"))
        }
    })
    .await
}

async fn every_actor_fails_once_at_rest(mode: FailureMode) -> Result<()> {
    let _permits = test_permits::heavy().await;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let log = ContainerLog::watch(daemon.engine(), daemon.cluster_id()).await?;
    let workload = Workload::new(
        "rest",
        [Service::new("web").replicas(2), Service::new("side")],
    );
    api.apply(&workload).await?;
    api.converged(&workload).await?;
    let before = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(
        before.len() == 3 && before.iter().all(|c| c.running),
        "{before:#?}"
    );

    let all = paths(api).await?;
    ensure!(all.len() > 12, "is this the whole tree? {all:#?}");
    for path in &all {
        fail_actor(api, path, mode).await?;
        wait_tree(api, &all)
            .await
            .map_err(|error| error.context(format!("after {path}")))?;
        api.converged(&workload).await?;
        let now = daemon.engine().containers(daemon.cluster_id()).await?;
        ensure!(
            now == before,
            "the end of {path} touched a container: {now:#?}\n{before:#?}"
        );
    }
    // No late event has replaced a container.
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(now == before, "{now:#?}\n{before:#?}");
    ensure!(daemon.panics().is_empty(), "{:#?}", daemon.panics());
    log.check()
}

async fn every_actor_fails_once_during_an_apply(mode: FailureMode) -> Result<()> {
    let _permits = test_permits::heavy().await;
    let mut rng = Rng::announced();
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let log = ContainerLog::watch(daemon.engine(), daemon.cluster_id()).await?;
    let mut workload = Workload::new("apply", [Service::new("web").replicas(2)]);
    api.apply(&workload).await?;
    api.converged(&workload).await?;

    let all = paths(api).await?;
    for (round, path) in all.iter().enumerate() {
        let before = daemon.engine().containers(daemon.cluster_id()).await?;
        workload.revise(round as u64);
        let pause = rng.below(Duration::from_millis(600));
        let hurting = async {
            // Somewhere between the commit and the last new container.
            tokio::time::sleep(pause).await;
            fail_actor(api, path, mode).await
        };
        let (applied, hurt) = tokio::join!(applied(api, &workload), hurting);
        let (revision, ()) = (applied?, hurt?);
        wait_tree(api, &all)
            .await
            .map_err(|e| e.context(format!("{path} hurt after {pause:?}")))?;
        replaced(&daemon, &workload, &before, revision)
            .await
            .map_err(|e| e.context(format!("{path} hurt after {pause:?}")))?;
        log.check()?;
    }
    ensure!(daemon.panics().is_empty(), "{:#?}", daemon.panics());
    Ok(())
}

/// Applies, and retries if the answer was lost; returns the revision.
async fn applied(api: &Api, workload: &Workload) -> Result<u64> {
    until("the apply is acknowledged", WAIT_TIMEOUT, || async {
        let answer = api.apply(workload).await;
        if let Err(error) = &answer {
            let refused = error.known() == Some(ErrorCode::ValidationFailed);
            assert!(!refused, "a valid manifest was refused: {error}");
        }
        answer
    })
    .await
}

/// Waits until every replica runs in a container that did not exist before.
async fn replaced(
    daemon: &Daemon,
    workload: &Workload,
    before: &[Container],
    revision: u64,
) -> Result<()> {
    until("new containers", WAIT_TIMEOUT, || async {
        let replicas = daemon.api().converged(workload).await?;
        let old = |id: &str| before.iter().any(|container| container.id == id);
        if let Some(replica) = replicas.iter().find(|replica| old(&replica.container_id)) {
            bail!("{} is still the old one", replica.id);
        }
        let found = daemon.engine().containers(daemon.cluster_id()).await?;
        ensure!(
            found.len() == replicas.len() && found.iter().all(|c| c.running),
            "{found:?}"
        );
        let shown = daemon.api().deployments().await?.deployments;
        let shown = shown
            .iter()
            .find(|deployment| deployment.name == workload.name);
        ensure!(
            shown.is_some_and(|d| d.applied_revision >= revision),
            "{shown:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_any_actor_keeps_containers() -> Result<()> {
    every_actor_fails_once_at_rest(FailureMode::Kill).await
}

#[tokio::test(flavor = "multi_thread")]
async fn panic_of_any_actor_keeps_containers() -> Result<()> {
    every_actor_fails_once_at_rest(FailureMode::Panic).await
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_converges_while_any_actor_is_killed() -> Result<()> {
    every_actor_fails_once_during_an_apply(FailureMode::Kill).await
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_converges_while_any_actor_panics() -> Result<()> {
    every_actor_fails_once_during_an_apply(FailureMode::Panic).await
}

#[tokio::test(flavor = "multi_thread")]
async fn root_failure_ends_daemon_and_restart_adopts_containers() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let mut daemon = Daemon::bootstrap(Settings::default()).await?;
    let workload = Workload::new("root", [Service::new("web").replicas(2)]);
    daemon.api().apply(&workload).await?;
    daemon.api().converged(&workload).await?;
    let before = daemon.engine().containers(daemon.cluster_id()).await?;
    // The answer may be lost with the root.
    let _ = daemon.api().kill_actor(ROOT, FailureMode::Kill).await;
    let status = daemon.ended().await?;
    ensure!(
        !status.success(),
        "a daemon without its tree must not look well: {status}"
    );
    daemon.start().await?;
    daemon.api().converged(&workload).await?;
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(now == before, "{now:#?}\n{before:#?}");
    Ok(())
}
