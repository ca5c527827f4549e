//! Spellings of image references, as the engine and the registry interpret them.

use anyhow::{Result, ensure};
use jaco_chaos::{Daemon, Registry, Service, Settings, Workload, test_permits};

use crate::pull_failed;

#[tokio::test(flavor = "multi_thread")]
async fn every_spelling_of_a_host_finds_its_credential() -> Result<()> {
    let _permits = test_permits::light().await;
    let registry = Registry::private(&[("alice", "a-pass")]).await?;
    registry.push("shop/app:latest", "latest").await?;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let port = registry.proxy().address().port();
    let digest = registry.push("shop/app:1", "one").await?;
    api.login(&registry.address(), "alice", "a-pass").await?;
    api.login(&format!("https://LocalHost:{port}/"), "alice", "a-pass")
        .await?;
    let spellings = [
        format!("127.0.0.1:{port}/shop/app"),
        format!("localhost:{port}/shop/app:1"),
        format!("LOCALHOST:{port}/shop/app:1"),
        format!("localhost:{port}/shop/app:1@{digest}"),
    ];
    let services = spellings.iter().enumerate();
    let services = services.map(|(n, image)| Service::new(&format!("s{n}")).pulled(image));
    let workload = Workload::new("spelt", services);
    api.apply(&workload).await?;
    api.converged(&workload).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_reference_is_a_failed_attempt_with_reason() -> Result<()> {
    let _permits = test_permits::light().await;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let bad = [
        ("a//b", "invalid image reference"),
        ("127.0.0.1:1/Team/app", "must be lower-case"),
        ("127.0.0.1:1/app:", "the tag is malformed"),
        ("127.0.0.1:1/app@sha256:12", "the digest is malformed"),
        ("http://127.0.0.1:1/app", "the registry is malformed"),
        // Valid by today's grammar; older engines refuse it themselves.
        ("[::1]:1/app:1", "[::1]:1/app:1: "),
    ];
    let services = bad.iter().enumerate();
    let services = services.map(|(n, (image, _))| Service::new(&format!("s{n}")).pulled(image));
    let workload = Workload::new("bad", services);
    api.apply(&workload).await?;
    for (n, (image, word)) in bad.iter().enumerate() {
        let replica = workload.replica(&format!("s{n}"), 0);
        let seen = api
            .replica(&workload.name, &replica, "says why", |r| {
                pull_failed(r, word)
            })
            .await?;
        let reason = &seen.details["reason"];
        ensure!(reason.starts_with(&format!("{image}: ")), "{reason}");
    }
    Ok(())
}
