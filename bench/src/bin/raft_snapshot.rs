//! Cost of a snapshot for a lagging follower, on the leader and the follower.
//!
//! A group of three fills its state, one node stops, the log is truncated beyond its position, and
//! the node returns while clients write. Prints the leader's write rate without and with the
//! snapshot in progress, the longest write, and the time until the node has caught up.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Parser;
use futures::{StreamExt as _, TryStreamExt as _};
use jaco_bench::{Samples, group::Group, millis, put_blob};
use jaco_proto::v1;
use jaco_raftnode::{LeaderProposer as _, RaftHandle, RaftLimits, StateReader as _};

#[derive(Parser)]
#[command(about = "Measures a snapshot under load")]
struct Options {
    /// Directory to work in.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Entities in the state.
    #[arg(long, default_value_t = 100_000)]
    entities: u64,
    /// Entries that the follower misses.
    #[arg(long, default_value_t = 200_000)]
    missed: u64,
    /// Clients that write while it catches up.
    #[arg(long, default_value_t = 16)]
    clients: usize,
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(measure(Options::parse()))
}

#[expect(
    clippy::print_stdout,
    reason = "the result of a benchmark is its output"
)]
async fn measure(options: Options) -> anyhow::Result<()> {
    let dir = tempfile::tempdir_in(&options.dir).context("working directory")?;
    let mut group = Group::start(dir.path(), 3, &RaftLimits::default()).await?;
    let leader = group.leader().await?;
    let handle = group.handles[leader].clone();
    fill(&handle, 0..options.entities, "state").await?;
    let lagging = (leader + 1) % 3;
    group.suspend(lagging).await;
    fill(&handle, 0..options.missed, "missed").await?;
    let state = handle.state();
    println!(
        "{} entities, {} bytes encoded; follower {} entries behind",
        state.cert_blobs.len(),
        state.snapshot_length(),
        state.applied_index - group.handles[lagging].state().applied_index,
    );
    let alone = load(&handle, options.clients, after(Duration::from_secs(3))).await?;
    report("without the follower", &alone);

    let caught_up = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    group.resume(lagging).await?;
    let follower = group.handles[lagging].clone();
    let leading = handle.clone();
    let done = Arc::clone(&caught_up);
    let waiting = tokio::spawn(async move {
        let mut snapshot = None;
        let first = follower.status().applied;
        loop {
            let (own, all) = (follower.status().applied, leading.status().commit);
            if own > first + 1 && snapshot.is_none() {
                snapshot = Some(started.elapsed());
            }
            if all.saturating_sub(own) < 100 && started.elapsed() > Duration::from_millis(500) {
                done.store(true, Ordering::Relaxed);
                return (snapshot.unwrap_or_default(), started.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let limit = Instant::now() + Duration::from_secs(120);
    let over = move || caught_up.load(Ordering::Relaxed) || Instant::now() > limit;
    let during = load(&handle, options.clients, over).await?;
    report("while it catches up", &during);
    let (installed, caught_up) = waiting.await?;
    println!(
        "installed after {:.0} ms, caught up after {:.0} ms",
        millis(installed),
        millis(caught_up)
    );
    let again = load(&handle, options.clients, after(Duration::from_secs(3))).await?;
    report("with three nodes", &again);
    anyhow::ensure!(handle.status().leading, "leadership was lost");
    group.stop().await;
    Ok(())
}

fn after(length: Duration) -> impl Fn() -> bool + Clone + Send + 'static {
    let until = Instant::now() + length;
    move || Instant::now() > until
}

#[expect(
    clippy::print_stdout,
    reason = "the result of a benchmark is its output"
)]
fn report(name: &str, (latencies, elapsed): &(Samples, Duration)) {
    println!(
        "{name:<22} {:>8.0} writes/s  p50 {:>7.3} ms  p99 {:>7.3} ms  longest {:>7.1} ms",
        latencies.count() as f64 / elapsed.as_secs_f64(),
        millis(latencies.percentile(50)),
        millis(latencies.percentile(99)),
        millis(latencies.percentile(100)),
    );
}

async fn fill(
    handle: &RaftHandle,
    numbers: std::ops::Range<u64>,
    name: &'static str,
) -> anyhow::Result<()> {
    // The missed entries overwrite few keys; the others build the state.
    let keys = if name == "state" { u64::MAX } else { 1000 };
    futures::stream::iter(numbers)
        .map(|n| handle.propose(blob(format!("{name}/{:06}", n % keys))))
        .buffer_unordered(1024)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    Ok(())
}

async fn load(
    handle: &RaftHandle,
    clients: usize,
    over: impl Fn() -> bool + Clone + Send + 'static,
) -> anyhow::Result<(Samples, Duration)> {
    let started = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let (handle, over) = (handle.clone(), over.clone());
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while !over() {
                    let sent = Instant::now();
                    handle.propose(blob(format!("load/{client:03}"))).await?;
                    latencies.push(sent.elapsed());
                }
                anyhow::Ok(latencies)
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    Ok((Samples::new(latencies), started.elapsed()))
}

fn blob(key: String) -> v1::Command {
    put_blob(key, vec![7; 256])
}
