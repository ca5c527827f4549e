//! Memory of the ingress: idle connections beside nginx and haproxy, a large table of routes, and the
//! clients of limits.
//!
//! Each step prints the resident memory and its growth per item, which must stay the same. A process
//! holds no more connections over TCP than it may have descriptors; those of HTTP/3 need none.
//! Clients connect from several addresses of the loopback network, each with its own ports. Needs
//! nginx and openssl; haproxy may be missing. nginx allocates its connections when it starts, which
//! its memory before the first one includes.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::{
    fs,
    hint::black_box,
    net::{IpAddr, Ipv4Addr},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, Subcommand};
use jaco_bench::ingress::{
    Lab, Protocol, Proxy,
    client::{Connection, Connector, Resource},
    serve,
};
use jaco_net::{
    ingress::{self, RouteTable, Settings},
    limit::{Client, Limiter, Limits},
};
use rustix::process::{Resource as Limited, Rlimit, getrlimit, setrlimit};

/// The allocator of jacod.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Proxies whose memory is measured.
const PROXIES: [&str; 3] = ["jaco", "nginx", "haproxy"];
/// Connections from one address, which has 28,000 ports by default.
const PER_ADDRESS: usize = 10_000;
/// Descriptors that are not connections of clients.
const OTHER_FILES: u64 = 500;
/// Steps in which a number is reached.
const STEPS: usize = 5;

/// Arguments of the benchmark.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// Idle connections.
    #[arg(long, default_value_t = 50_000)]
    connections: usize,
    /// Routes of the table.
    #[arg(long, default_value_t = 100_000)]
    routes: usize,
    /// Addresses of clients that the limiter sees.
    #[arg(long, default_value_t = 1_000_000)]
    clients: usize,
    /// Threads of the proxy.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Runs our proxy; started by the benchmark itself.
    Serve(serve::Args),
    /// Builds and swaps tables; started by the benchmark itself.
    Routes { count: usize },
    /// Limits clients; started by the benchmark itself.
    Clients { count: usize, capacity: usize },
}

fn main() -> Result<()> {
    let args = Args::parse();
    match &args.mode {
        Some(Mode::Serve(serve)) => return serve::serve(serve),
        Some(Mode::Routes { count }) => return routes(*count),
        Some(Mode::Clients { count, capacity }) => return clients(*count, *capacity),
        None => {}
    }
    let own = std::env::current_exe()?;
    let run = |arguments: &[&str]| -> Result<()> {
        let status = Command::new(&own).args(arguments).status()?;
        ensure!(status.success(), "{arguments:?} failed");
        Ok(())
    };
    run(&["routes", &args.routes.to_string()])?;
    let clients = args.clients.to_string();
    for capacity in [args.clients * 2, Settings::default().max_limited_clients] {
        run(&["clients", &clients, &capacity.to_string()])?;
    }
    let files = raise_files()?;
    let lab = Lab::start(args.threads)?;
    for protocol in [
        Protocol::Plain,
        Protocol::Tls,
        Protocol::Http2,
        Protocol::Http3,
    ] {
        let mut count = args.connections;
        let most = usize::try_from(files.saturating_sub(OTHER_FILES))?;
        if protocol != Protocol::Http3 && count > most {
            println!("{protocol:?}: a process may have {files} descriptors here, not {count}");
            count = most;
        }
        let mut each = Vec::new();
        // Each protocol begins with new processes.
        for proxy in lab.proxies()? {
            if PROXIES.contains(&proxy.name) && proxy.serves(protocol) {
                let bytes = connections(&proxy, protocol, count);
                let bytes = bytes.with_context(|| format!("{protocol:?} of {}", proxy.name))?;
                each.push(format!("{} {bytes:.0}", proxy.name));
            }
        }
        println!(
            "{protocol:?}, bytes per idle connection: {}",
            each.join(", ")
        );
    }
    Ok(())
}

/// Allows this process and its children as many descriptors as the system does.
fn raise_files() -> Result<u64> {
    let limit = getrlimit(Limited::Nofile);
    let hard = limit.maximum.context("no limit of descriptors")?;
    for most in [1 << 20, hard] {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        // Raising the upper limit needs a privilege.
        if most >= hard && setrlimit(Limited::Nofile, limit).is_ok() {
            return Ok(most);
        }
    }
    bail!("the limit of descriptors cannot be set")
}

/// Opens idle connections, each of which has had one response, and returns the growth of the
/// resident memory per connection, in bytes.
fn connections(proxy: &Proxy, protocol: Protocol, count: usize) -> Result<f64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let resource = Resource {
            path: "/1k",
            length: 1024,
        };
        let mut open: Vec<Connection> = Vec::with_capacity(count);
        let (first, start) = (proxy.process.memory()?, Instant::now());
        let mut before = first;
        println!(
            "{}, {protocol:?}, idle connections: {} KiB before",
            proxy.name,
            before / 1024
        );
        let mut connector = None;
        for number in 0..count {
            if number % PER_ADDRESS == 0 {
                let host = u8::try_from(2 + number / PER_ADDRESS)?;
                let source = Ipv4Addr::new(127, 0, 0, host);
                connector = Some(Connector::new(proxy.addr(protocol), protocol, source)?);
            }
            let connector = connector.as_ref().context("connector")?;
            let mut connection = connector.open().await?;
            connection.get(resource, false).await?;
            connection.rest();
            open.push(connection);
            if is_step(number + 1, count) {
                let step = count / STEPS;
                before = report(number + 1, step, before, proxy.process.memory()?);
            }
        }
        let grown = proxy.process.memory()? as f64 - first as f64;
        // The oldest has been kept all the time.
        for connection in open.iter_mut().take(100) {
            connection
                .get(resource, false)
                .await
                .context("an idle connection has ended")?;
        }
        println!(
            "  in {:.0} s; the oldest still answer",
            start.elapsed().as_secs_f64()
        );
        Ok(grown / count.max(1) as f64)
    })
}

fn is_step(number: usize, count: usize) -> bool {
    number.is_multiple_of((count / STEPS).max(1))
}

/// Prints one step and returns `after`.
fn report(number: usize, step: usize, before: u64, after: u64) -> u64 {
    let each = (after as f64 - before as f64) / step.max(1) as f64;
    println!(
        "  {number:>8}: {:>8} KiB, {each:>7.0} bytes each",
        after / 1024
    );
    after
}

/// Builds tables of routes up to `count`, then swaps the largest again and again.
fn routes(count: usize) -> Result<()> {
    let proxy = ingress::Proxy::new(Settings::default());
    let addr = ([127, 0, 0, 1], 80).into();
    let mut before = resident()?;
    println!("routes: {} KiB before", before / 1024);
    let table = |size, round| RouteTable::new(serve::many_rules(size, round, addr));
    for step in 1..=STEPS {
        let size = count * step / STEPS;
        ensure!(proxy.swap(table(size, 0)), "the table has not changed");
        before = report(size, count / STEPS, before, resident()?);
    }
    for round in 1..=20 {
        ensure!(proxy.swap(table(count, round)), "the table has not changed");
    }
    println!(
        "  after 20 more swaps of the largest: {} KiB",
        resident()? / 1024
    );
    black_box(proxy.table());
    Ok(())
}

/// Admits a request of each of `count` clients, of which `capacity` are remembered.
fn clients(count: usize, capacity: usize) -> Result<()> {
    let limiter = Limiter::new(capacity);
    let limits = Limits {
        rps: 0.001,
        burst: 100,
        connections: 100,
    };
    let route = limiter.route("localhost", "", limits);
    let (mut before, now) = (resident()?, Instant::now());
    println!(
        "clients of a limiter of {capacity}: {} KiB before",
        before / 1024
    );
    for number in 0..count {
        let address = Ipv4Addr::from_bits(0x0a00_0000 + u32::try_from(number)?);
        let client = Client::from(IpAddr::V4(address));
        // The request ends at once; its client stays until it may send a whole burst again.
        let _ = limiter.admit(&route, client, now).map(drop);
        if is_step(number + 1, count) {
            before = report(number + 1, count / STEPS, before, resident()?);
        }
    }
    println!(
        "  {} remembered, {} requests not counted",
        limiter.clients(),
        limiter.untracked()
    );
    Ok(())
}

/// Resident memory of this process, in bytes.
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mut lines = status.lines();
    let resident = lines.find_map(|line| line.strip_prefix("VmRSS:"));
    let digits = resident.and_then(|text| text.split_whitespace().next());
    Ok(digits.context("VmRSS")?.parse::<u64>()? * 1024)
}
