//! A hanging registry delays only the replica that pulls from it, and only as long as its row
//! exists.
//!
//! The engine keeps a hanging request even after its client has disconnected, so tests observe the
//! end of a pull by the next request.

use anyhow::{Result, ensure};
use jaco_chaos::{
    Daemon, Registry, Service, Settings, Workload,
    registry::{Fault, Outcome, RecordedRequest, RequestKind},
    test_permits, until,
    wait::WAIT_TIMEOUT,
};
use jaco_proto::v1::{ReplicaDetail, ReplicaState};

use crate::pull_failed;

fn pulling(replica: &ReplicaDetail) -> bool {
    replica.state() == ReplicaState::Pulling && replica.code == "pulling"
}

/// Waits until a request for a repository satisfies `wanted`.
async fn request(
    registry: &Registry,
    repository: &str,
    what: &str,
    wanted: impl Fn(&RecordedRequest) -> bool,
) -> Result<RecordedRequest> {
    until(what, WAIT_TIMEOUT, || async {
        let under = format!("/v2/{repository}/");
        let mut seen = registry.proxy().requests();
        seen.retain(|seen| seen.path.starts_with(&under));
        let found = seen.iter().rev().find(|seen| wanted(seen)).cloned();
        found.ok_or_else(|| format!("{seen:?}"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_pull_blocks_only_its_own_row() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let registry = Registry::public().await?;
    for name in ["deaf", "good", "better"] {
        registry.push(&format!("{name}:1"), name).await?;
    }
    for part in [RequestKind::Manifests, RequestKind::Blobs] {
        let daemon = Daemon::bootstrap(Settings::default()).await?;
        let api = daemon.api();
        let proxy = registry.proxy();
        let fault = match part {
            RequestKind::Blobs => Fault::StallAt(10_000),
            RequestKind::Manifests | RequestKind::Everything => Fault::Hang,
        };
        proxy.inject(part, "deaf", fault);
        let deaf = registry.image("deaf:1");
        let mut stuck = Workload::new("stuck", [Service::new("web").pulled(&deaf)]);
        let replica = stuck.replica("web", 0);
        let held = |seen: &RecordedRequest| seen.outcome == Outcome::Open;

        // A replica of another image of the same registry starts meanwhile.
        api.apply(&stuck).await?;
        request(&registry, "deaf", "a request that hangs", held).await?;
        let good = registry.image("good:1");
        let other = Workload::new("other", [Service::new("web").pulled(&good)]);
        api.apply(&other).await?;
        api.converged(&other).await?;
        api.replica(&stuck.name, &replica, "is pulling", pulling)
            .await?;

        // A newer row does not wait for the pull of the older one.
        stuck.services[0].image = registry.image("better:1");
        api.apply(&stuck).await?;
        api.converged(&stuck).await?;
        api.delete(&stuck.name).await?;

        // Nor does the deletion of the row.
        proxy.clear_requests();
        let mut gone = Workload::new("gone", [Service::new("web").pulled(&deaf)]);
        gone.revise(1);
        api.apply(&gone).await?;
        request(&registry, "deaf", "a request that hangs", held).await?;
        api.delete(&gone.name).await?;
        until("only the other one is left", WAIT_TIMEOUT, || async {
            let left = daemon.engine().containers(daemon.cluster_id()).await?;
            ensure!(
                left.len() == 1 && left[0].replica == other.replica("web", 0),
                "{left:#?}"
            );
            Ok(())
        })
        .await?;

        // Nor does the stop of the daemon, and the next daemon pulls again.
        proxy.clear_requests();
        let mut daemon = daemon;
        let late = Workload::new("late", [Service::new("web").pulled(&deaf)]);
        let api = daemon.api().clone();
        api.apply(&late).await?;
        request(&registry, "deaf", "a request that hangs", held).await?;
        let status = daemon.stop().await?;
        ensure!(status.success(), "{status}");
        proxy.clear_requests();
        daemon.start().await?;
        request(&registry, "deaf", "a request that hangs", held).await?;
        proxy.clear_faults();
        api.converged(&late).await?;
        api.converged(&other).await?;
        // Removes the images, so that the next round fetches their layers again.
        for workload in [&late, &other] {
            api.delete(&workload.name).await?;
        }
        until("nothing is left", WAIT_TIMEOUT, || async {
            let left = daemon.engine().containers(daemon.cluster_id()).await?;
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        })
        .await?;
        for name in ["deaf", "good", "better"] {
            let image = registry.image(&format!("{name}:1"));
            daemon.engine().remove_image(&image).await?;
        }
        proxy.clear_requests();
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_pull_resumes() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let registry = Registry::public().await?;
    registry.push("slow:1", "slow").await?;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let proxy = registry.proxy();
    proxy.inject(RequestKind::Blobs, "", Fault::StallAt(50_000));
    let image = registry.image("slow:1");
    let workload = Workload::new("slow", [Service::new("web").pulled(&image)]);
    api.apply(&workload).await?;
    let held = |seen: &RecordedRequest| seen.outcome == Outcome::Open;
    request(&registry, "slow", "a layer that stands still", held).await?;
    proxy.clear_faults();
    api.converged(&workload).await?;
    let log = daemon.log();
    ensure!(!log.contains("image not pulled"), "{log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_registry_is_a_failed_attempt() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let registry = Registry::public().await?;
    registry.push("mute:1", "mute").await?;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let proxy = registry.proxy();
    proxy.inject(RequestKind::Everything, "", Fault::Hang);
    let image = registry.image("mute:1");
    let workload = Workload::new("mute", [Service::new("web").pulled(&image)]);
    let replica = workload.replica("web", 0);
    api.apply(&workload).await?;
    // The engine waits 15 seconds for the registry's first answer. Go's HTTP client names its own
    // timeout or only the deadline of the request, whichever of the two it notices first.
    api.replica(&workload.name, &replica, "says why", |r| {
        pull_failed(r, "Client.Timeout exceeded") || pull_failed(r, "context deadline exceeded")
    })
    .await?;
    proxy.clear_faults();
    api.converged(&workload).await?;
    Ok(())
}
