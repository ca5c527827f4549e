//! A registry that returns errors or wrong content.

use std::time::Duration;

use anyhow::{Result, ensure};
use jaco_chaos::{
    Api, ContainerLog, Daemon, Registry, Service, Settings, Workload,
    registry::{Fault, RequestKind},
    test_permits, until,
};

use crate::pull_failed;

/// A fault of a repository, and a word of the reason that the replica reports.
struct RepositoryFault {
    repository: &'static str,
    part: RequestKind,
    fault: Fault,
    word: &'static str,
}

fn repository_fault(
    repository: &'static str,
    part: RequestKind,
    fault: Fault,
    word: &'static str,
) -> RepositoryFault {
    RepositoryFault {
        repository,
        part,
        fault,
        word,
    }
}

/// A response that does not answer the request.
fn nonsense(status: u16, content_type: &'static str, body: String) -> Fault {
    Fault::Answer {
        status,
        content_type,
        body: body.into(),
    }
}

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

fn failures() -> Vec<RepositoryFault> {
    use RequestKind::{Blobs, Manifests};
    let page = format!("<html>{}</html>", "go away ".repeat(500_000));
    let error = Fault::error;
    vec![
        repository_fault("broken", Manifests, error(500, "UNKNOWN", "no"), "500"),
        repository_fault(
            "locked",
            Manifests,
            error(401, "UNAUTHORIZED", "who are you"),
            "who are you",
        ),
        repository_fault(
            "limited",
            Manifests,
            error(429, "TOOMANYREQUESTS", "come back later"),
            "come back later",
        ),
        repository_fault("unlayered", Blobs, error(500, "UNKNOWN", "no"), "500"),
        repository_fault("page", Blobs, nonsense(403, "text/html", page), "go away"),
        repository_fault(
            "painted",
            Blobs,
            error(403, "DENIED", "\u{1b}[2J\u{1b}[31mall is well\n"),
            " [2J [31mall is well",
        ),
    ]
}

fn wrong_content() -> Vec<RepositoryFault> {
    use RequestKind::{Blobs, Manifests};
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let garbage = nonsense(200, MANIFEST, "\u{0}{]".to_owned());
    vec![
        // A byte near the start is only in the configuration, one further on only in the layer.
        repository_fault("config", Blobs, Fault::CorruptAt(50), "verification failed"),
        repository_fault(
            "layer",
            Blobs,
            Fault::CorruptAt(100_000),
            "verification failed",
        ),
        repository_fault(
            "mistyped",
            Manifests,
            Fault::ContentType("text/html; charset=utf-8"),
            "missing signature key",
        ),
        repository_fault("garbage", Manifests, garbage, "invalid character"),
        repository_fault(
            "deep",
            Manifests,
            nonsense(200, MANIFEST, deep),
            "max depth",
        ),
    ]
}

/// Checks that every fault is reported with its reason, affects no other replica, and ends with its
/// cause.
async fn check_faults(registry: &Registry, troubles: Vec<RepositoryFault>) -> Result<()> {
    registry.push("healthy:1", "healthy").await?;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let image = |name: &str| registry.image(&format!("{name}:1"));
    let healthy = Workload::new("well", [Service::new("web").pulled(&image("healthy"))]);
    api.apply(&healthy).await?;
    api.converged(&healthy).await?;
    let before = daemon.engine().containers(daemon.cluster_id()).await?;

    for repository_fault in &troubles {
        let name = repository_fault.repository;
        registry.push(&format!("{name}:1"), name).await?;
        let proxy = registry.proxy();
        proxy.inject(repository_fault.part, name, repository_fault.fault.clone());
    }
    // The image `missing` was never pushed.
    let names = troubles
        .iter()
        .map(|repository_fault| repository_fault.repository);
    let services = names.chain(["missing"]);
    let services = services.map(|name| Service::new(name).pulled(&image(name)));
    let workload = Workload::new("ill", services);
    api.apply(&workload).await?;
    let words = troubles.iter().map(|t| (t.repository, t.word));
    for (name, word) in words.chain([("missing", "manifest unknown")]) {
        let seen = api
            .replica(
                &workload.name,
                &workload.replica(name, 0),
                "says why",
                |r| pull_failed(r, word),
            )
            .await?;
        let reason = &seen.details["reason"];
        ensure!(
            reason.starts_with(&format!("{}: ", image(name))),
            "{reason}"
        );
        ensure!(reason.len() < 4096, "{name}: {} bytes", reason.len());
        ensure!(!reason.contains(char::is_control), "{name}: {reason:?}");
    }
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(now == before, "{now:#?}\n{before:#?}");

    registry.proxy().clear_faults();
    registry.push("missing:1", "late").await?;
    api.converged(&workload).await?;
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(before.iter().all(|container| now.contains(container)));
    ensure!(daemon.panics().is_empty(), "{:#?}", daemon.panics());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_registry_is_retried() -> Result<()> {
    let _permits = test_permits::light().await;
    check_faults(&Registry::public().await?, failures()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_content_is_rejected() -> Result<()> {
    let _permits = test_permits::light().await;
    check_faults(&Registry::public().await?, wrong_content()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn manifest_with_wrong_digest_is_refused() -> Result<()> {
    let _permits = test_permits::light().await;
    let registry = Registry::public().await?;
    let digest = registry.push("shop/app:1", "true").await?;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let image = registry.image(&format!("shop/app@{digest}"));
    let proxy = registry.proxy();
    let forged = serde_json::json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "layers": [], "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json", "size": 2,
            "digest": digest,
        },
    });
    let forged = nonsense(200, MANIFEST, forged.to_string());
    proxy.inject(RequestKind::Manifests, "", forged);
    let workload = Workload::new("forged", [Service::new("web").pulled(&image)]);
    let replica = workload.replica("web", 0);
    api.apply(&workload).await?;
    api.replica(&workload.name, &replica, "says why", |r| {
        pull_failed(r, "verification failed for digest")
    })
    .await?;
    proxy.clear_faults();
    api.converged(&workload).await?;
    Ok(())
}

/// Upper bound of the time in which the engine itself retries a truncated layer.
const ENGINE_RETRIES: Duration = Duration::from_secs(150);

#[tokio::test(flavor = "multi_thread")]
async fn truncated_layer_is_fetched_again() -> Result<()> {
    let _permits = test_permits::light().await;
    let registry = Registry::public().await?;
    registry.push("shop/app:1", "short").await?;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    registry
        .proxy()
        .inject(RequestKind::Blobs, "", Fault::CutAt(1000));
    let image = registry.image("shop/app:1");
    let workload = Workload::new("short", [Service::new("web").pulled(&image)]);
    let replica = workload.replica("web", 0);
    api.apply(&workload).await?;
    until("a failed attempt", ENGINE_RETRIES, || async {
        let found = find(api, &workload, &replica).await?;
        ensure!(pull_failed(&found, "EOF"), "{found:?}");
        Ok(())
    })
    .await?;
    registry.proxy().clear_faults();
    api.converged(&workload).await?;
    Ok(())
}

async fn find(api: &Api, workload: &Workload, id: &str) -> Result<jaco_proto::v1::ReplicaDetail> {
    let replicas = api.replicas(&workload.name).await?;
    let found = replicas.into_iter().find(|replica| replica.id == id);
    found.ok_or_else(|| anyhow::anyhow!("no {id}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_registry_spends_no_restarts() -> Result<()> {
    let _permits = test_permits::light().await;
    let mut registry = Registry::public().await?;
    registry.push("shop/job:1", "job").await?;
    registry.proxy_mut().close().await;
    let mut daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api().clone();
    let log = ContainerLog::watch(daemon.engine(), daemon.cluster_id()).await?;
    let image = registry.image("shop/job:1");
    let service = Service::new("job").pulled(&image).script("exit 7");
    let mut workload = Workload::new("away", [service]);
    let replica = workload.replica("job", 0);
    api.apply(&workload).await?;
    let attempt = |n: &'static str| {
        move |r: &jaco_proto::v1::ReplicaDetail| {
            pull_failed(r, "connection refused") && r.details["attempt"] == n
        }
    };
    api.replica(
        &workload.name,
        &replica,
        "fails a fourth time",
        attempt("4"),
    )
    .await?;
    // A new row or a new daemon resets the attempts.
    workload.revise(2);
    api.apply(&workload).await?;
    api.replica(&workload.name, &replica, "starts over", attempt("1"))
        .await?;
    api.replica(&workload.name, &replica, "fails again", attempt("3"))
        .await?;
    daemon.kill()?;
    daemon.start().await?;
    api.replica(&workload.name, &replica, "starts over", attempt("1"))
        .await?;
    ensure!(
        log.events_of(&replica).is_empty(),
        "{:#?}",
        log.events_of(&replica)
    );

    // Only failures of the container count: three restarts, as usual.
    registry.proxy_mut().reopen().await?;
    let seen = api
        .replica(&workload.name, &replica, "is exhausted", |r| {
            r.code == "restart_exhausted"
        })
        .await?;
    ensure!(seen.details["consecutive_failures"] == "4", "{seen:?}");
    let last = daemon
        .engine()
        .container(daemon.cluster_id(), &replica)
        .await?;
    log.wait_started(&replica, &last.id).await?;
    let starts = log.times(&replica, "start");
    ensure!(starts.len() == 4, "{:#?}", log.events_of(&replica));
    Ok(())
}
