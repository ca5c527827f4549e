//! A registry that returns errors or wrong content.

use std::time::Duration;

use anyhow::{Result, ensure};
use jaco_chaos::{
    Api, Daemon, Registry, Service, Settings, Witness, Workload,
    registry::{Fault, Part},
    turn, until,
};

use crate::pull_failed;

/// A fault of a repository, and a word of the reason that the replica reports.
struct Trouble {
    repository: &'static str,
    part: Part,
    fault: Fault,
    word: &'static str,
}

fn trouble(repository: &'static str, part: Part, fault: Fault, word: &'static str) -> Trouble {
    Trouble {
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

fn failures() -> Vec<Trouble> {
    use Part::{Blobs, Manifests};
    let page = format!("<html>{}</html>", "go away ".repeat(500_000));
    let error = Fault::error;
    vec![
        trouble("broken", Manifests, error(500, "UNKNOWN", "no"), "500"),
        trouble(
            "locked",
            Manifests,
            error(401, "UNAUTHORIZED", "who are you"),
            "who are you",
        ),
        trouble(
            "limited",
            Manifests,
            error(429, "TOOMANYREQUESTS", "come back later"),
            "come back later",
        ),
        trouble("unlayered", Blobs, error(500, "UNKNOWN", "no"), "500"),
        trouble("page", Blobs, nonsense(403, "text/html", page), "go away"),
        trouble(
            "painted",
            Blobs,
            error(403, "DENIED", "\u{1b}[2J\u{1b}[31mall is well\n"),
            " [2J [31mall is well",
        ),
    ]
}

fn lies() -> Vec<Trouble> {
    use Part::{Blobs, Manifests};
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let garbage = nonsense(200, MANIFEST, "\u{0}{]".to_owned());
    vec![
        // A byte near the start is only in the configuration, one further on only in the layer.
        trouble("config", Blobs, Fault::SpoilAt(50), "verification failed"),
        trouble(
            "layer",
            Blobs,
            Fault::SpoilAt(100_000),
            "verification failed",
        ),
        trouble(
            "mistyped",
            Manifests,
            Fault::ContentType("text/html; charset=utf-8"),
            "missing signature key",
        ),
        trouble("garbage", Manifests, garbage, "invalid character"),
        trouble(
            "deep",
            Manifests,
            nonsense(200, MANIFEST, deep),
            "max depth",
        ),
    ]
}

/// Checks that every fault is reported with its reason, affects no other replica, and ends with its
/// cause.
async fn suffer(registry: &Registry, troubles: Vec<Trouble>) -> Result<()> {
    registry.push("healthy:1", "healthy").await?;
    let daemon = Daemon::found(Settings::default()).await?;
    let api = daemon.api();
    let image = |name: &str| registry.image(&format!("{name}:1"));
    let healthy = Workload::new("well", [Service::new("web").pulled(&image("healthy"))]);
    api.apply(&healthy).await?;
    api.converged(&healthy).await?;
    let before = daemon.engine().containers(daemon.cluster_id()).await?;

    for trouble in &troubles {
        let name = trouble.repository;
        registry.push(&format!("{name}:1"), name).await?;
        let front = registry.front();
        front.spoil(trouble.part, name, trouble.fault.clone());
    }
    // The image `missing` was never pushed.
    let names = troubles.iter().map(|trouble| trouble.repository);
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

    registry.front().mend();
    registry.push("missing:1", "late").await?;
    api.converged(&workload).await?;
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(before.iter().all(|container| now.contains(container)));
    ensure!(daemon.panics().is_empty(), "{:#?}", daemon.panics());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_registry_is_retried() -> Result<()> {
    let _turn = turn::light().await;
    suffer(&Registry::public().await?, failures()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_content_is_rejected() -> Result<()> {
    let _turn = turn::light().await;
    suffer(&Registry::public().await?, lies()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn manifest_with_wrong_digest_is_refused() -> Result<()> {
    let _turn = turn::light().await;
    let registry = Registry::public().await?;
    let digest = registry.push("shop/app:1", "true").await?;
    let daemon = Daemon::found(Settings::default()).await?;
    let api = daemon.api();
    let image = registry.image(&format!("shop/app@{digest}"));
    let front = registry.front();
    let forged = serde_json::json!({
        "schemaVersion": 2, "mediaType": MANIFEST, "layers": [], "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json", "size": 2,
            "digest": digest,
        },
    });
    let forged = nonsense(200, MANIFEST, forged.to_string());
    front.spoil(Part::Manifests, "", forged);
    let workload = Workload::new("forged", [Service::new("web").pulled(&image)]);
    let replica = workload.replica("web", 0);
    api.apply(&workload).await?;
    api.replica(&workload.name, &replica, "says why", |r| {
        pull_failed(r, "verification failed for digest")
    })
    .await?;
    front.mend();
    api.converged(&workload).await?;
    Ok(())
}

/// Upper bound of the time in which the engine itself retries a truncated layer.
const ENGINE_RETRIES: Duration = Duration::from_secs(150);

#[tokio::test(flavor = "multi_thread")]
async fn truncated_layer_is_fetched_again() -> Result<()> {
    let _turn = turn::light().await;
    let registry = Registry::public().await?;
    registry.push("shop/app:1", "short").await?;
    let daemon = Daemon::found(Settings::default()).await?;
    let api = daemon.api();
    registry.front().spoil(Part::Blobs, "", Fault::CutAt(1000));
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
    registry.front().mend();
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
    let _turn = turn::light().await;
    let mut registry = Registry::public().await?;
    registry.push("shop/job:1", "job").await?;
    registry.front_mut().close().await;
    let mut daemon = Daemon::found(Settings::default()).await?;
    let api = daemon.api().clone();
    let witness = Witness::watch(daemon.engine(), daemon.cluster_id()).await?;
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
        witness.of(&replica).is_empty(),
        "{:#?}",
        witness.of(&replica)
    );

    // Only failures of the container count: three restarts, as usual.
    registry.front_mut().reopen().await?;
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
    witness.caught_up(&replica, &last.id).await?;
    let starts = witness.times(&replica, "start");
    ensure!(starts.len() == 4, "{:#?}", witness.of(&replica));
    Ok(())
}
