//! Replicated writes per second through the API of a running cluster, JACO's or etcd's.
//!
//! One write is 256 bytes under one of 1,000 keys, acknowledged after a majority has it on disk:
//! `RegistryCredentials.Add` for JACO, `KV.Put` for etcd. 1, 64 and 512 clients each wait for a
//! response before they write again; up to 32 of them share one HTTP/2 connection. Both daemons are
//! called over a unix socket or TCP without TLS, on the leader's machine, so that the difference
//! lies between request and majority. JACO's write also adds an audit event; etcd has none.
//!
//! `compare_etcd` runs it on three nodes of each in the same network namespaces.

#![expect(clippy::print_stdout, reason = "figures are its purpose")]

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use http::uri::PathAndQuery;
use jaco_bench::{Samples, millis};
use jaco_proto::v1;
use tonic::{
    Request,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

/// Length of a value in bytes.
const VALUE_BYTES: usize = 256;
/// Number of different keys.
const KEYS: u64 = 1000;
/// Clients per connection; a JACO daemon serves 64 concurrent calls on each.
const CLIENTS_PER_CONNECTION: usize = 32;
/// Warm-up before the measurement.
const WARM_UP: Duration = Duration::from_millis(500);

#[derive(Parser)]
#[command(about = "Measures acknowledged writes of a running cluster")]
struct Options {
    /// The API to call.
    #[arg(long, value_enum)]
    target: Target,
    /// Unix socket of the leader's API.
    #[arg(long)]
    socket: PathBuf,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Numbers of clients, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,64,512")]
    clients: Vec<usize>,
    /// Further processes whose CPU time is printed.
    #[arg(long = "process", value_name = "NAME=PID", value_parser = process)]
    processes: Vec<(String, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Target {
    Jaco,
    Etcd,
}

/// The used fields of `etcdserverpb.PutRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `etcdserverpb.PutResponse`; its fields are ignored.
#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {}

fn main() -> Result<()> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(run(&options))
}

async fn run(options: &Options) -> Result<()> {
    for &clients in &options.clients {
        ensure!(clients > 0, "at least one client is needed");
        let mut processes = vec![Process::new("writer".to_owned(), std::process::id())?];
        for (name, pid) in &options.processes {
            processes.push(Process::new(name.clone(), *pid)?);
        }
        let length = Duration::from_secs(options.seconds);
        let (elapsed, samples, writes) = measure(options, clients, length).await?;
        let rate = samples.count() as f64 / elapsed.as_secs_f64();
        println!(
            "{:>4} clients: {rate:>8.0} writes/s   p50 {:>8.2} ms   p99 {:>8.2} ms",
            clients,
            millis(samples.percentile(50)),
            millis(samples.percentile(99)),
        );
        let mut total = 0.0;
        print!("              CPU per write, us:");
        for process in &processes {
            let micros = process.used()?.as_secs_f64() * 1e6 / writes as f64;
            total += micros;
            print!("  {} {micros:.1}", process.name);
        }
        println!("  all {total:.1}");
    }
    Ok(())
}

/// A process whose CPU time is measured.
struct Process {
    name: String,
    pid: u32,
    before: Duration,
}

impl Process {
    fn new(name: String, pid: u32) -> Result<Self> {
        let before = cpu_time(pid)?;
        Ok(Self { name, pid, before })
    }

    /// CPU time since the start of the measurement.
    fn used(&self) -> Result<Duration> {
        Ok(cpu_time(self.pid)?.saturating_sub(self.before))
    }
}

/// User and system CPU time of a process.
fn cpu_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    // The second field, the name, may contain any character, even parentheses.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut ticks = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let (Some(Ok(user)), Some(Ok(system))) = (ticks.next(), ticks.next()) else {
        anyhow::bail!("{path} has an unexpected format");
    };
    // The unit is USER_HZ, which is 100 per second on Linux.
    Ok(Duration::from_millis(10 * (user + system)))
}

/// Parses `NAME=PID`.
fn process(text: &str) -> Result<(String, u32)> {
    let (name, pid) = text.split_once('=').context("not of the form NAME=PID")?;
    Ok((name.to_owned(), pid.parse()?))
}

/// Returns the measured time, its latencies, and the number of all writes including warm-up and
/// end.
async fn measure(
    options: &Options,
    clients: usize,
    length: Duration,
) -> Result<(Duration, Samples, u64)> {
    let mut channels = Vec::new();
    for _ in 0..clients.div_ceil(CLIENTS_PER_CONNECTION) {
        channels.push(connect(options).await?);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let counting = Arc::new(AtomicBool::new(false));
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..clients {
        let mut grpc = Grpc::new(channels[client % channels.len()].clone());
        let (stop, counting, next) = (stop.clone(), counting.clone(), next.clone());
        let target = options.target;
        tasks.spawn(async move {
            let mut samples = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let key = next.fetch_add(1, Ordering::Relaxed) % KEYS;
                let counted = counting.load(Ordering::Relaxed);
                let start = Instant::now();
                write(&mut grpc, target, key).await?;
                if counted {
                    samples.push(start.elapsed());
                }
            }
            Ok::<_, anyhow::Error>(samples)
        });
    }
    tokio::time::sleep(WARM_UP).await;
    counting.store(true, Ordering::Relaxed);
    let start = Instant::now();
    tokio::time::sleep(length).await;
    stop.store(true, Ordering::Relaxed);
    let elapsed = start.elapsed();
    let mut all = Vec::new();
    while let Some(samples) = tasks.join_next().await {
        all.extend(samples??);
    }
    ensure!(!all.is_empty(), "nothing was written");
    Ok((elapsed, Samples::new(all), next.load(Ordering::Relaxed)))
}

async fn connect(options: &Options) -> Result<Channel> {
    Endpoint::from_shared(format!("unix:{}", options.socket.display()))?
        .connect()
        .await
        .with_context(|| format!("connect to {}", options.socket.display()))
}

async fn write(grpc: &mut Grpc<Channel>, target: Target, key: u64) -> Result<()> {
    grpc.ready().await?;
    match target {
        Target::Jaco => {
            let request = v1::RegistryCredentialAddRequest {
                registry: format!("r{key}.example"),
                username: "bench".to_owned(),
                secret: vec![b'x'; VALUE_BYTES],
            };
            let path = PathAndQuery::from_static("/jaco.v1.RegistryCredentials/Add");
            let codec = ProstCodec::<_, v1::RegistryCredentialAddResponse>::default();
            grpc.unary(Request::new(request), path, codec).await?;
        }
        Target::Etcd => {
            let request = PutRequest {
                key: format!("r{key}.example").into_bytes(),
                value: vec![b'x'; VALUE_BYTES],
            };
            let path = PathAndQuery::from_static("/etcdserverpb.KV/Put");
            let codec = ProstCodec::<_, PutResponse>::default();
            grpc.unary(Request::new(request), path, codec).await?;
        }
    }
    Ok(())
}
