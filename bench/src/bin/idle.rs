//! Cost of an idle node with 50 running replicas: raft writes, CPU, memory.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::time::{Duration, Instant};

use anyhow::Result;
use jaco_chaos::{Daemon, Service, Settings, Workload};

const REPLICAS: u32 = 50;
const WARM_UP: Duration = Duration::from_secs(15);
const WINDOW: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<()> {
    let mut daemon = Daemon::bootstrap(Settings {
        quiet: true,
        ..Settings::default()
    })
    .await?;
    println!(
        "empty node: {:.1} MB resident",
        megabytes(daemon.rss_bytes()?)
    );
    let workload = Workload::new("bench", [web()]);
    daemon.api().apply(&workload).await?;
    daemon.api().converged(&workload).await?;
    tokio::time::sleep(WARM_UP).await;

    let (index, cpu, start) = (
        daemon.api().status().await?.raft_index,
        daemon.cpu_time()?,
        Instant::now(),
    );
    tokio::time::sleep(WINDOW).await;
    let (cpu, window) = (daemon.cpu_time()? - cpu, start.elapsed());
    let writes = daemon.api().status().await?.raft_index - index;

    let share = cpu.as_secs_f64() / window.as_secs_f64() * 100.0;
    println!(
        "{REPLICAS} running replicas, {:.0} s idle:",
        window.as_secs_f64()
    );
    println!("  raft log entries   {writes} (goal: 0)");
    println!("  CPU of one core    {share:.2} % (goal: under 0.5 %)");
    println!(
        "  resident memory    {:.1} MB (goal: under 60 MB)",
        megabytes(daemon.rss_bytes()?)
    );
    daemon.api().delete(&workload.name).await?;
    daemon.stop().await?;
    Ok(())
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Without a health check, so that only JACO is measured.
fn web() -> Service {
    Service {
        healthcheck: false,
        ..Service::new("web").replicas(REPLICAS)
    }
}
