//! Resolution of a reference to an image, and when it happens.

use anyhow::{Result, ensure};
use jaco_chaos::{Api, Daemon, Registry, Service, Settings, Workload, test_permits};
use jaco_proto::v1::{ReplicaDetail, ReplicaState};

/// The digest of the image that a replica runs.
async fn digest(daemon: &Daemon, replica: &ReplicaDetail) -> Result<String> {
    let names = daemon.engine().image_names(&replica.container_id).await?;
    let mut digests = names.iter().filter_map(|name| name.split_once('@'));
    let digest = digests.next().map(|(_, digest)| digest.to_owned());
    digest.ok_or_else(|| anyhow::anyhow!("no digest: {names:?}"))
}

async fn one(api: &Api, workload: &Workload) -> Result<ReplicaDetail> {
    let mut replicas = api.converged(workload).await?;
    ensure!(replicas.len() == 1, "{replicas:?}");
    Ok(replicas.remove(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn digest_reference_pulls_exactly_that_image() -> Result<()> {
    let _permits = test_permits::light().await;
    let registry = Registry::public().await?;
    let old = registry.push("shop/app:1", "old").await?;
    let new = registry.push("shop/app:1", "new").await?;
    ensure!(old != new);
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    for (name, expected) in [
        (format!("shop/app@{old}"), &old),
        (format!("shop/app:1@{old}"), &old),
        (format!("shop/app@{new}"), &new),
        ("shop/app:1".to_owned(), &new),
    ] {
        let service = Service::new("web").pulled(&registry.image(&name));
        let workload = Workload::new("digest", [service]);
        api.apply(&workload).await?;
        let running = one(api, &workload).await?;
        let found = digest(&daemon, &running).await?;
        ensure!(found == *expected, "{name}: {found}");
        api.delete(&workload.name).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn moved_tag_takes_effect_at_next_start() -> Result<()> {
    let _permits = test_permits::light().await;
    let registry = Registry::public().await?;
    let old = registry.push("shop/app:1", "old").await?;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let image = registry.image("shop/app:1");
    let mut workload = Workload::new("moving", [Service::new("web").pulled(&image)]);
    api.apply(&workload).await?;
    let first = one(api, &workload).await?;
    ensure!(digest(&daemon, &first).await? == old);

    // Another tag for the same image, and the same document again: no restart.
    registry.retag("shop/app:1", "shop/app:same").await?;
    api.apply(&workload).await?;
    ensure!(one(api, &workload).await?.container_id == first.container_id);
    let new = registry.push("shop/app:1", "new").await?;
    registry.proxy().clear_requests();
    api.apply(&workload).await?;
    ensure!(one(api, &workload).await?.container_id == first.container_id);
    ensure!(registry.proxy().requests().is_empty());

    // A replica that is restarted for another reason uses the new image of the tag.
    workload.revise(2);
    api.apply(&workload).await?;
    let id = first.id.clone();
    let second = api
        .replica(&workload.name, &id, "runs anew", |r| {
            r.state() == ReplicaState::Running && r.container_id != first.container_id
        })
        .await?;
    ensure!(digest(&daemon, &second).await? == new);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pull_policy_never_requires_local_image() -> Result<()> {
    let _permits = test_permits::light().await;
    let registry = Registry::public().await?;
    registry.push("shop/app:1", "local").await?;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let image = registry.image("shop/app:1");
    let mut service = Service::new("web").pulled(&image);
    service.pull_policy = "never";
    let workload = Workload::new("never", [service]);
    let replica = workload.replica("web", 0);
    api.apply(&workload).await?;
    let seen = api
        .replica(&workload.name, &replica, "says what is missing", |r| {
            r.state() == ReplicaState::Failed && r.code == "docker_error"
        })
        .await?;
    let reason = seen.details["reason"].to_lowercase();
    ensure!(
        reason.contains("no such image") && reason.contains(&image),
        "{seen:?}"
    );
    ensure!(
        registry.proxy().requests().is_empty(),
        "it asked the registry"
    );

    daemon.engine().pull(&image).await?;
    registry.proxy().clear_requests();
    api.converged(&workload).await?;
    ensure!(
        registry.proxy().requests().is_empty(),
        "it asked the registry"
    );
    Ok(())
}
