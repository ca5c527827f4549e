//! A full disk: no write is acknowledged that is not persisted.

use anyhow::{Result, ensure};
use jaco_chaos::{Daemon, History, Service, Settings, Workload, fill::SmallDisk, test_permits};

/// Room for the database and its log, and little more.
const SIZE: u64 = 48 << 20;
/// Padding that makes each revision a few hundred kilobytes, so that the disk fills up soon.
const PADDING: usize = 256 << 10;
/// More applies than the disk has room for.
const APPLIES: usize = 2000;

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_stops_daemon_without_losing_acknowledged_writes() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let dir = tempfile::Builder::new()
        .prefix("jaco-disk-")
        .tempdir_in("/tmp")?;
    let disk = SmallDisk::mount(&dir.path().join("mnt"), SIZE)?;
    let settings = Settings {
        data_dir: Some(disk.path().join("data")),
        ..Default::default()
    };
    let mut daemon = Daemon::bootstrap(settings).await?;
    let api = daemon.api().clone();
    let mut history = History::default();
    let steady = Workload::new("steady", [Service::new("web")]);
    history.applied(&steady.name, api.apply(&steady).await?);
    api.converged(&steady).await?;
    let before = daemon.engine().containers(daemon.cluster_id()).await?;
    let mut big = Workload::new("big", [Service::new("web").replicas(0)]);
    big.padding = PADDING;
    history.apply_sent(&big.name);
    history.applied(&big.name, api.apply(&big).await?);

    disk.fill()?;
    // Existing files may still have room.
    let mut refused = 0;
    for n in 0..APPLIES {
        big.revise(n as u64);
        history.apply_sent(&big.name);
        match api.apply(&big).await {
            Ok(revision) => {
                ensure!(
                    refused == 0,
                    "revision {revision} was acknowledged after a failed write"
                );
                history.applied(&big.name, revision);
            }
            Err(_) => refused += 1,
        }
        if daemon.exited()?.is_some() {
            break;
        }
    }
    let status = daemon.ended().await?;
    ensure!(status.code() == Some(1), "{status}");
    ensure!(refused > 0, "the disk never was full");
    ensure!(
        daemon.log().contains("No space left"),
        "the reason is not in the log"
    );
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(now == before, "{now:#?}\n{before:#?}");

    // A restart does not help, and does no harm.
    disk.fill()?; // the exit has freed some room
    daemon.clear_log()?;
    daemon.spawn()?;
    let status = daemon.ended().await?;
    ensure!(status.code() == Some(1), "{status}");
    ensure!(daemon.log().contains("No space left"), "{}", daemon.log());

    disk.free()?;
    daemon.start().await?;
    let shown = api.deployments().await?.deployments;
    history
        .check_deployments(&shown)
        .map_err(anyhow::Error::msg)?;
    history.resolve_doubts(&shown);
    history.apply_sent(&big.name);
    history.applied(&big.name, api.apply(&big).await?);
    history
        .check_deployments(&api.deployments().await?.deployments)
        .map_err(anyhow::Error::msg)?;
    api.converged(&steady).await?;
    let now = daemon.engine().containers(daemon.cluster_id()).await?;
    ensure!(now == before, "{now:#?}\n{before:#?}");
    ensure!(daemon.panics().is_empty(), "{:#?}", daemon.panics());
    Ok(())
}
