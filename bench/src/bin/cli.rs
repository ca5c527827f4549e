//! Duration of whole runs of `jaco`: one without a daemon, and one that calls it.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use jaco_bench::{Samples, millis};
use jaco_chaos::{Daemon, Service, Settings, Workload, daemon};

const RUNS: usize = 100;

#[tokio::main]
async fn main() -> Result<()> {
    let mut daemon = Daemon::bootstrap(Settings {
        quiet: true,
        ..Settings::default()
    })
    .await?;
    let workload = Workload::new("bench", [Service::new("web").replicas(2)]);
    daemon.api().apply(&workload).await?;
    daemon.api().converged(&workload).await?;

    println!("{:<40} {:>10} {:>10}", "", "median", "p99");
    for (arguments, goal) in [("version", "10 ms"), ("status", "15 ms")] {
        let samples = Samples::of(RUNS, || run(&daemon, arguments))?;
        let [median, p99] = [50, 99].map(|percent| millis(samples.percentile(percent)));
        let name = format!("jaco {arguments} (goal: under {goal})");
        println!("{name:<40} {median:>7.2} ms {p99:>7.2} ms");
    }
    daemon.api().delete(&workload.name).await?;
    daemon.stop().await?;
    Ok(())
}

fn run(daemon: &Daemon, arguments: &str) -> Result<()> {
    let status = Command::new(daemon::program("jaco")?)
        .arg(arguments)
        .env("JACO_SOCKET", daemon.socket())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    ensure!(status.success(), "jaco {arguments}: {status}");
    Ok(())
}
