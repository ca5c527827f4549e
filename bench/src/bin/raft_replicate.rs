//! Writes per second that a group of raft nodes commits, each synced on every node.
//!
//! Each client writes one 256-byte value at a time to the leader and waits until it is committed
//! and applied. The nodes share one process, one disk and its processors, so raft, the storage and
//! their threads are measured; the network is a function call. The disk's own `fdatasync` is
//! measured before and after, because a shared disk changes from minute to minute.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Parser;
use jaco_bench::{Samples, group::Group, millis, put_blob};
use jaco_proto::v1;
use jaco_raftnode::{LeaderProposer as _, RaftHandle, RaftLimits};

/// Length of a value in bytes.
const VALUE: usize = 256;

#[derive(Parser)]
#[command(about = "Measures replicated writes through raft")]
struct Options {
    /// Directory to work in; its file system is measured.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Voters.
    #[arg(long, default_value_t = 3)]
    nodes: u64,
    /// Clients, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,64,512")]
    clients: Vec<usize>,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let length = Duration::from_secs(options.seconds);
    let dir = tempfile::tempdir_in(&options.dir).context("working directory")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    print(
        "fdatasync, 256 B appends",
        &fdatasync(dir.path(), length)?,
        "",
    );
    for clients in options.clients {
        let path = dir.path().join(format!("clients-{clients}"));
        let (measured, syncs) =
            runtime.block_on(replicate(&path, options.nodes, clients, length))?;
        let syncs: Vec<_> = syncs
            .iter()
            .map(|count| format!("{:.1}", measured.0.count() as f64 / (*count).max(1) as f64))
            .collect();
        let note = format!("  writes per sync of each node: {}", syncs.join(" "));
        print(&format!("{clients} clients"), &measured, &note);
    }
    print("fdatasync again", &fdatasync(dir.path(), length)?, "");
    Ok(())
}

/// Latencies, and the time it took to collect them.
type Measured = (Samples, Duration);

#[expect(
    clippy::print_stdout,
    reason = "the result of a benchmark is its output"
)]
fn print(name: &str, (latencies, elapsed): &Measured, note: &str) {
    println!(
        "{name:<26} {:>8.0}/s  p50 {:>7.3} ms  p99 {:>7.3} ms{note}",
        latencies.count() as f64 / elapsed.as_secs_f64(),
        millis(latencies.percentile(50)),
        millis(latencies.percentile(99)),
    );
}

fn fdatasync(dir: &Path, length: Duration) -> anyhow::Result<Measured> {
    let mut file = File::create(dir.join("fdatasync"))?;
    let started = Instant::now();
    let mut latencies = Vec::new();
    while started.elapsed() < length {
        let write = Instant::now();
        file.write_all(&[7; VALUE])?;
        file.sync_data()?;
        latencies.push(write.elapsed());
    }
    Ok((Samples::new(latencies), started.elapsed()))
}

/// Writes for `length`; also returns the number of syncs of each node.
async fn replicate(
    dir: &Path,
    nodes: u64,
    clients: usize,
    length: Duration,
) -> anyhow::Result<(Measured, Vec<u64>)> {
    let group = Group::start(dir, nodes, &RaftLimits::default()).await?;
    let leader = group.handles[group.leader().await?].clone();
    let synced = |group: &Group| -> Vec<u64> {
        let counts = group.storages.iter().map(|s| s.write_counts().synced);
        counts.collect()
    };
    let before = synced(&group);
    let started = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|client| tokio::spawn(run(leader.clone(), client, started + length)))
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    let elapsed = started.elapsed();
    let after = synced(&group);
    let syncs = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    group.stop().await;
    Ok(((Samples::new(latencies), elapsed), syncs))
}

async fn run(handle: RaftHandle, client: usize, until: Instant) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    let mut number = 0;
    while Instant::now() < until {
        number += 1;
        let sent = Instant::now();
        handle.propose(payload(client, number)).await?;
        latencies.push(sent.elapsed());
    }
    Ok(latencies)
}

/// A write of one value; few different keys keep the state small.
fn payload(client: usize, number: u64) -> v1::Command {
    let key = format!("bench/{client:03}/{:02}", number % 16);
    put_blob(key, vec![number as u8; VALUE])
}
