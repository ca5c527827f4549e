//! Proposals per second that a single voter commits, compared with the speed of its disk.
//!
//! First the disk alone: append 512 bytes, `fdatasync`, repeat. Then 512-byte commands through the
//! raft actor, synced, by 1 client, by 64 clients, and by 64 clients with 16 proposals in flight
//! each. The ratio shows the benefit of group commit; absolute numbers depend on the machine.

use std::{
    fs::File,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Parser;
use futures::{StreamExt as _, stream::FuturesUnordered};
use jaco_bench::{Samples, group::Parent, millis, put_blob};
use jaco_proto::{chain, v1};
use jaco_raftnode::{
    LeaderProposer as _, NoTransport, RaftArgs, RaftHandle, RaftLimits, Storage, actor, storage,
};
use prost::Message as _;
use ractor::Actor;

/// Encoded size of a command.
const COMMAND_BYTES: usize = 512;

#[derive(Parser)]
#[command(about = "Measures proposals through the raft actor")]
struct Options {
    /// Directory to work in; its file system is measured.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let length = Duration::from_secs(options.seconds);
    let dir = tempfile::tempdir_in(&options.dir).context("working directory")?;
    let disk = fdatasync(dir.path(), length)?;
    print(
        &format!("fdatasync, {COMMAND_BYTES} B appends"),
        &disk,
        None,
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    for (clients, outstanding) in [(1, 1), (64, 1), (64, 16)] {
        let path = dir.path().join(format!("raft-{clients}-{outstanding}"));
        let (rate, syncs) = runtime.block_on(propose(&path, clients, outstanding, length))?;
        let name = format!("{clients} clients x {outstanding} in flight");
        print(&name, &rate, Some((disk.per_second(), syncs)));
    }
    // Again, because the disk of a shared machine changes from minute to minute.
    let disk = fdatasync(dir.path(), length)?;
    print("fdatasync again", &disk, None);
    Ok(())
}

struct Measured {
    elapsed: Duration,
    latencies: Samples,
}

impl Measured {
    fn per_second(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.as_secs_f64()
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the result of a benchmark is its output"
)]
fn print(name: &str, measured: &Measured, context: Option<(f64, u64)>) {
    let mut line = format!(
        "{name:<28} {:>9.0}/s  p50 {:>7.3} ms  p99 {:>7.3} ms",
        measured.per_second(),
        millis(measured.latencies.percentile(50)),
        millis(measured.latencies.percentile(99)),
    );
    if let Some((disk, syncs)) = context {
        let batch = measured.latencies.count() as f64 / syncs.max(1) as f64;
        let times = measured.per_second() / disk;
        line.push_str(&format!(
            "  {batch:>6.1} per sync  {times:>5.1} x fdatasync"
        ));
    }
    println!("{line}");
}

fn fdatasync(dir: &Path, length: Duration) -> anyhow::Result<Measured> {
    let mut file = File::create(dir.join("fdatasync"))?;
    let bytes = [7; COMMAND_BYTES];
    let started = Instant::now();
    let mut latencies = Vec::new();
    while started.elapsed() < length {
        let write = Instant::now();
        file.write_all(&bytes)?;
        file.sync_data()?;
        latencies.push(write.elapsed());
    }
    Ok(Measured {
        elapsed: started.elapsed(),
        latencies: Samples::new(latencies),
    })
}

async fn propose(
    path: &Path,
    clients: usize,
    outstanding: usize,
    length: Duration,
) -> anyhow::Result<(Measured, u64)> {
    storage::bootstrap(path, 1, &[1])?;
    let storage = Storage::open(path)?;
    let handle = RaftHandle::new(storage.load_state()?, RaftLimits::default());
    let args = RaftArgs {
        observer: Arc::new(()),
        storage: Arc::clone(&storage),
        handle: handle.clone(),
        transport: Arc::new(NoTransport),
        on_fatal: Arc::new(|error| panic!("{}", chain(error))),
        limits: RaftLimits::default(),
    };
    let (parent, _) = Actor::spawn(None, Parent, ()).await?;
    let actor = actor::spawn(args, parent.get_cell()).await?;
    let before = storage.write_counts();
    let started = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let handle = handle.clone();
            tokio::spawn(run(handle, client, outstanding, started + length))
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    let elapsed = started.elapsed();
    let syncs = storage.write_counts().synced - before.synced;
    actor.stop(None);
    parent.stop(None);
    let latencies = Samples::new(latencies);
    Ok((Measured { elapsed, latencies }, syncs))
}

async fn run(
    handle: RaftHandle,
    client: usize,
    outstanding: usize,
    until: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    let mut waiting = FuturesUnordered::new();
    let mut number = 0;
    loop {
        while waiting.len() < outstanding && Instant::now() < until {
            number += 1;
            let proposal = handle.propose(payload(client, number));
            let sent = Instant::now();
            waiting.push(async move { proposal.await.map(|_| sent.elapsed()) });
        }
        match waiting.next().await {
            Some(latency) => latencies.push(latency?),
            None => return Ok(latencies),
        }
    }
}

/// A command of exactly [`COMMAND_BYTES`]; few different keys keep the state small.
fn payload(client: usize, number: u64) -> v1::Command {
    let build = |bytes: usize| {
        let key = format!("bench/{client:03}/{:02}", number % 16);
        put_blob(key, vec![number as u8; bytes])
    };
    let frame = build(400).encoded_len() - 400;
    build(COMMAND_BYTES - frame)
}
