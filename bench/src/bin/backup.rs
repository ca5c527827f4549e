//! Throughput and memory of writing a large state to an archive and reading it back.
//!
//! The state consists of the entities that grow in a cluster: audit events, deployments with their
//! manifests, replicas and tokens. Memory is the peak resident size during a step minus the size
//! before it; for writing this is the cost of a backup on top of the state.

use std::{
    fs,
    io::{self, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::Parser;
use jaco_proto::v1;
use jaco_raftnode::{
    State,
    archive::{self, ArchiveLimits, Meta},
};
use prost_types::Timestamp;

#[derive(Parser)]
#[command(about = "Measures backups of a large state")]
struct Options {
    /// Entities in the state.
    #[arg(long, default_value_t = 100_000)]
    entities: u32,
    /// How often each step is measured; the fastest run counts.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let state = state(options.entities);
    let now = Timestamp::default();
    let meta = Meta::new(&state, 1, "bench", "", now).context("a cluster")?;
    let snapshot = state.snapshot_length();

    let mut sink = Counted(0);
    let wrote = fastest(options.rounds, || {
        sink = Counted(0);
        archive::write(&meta, &state, &mut sink)
    })?;
    print("write", snapshot, sink.0, &wrote);

    let mut bytes = Vec::new();
    archive::write(&meta, &state, &mut bytes)?;
    let read = fastest(options.rounds, || {
        archive::read(&*bytes, "bench", &ArchiveLimits::default()).map(drop)
    })?;
    print("read", snapshot, sink.0, &read);
    Ok(())
}

/// A state with one fifth each of deployments, replicas and tokens; the rest are audit events.
fn state(entities: u32) -> State {
    let mut state = State {
        applied_index: u64::from(entities) + 1,
        cluster: Some(Arc::new(v1::ClusterMeta {
            cluster_id: "bench".to_owned(),
            ..Default::default()
        })),
        ..State::default()
    };
    for n in 0..entities {
        let name = format!("deployment-{n}");
        let index = u64::from(n) + 1;
        match n % 5 {
            0 => {
                let compose = format!(
                    "services:\n  web:\n    image: registry.example/team/web:{n}\n    \
                     environment:\n      DATABASE: postgres://db-{n}.internal:5432/app\n"
                );
                let row = v1::Deployment {
                    name: name.clone(),
                    applied_revision: index,
                    compose_yaml: compose.into_bytes(),
                    jaco_yaml: format!("deployment: {name}\n").into_bytes(),
                    ..Default::default()
                };
                state.deployments.insert(name, Arc::new(row));
            }
            1 => {
                let row = v1::ReplicaDesired {
                    id: format!("{name}-web-0"),
                    deployment: name,
                    service: "web".to_owned(),
                    host: format!("node-{}", n % 7),
                    image: format!("registry.example/team/web:{n}"),
                    raft_index: index,
                    spec_hash: digest(n),
                    ..Default::default()
                };
                state.replicas_desired.insert(row.id.clone(), Arc::new(row));
            }
            2 => {
                let row = v1::Token {
                    identity: format!("operator-{n}"),
                    hashed_secret: digest(n),
                    ..Default::default()
                };
                state.tokens.insert(row.identity.clone(), Arc::new(row));
            }
            _ => {
                let mut row = v1::AuditEvent {
                    raft_index: index,
                    identity: format!("operator-{}", n % 50),
                    ts: Some(Timestamp {
                        seconds: i64::from(n),
                        nanos: 0,
                    }),
                    ..Default::default()
                };
                row.set_type(v1::AuditEventType::Apply);
                row.payload.insert("deployment".to_owned(), name);
                row.payload.insert("revision".to_owned(), index.to_string());
                state.audit.insert((index, 0), Arc::new(row));
            }
        }
    }
    state
}

/// 32 bytes that do not compress, like a hash.
fn digest(n: u32) -> Vec<u8> {
    let mut word = u64::from(n) + 1;
    std::iter::repeat_with(|| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word as u8
    })
    .take(32)
    .collect()
}

struct Measured {
    elapsed: Duration,
    memory: u64,
}

fn fastest<E: std::error::Error + Send + Sync + 'static>(
    rounds: u32,
    mut step: impl FnMut() -> Result<(), E>,
) -> anyhow::Result<Measured> {
    let mut best = Measured {
        elapsed: Duration::MAX,
        memory: 0,
    };
    for _ in 0..rounds {
        // Resets the peak resident size to the current one (proc(5)).
        fs::write("/proc/self/clear_refs", "5")?;
        let before = resident("VmRSS:")?;
        let started = Instant::now();
        step()?;
        best.elapsed = best.elapsed.min(started.elapsed());
        best.memory = best.memory.max(resident("VmHWM:")?.saturating_sub(before));
    }
    Ok(best)
}

/// The value of a key of `/proc/self/status`, in bytes.
fn resident(key: &str) -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kib: u64 = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .context("no such key")?
        .parse()?;
    Ok(kib << 10)
}

struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the result of a benchmark is its output"
)]
fn print(name: &str, snapshot: u64, archive: u64, measured: &Measured) {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{name:<6} snapshot {:>7.1} MiB  archive {:>7.1} MiB  {:>7.3} s  {:>7.1} MiB/s  \
         memory {:>6.1} MiB",
        mib(snapshot),
        mib(archive),
        measured.elapsed.as_secs_f64(),
        mib(snapshot) / measured.elapsed.as_secs_f64(),
        mib(measured.memory),
    );
}
