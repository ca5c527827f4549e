//! Cost at rest of a cluster with many networks: raft writes, CPU, wake-ups and memory of each node.
//!
//! A lab of real daemons and engines, with mesh and isolation. Each deployment has one network and
//! one service, without a health check, so that only JACO is measured.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::Parser;
use jaco_chaos::{Lab, Service, Workload, daemon::proc, lab::Node, until};
use jaco_proto::v1::{NodeStatus, ReplicaState};

/// Longest wait for the cluster and for the containers.
const LIMIT: Duration = Duration::from_secs(1200);

#[derive(Parser)]
#[command(about = "Measures a cluster at rest with many networks")]
struct Options {
    /// Nodes.
    #[arg(long, default_value_t = 9)]
    nodes: u8,
    /// Networks, each of one deployment.
    #[arg(long, default_value_t = 50)]
    networks: u32,
    /// Containers on each network, on as many nodes.
    #[arg(long, default_value_t = 1)]
    replicas: u32,
    /// Seconds between the start of the last container and the measurement.
    #[arg(long, default_value_t = 60)]
    warm_up: u64,
    /// Seconds of the measurement.
    #[arg(long, default_value_t = 60)]
    window: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let builder = Lab::builder().nodes(options.nodes).engines(true).quiet();
    let mut lab = builder.start().await?;
    lab.join_all().await?;
    ready(&lab).await?;
    print(&lab, &options, "no networks").await?;
    for number in 0..options.networks {
        let service = Service {
            healthcheck: false,
            ..Service::new("web").replicas(options.replicas)
        };
        let workload = Workload::new(&format!("net{number}"), [service]);
        lab.node(1).api().apply(&workload).await?;
    }
    running(&lab, (options.networks * options.replicas) as usize).await?;
    let what = format!(
        "{} networks with {} containers each",
        options.networks, options.replicas
    );
    print(&lab, &options, &what).await
}

/// Use of resources by one daemon until now.
struct Usage {
    cpu: Duration,
    wake_ups: u64,
    raft_index: u64,
}

async fn usage(node: &Node) -> Result<Usage> {
    let pid = node.pid()?;
    let raft_index = node.api().status().await?.raft_index;
    Ok(Usage {
        cpu: proc::cpu_time(pid)?,
        wake_ups: wake_ups(pid)?,
        raft_index,
    })
}

/// Times that a thread of the process went to sleep; threads that have ended do not count.
fn wake_ups(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end in between.
        let status = fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += count.map_or(Ok(0), |count| count.trim().parse::<u64>())?;
    }
    Ok(sum)
}

/// Measures the cluster at rest.
async fn print(lab: &Lab, options: &Options, what: &str) -> Result<()> {
    tokio::time::sleep(Duration::from_secs(options.warm_up)).await;
    let mut before = Vec::new();
    for node in lab.nodes() {
        before.push(usage(node).await?);
    }
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(options.window)).await;
    let seconds = start.elapsed().as_secs_f64();
    let leader = lab.leader().await?;
    println!(
        "{} nodes, {what}, {seconds:.0} s at rest (goal: no raft write, CPU under 0.3 % of a core):",
        lab.nodes().len()
    );
    println!("  node   raft writes   CPU of a core   wake-ups/s   resident");
    let mut total = 0.0;
    for (node, before) in lab.nodes().iter().zip(before) {
        let now = usage(node).await?;
        let share = (now.cpu - before.cpu).as_secs_f64() / seconds * 100.0;
        total += share;
        println!(
            "  {:<6} {:>11} {:>13.2} % {:>12.0} {:>7.1} MB{}",
            node.host(),
            now.raft_index - before.raft_index,
            share,
            now.wake_ups.saturating_sub(before.wake_ups) as f64 / seconds,
            proc::rss_bytes(node.pid()?)? as f64 / 1e6,
            if node.index() == leader {
                "   leader"
            } else {
                ""
            },
        );
    }
    println!("  mean {:>26.2} %", total / lab.nodes().len() as f64);
    Ok(())
}

/// Waits until every node is ready.
async fn ready(lab: &Lab) -> Result<()> {
    until("all nodes ready", LIMIT, || async {
        let status = lab.node(1).api().status().await;
        let status = status.map_err(|error| error.to_string())?;
        let ready = status
            .nodes
            .iter()
            .filter(|n| n.status() == NodeStatus::Ready);
        match ready.count() {
            count if count == lab.nodes().len() => Ok(()),
            count => Err(format!("{count} nodes are ready")),
        }
    })
    .await
}

/// Waits until this number of containers run.
async fn running(lab: &Lab, wanted: usize) -> Result<()> {
    let waited = until("all containers run", LIMIT, || async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let replicas = lab.node(1).api().replicas("").await;
        let replicas = replicas.map_err(|error| error.to_string())?;
        let running = replicas
            .iter()
            .filter(|r| r.state() == ReplicaState::Running);
        match running.count() {
            count if count == wanted => Ok(()),
            count => Err(format!("{count} of {wanted}")),
        }
    });
    waited.await.context("start of the containers")
}
