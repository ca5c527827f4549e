//! A container engine that is absent, or goes away and comes back.

use anyhow::{Result, ensure};
use jaco_chaos::{
    Daemon, Relay, Service, Settings, Workload, engine, test_permits, until, wait::WAIT_TIMEOUT,
};
use jaco_proto::v1::{ReplicaDetail, ReplicaState};
use tempfile::TempDir;

/// A relay to the engine that can be cut, and the directory of its socket.
fn relay() -> Result<(TempDir, Relay, Settings)> {
    let dir = tempfile::Builder::new()
        .prefix("jaco-relay-")
        .tempdir_in("/tmp")?;
    let path = dir.path().join("docker");
    let relay = Relay::new(&path, &engine::socket());
    Ok((
        dir,
        relay,
        Settings {
            docker_socket: Some(path),
            ..Default::default()
        },
    ))
}

/// Whether a replica is pending, with the engine as the reason.
fn waits_for_the_engine(replica: &ReplicaDetail) -> bool {
    replica.state() == ReplicaState::Pending
        && replica.code == "docker_error"
        && replica
            .details
            .get("reason")
            .is_some_and(|reason| reason.contains("engine"))
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_wait_for_an_absent_engine() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let (_dir, mut relay, settings) = relay()?;
    let daemon = Daemon::bootstrap(settings).await?;
    let api = daemon.api();
    let workload = Workload::new("late", [Service::new("web").replicas(2)]);
    ensure!(api.apply(&workload).await? == 1);
    for replica in workload.replica_ids() {
        api.replica(
            &workload.name,
            &replica,
            "says why it waits",
            waits_for_the_engine,
        )
        .await?;
    }
    ensure!(
        daemon
            .engine()
            .containers(daemon.cluster_id())
            .await?
            .is_empty()
    );
    ensure!(api.status().await?.nodes.len() == 1);

    relay.connect()?;
    api.converged(&workload).await?;
    let found = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(
        found.len() == 2 && found.iter().all(|c| c.running),
        "{found:#?}"
    );
    ensure!(daemon.panics().is_empty(), "{:#?}", daemon.panics());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_are_adopted_after_engine_outage() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let (_dir, mut relay, settings) = relay()?;
    relay.connect()?;
    let mut daemon = Daemon::bootstrap(settings).await?;
    let api = daemon.api().clone();
    let old = Workload::new("old", [Service::new("web").replicas(2)]);
    api.apply(&old).await?;
    api.converged(&old).await?;
    let before = daemon.engine().containers(daemon.cluster_id()).await?;

    for restarted in [false, true] {
        relay.cut();
        if restarted {
            daemon.kill()?;
            daemon.start().await?;
        }
        // The control plane does not need an engine.
        let new = Workload::new("new", [Service::new("web")]);
        api.apply(&new).await?;
        let waiting = new.replica("web", 0);
        api.replica(
            &new.name,
            &waiting,
            "says why it waits",
            waits_for_the_engine,
        )
        .await?;
        relay.connect()?;
        api.converged(&new).await?;
        api.converged(&old).await?;
        api.delete(&new.name).await?;
        until("only the old ones are left", WAIT_TIMEOUT, || async {
            let now = daemon.engine().containers(daemon.cluster_id()).await?;
            ensure!(now == before, "{now:#?}\n{before:#?}");
            Ok(())
        })
        .await?;
    }
    for actor in api.actors().await? {
        ensure!(actor.state == "running", "{actor:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_engine_blocks_only_containers() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let (_dir, mut relay, settings) = relay()?;
    relay.connect()?;
    let mut daemon = Daemon::bootstrap(settings).await?;
    let api = daemon.api().clone();
    let old = Workload::new("before", [Service::new("web").replicas(2)]);
    api.apply(&old).await?;
    api.converged(&old).await?;
    let before = daemon.engine().containers(daemon.cluster_id()).await?;

    relay.freeze();
    let new = Workload::new("during", [Service::new("web")]);
    api.apply(&new).await?;
    ensure!(
        api.replicas(&new.name)
            .await?
            .iter()
            .all(|r| r.state() != ReplicaState::Running)
    );
    // Neither the shutdown nor the start of the daemon waits for the engine.
    let status = daemon.stop().await?;
    ensure!(status.success(), "{status}");
    daemon.start().await?;
    api.deployments().await?;
    let gone = Workload::new("gone", [Service::new("web")]);
    api.apply(&gone).await?;
    api.delete(&gone.name).await?;
    relay.thaw();

    api.converged(&new).await?;
    api.converged(&old).await?;
    api.delete(&new.name).await?;
    until("only the old ones are left", WAIT_TIMEOUT, || async {
        let now = daemon.engine().containers(daemon.cluster_id()).await?;
        ensure!(now == before, "{now:#?}\n{before:#?}");
        Ok(())
    })
    .await?;
    ensure!(daemon.panics().is_empty(), "{:#?}", daemon.panics());
    Ok(())
}
