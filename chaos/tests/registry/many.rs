//! Many replicas of one image at once.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use jaco_chaos::{Daemon, Registry, Service, Settings, Workload, registry::Outcome, test_permits};

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_start_together_fetch_their_image_once() -> Result<()> {
    let _permits = test_permits::light().await;
    let registry = Registry::private(&[("alice", "a-pass")]).await?;
    registry.push("shop/app:1", "shared").await?;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    api.login(&registry.address(), "alice", "a-pass").await?;
    let image = registry.image("shop/app:1");
    let service = |name| Service::new(name).pulled(&image).script("exec sleep 86400");
    let services = ["web", "api"].map(|name| service(name).replicas(3));
    let workload = Workload::new("many", services);
    api.apply(&workload).await?;
    api.converged(&workload).await?;
    let mut fetched = BTreeMap::<_, usize>::new();
    for seen in registry.proxy().requests() {
        if seen.outcome == Outcome::Answered(200) && (seen.is_blob() || seen.is_manifest()) {
            *fetched.entry((seen.method, seen.path)).or_default() += 1;
        }
    }
    // A layer and a configuration, and the manifest by its tag and by its digest.
    ensure!(fetched.len() == 4, "{fetched:#?}");
    ensure!(fetched.values().all(|times| *times == 1), "{fetched:#?}");
    let log = daemon.log();
    ensure!(!log.contains("image not pulled"), "{log}");
    Ok(())
}
