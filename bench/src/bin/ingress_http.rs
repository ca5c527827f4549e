//! Requests per second through the ingress and their latency, beside nginx and haproxy.
//!
//! Every proxy forwards to the same nginx, has as many threads and the same certificate, and is
//! loaded by `wrk` from this machine, in turn and in several rounds. Needs nginx, haproxy, wrk and
//! openssl.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

#[path = "ingress_http/peers.rs"]
mod peers;
#[path = "ingress_http/serve.rs"]
mod serve;

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};

use peers::{Lab, Proxy};

/// The allocator of jacod.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Arguments of the benchmark.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// Rounds, in each of which every proxy is measured in every way.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Length of one measurement in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Connections of the client.
    #[arg(long, default_value_t = 64)]
    connections: u32,
    /// Threads of each proxy and of the client.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Runs our proxy; started by the benchmark itself.
    Serve(serve::Args),
    /// Builds and swaps a table of this many routes.
    Routes { routes: usize },
}

/// One way to load a proxy.
struct Load {
    name: &'static str,
    tls: bool,
    path: &'static str,
    /// Whether each request has a connection of its own.
    close: bool,
}

const LOADS: [Load; 6] = [
    Load::new("plain, keep-alive, 1 KiB", false, "/1k", false),
    Load::new("plain, keep-alive, 64 KiB", false, "/64k", false),
    Load::new("TLS, keep-alive, 1 KiB", true, "/1k", false),
    Load::new("TLS, keep-alive, 64 KiB", true, "/64k", false),
    Load::new("plain, new connections, 1 KiB", false, "/1k", true),
    Load::new("TLS, new connections, 1 KiB", true, "/1k", true),
];

impl Load {
    const fn new(name: &'static str, tls: bool, path: &'static str, close: bool) -> Self {
        Self {
            name,
            tls,
            path,
            close,
        }
    }
}

/// Figures of one measurement; latencies in microseconds.
#[derive(Clone, Copy, Debug)]
struct Figures {
    per_second: f64,
    p50: f64,
    p99: f64,
    failed: u64,
}

fn main() -> Result<()> {
    let args = Args::parse();
    match &args.mode {
        Some(Mode::Serve(serve)) => return serve::serve(serve),
        Some(Mode::Routes { routes }) => return serve::routes(*routes),
        None => {}
    }
    let lab = Lab::start(args.threads)?;
    println!(
        "{} rounds of {} s; {} connections; {} threads each",
        args.rounds, args.seconds, args.connections, args.threads
    );
    for load in LOADS {
        let mut figures: Vec<Vec<Figures>> = lab.proxies().iter().map(|_| Vec::new()).collect();
        for _ in 0..args.rounds {
            for (proxy, figures) in lab.proxies().iter().zip(&mut figures) {
                figures.push(measure(&args, proxy, &load)?);
            }
        }
        println!("\n{}", load.name);
        println!(
            "{:<10} {:>12} {:>10} {:>10} {:>8}",
            "", "requests/s", "p50 us", "p99 us", "failed"
        );
        for (proxy, figures) in lab.proxies().iter().zip(figures) {
            let median = |of: fn(&Figures) -> f64| {
                let mut values: Vec<f64> = figures.iter().map(of).collect();
                values.sort_by(f64::total_cmp);
                values[values.len() / 2]
            };
            println!(
                "{:<10} {:>12.0} {:>10.0} {:>10.0} {:>8}",
                proxy.name,
                median(|run| run.per_second),
                median(|run| run.p50),
                median(|run| run.p99),
                figures.iter().map(|run| run.failed).sum::<u64>(),
            );
        }
    }
    Ok(())
}

fn measure(args: &Args, proxy: &Proxy, load: &Load) -> Result<Figures> {
    let (scheme, port) = if load.tls {
        ("https", proxy.https)
    } else {
        ("http", proxy.http)
    };
    let mut wrk = Command::new("wrk");
    wrk.arg("--latency")
        .arg(format!("-t{}", args.threads))
        .arg(format!("-c{}", args.connections))
        .arg(format!("-d{}s", args.seconds));
    if load.close {
        wrk.args(["-H", "Connection: close"]);
    }
    wrk.arg(format!("{scheme}://localhost:{port}{}", load.path));
    let output = wrk.output().context("failed to run wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "wrk failed: {text}");
    parse(&text).with_context(|| format!("unexpected output of wrk: {text}"))
}

/// Reads the figures that `wrk --latency` prints.
fn parse(text: &str) -> Option<Figures> {
    let after = |label: &str| {
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(label));
        line?.split_whitespace().next()
    };
    let failed = text.lines().filter_map(|line| {
        let line = line.trim();
        let errors = line.strip_prefix("Non-2xx or 3xx responses:");
        let errors = errors.or_else(|| line.strip_prefix("Socket errors:"))?;
        let numbers = errors.split(|c: char| !c.is_ascii_digit());
        Some(numbers.filter_map(|n| n.parse::<u64>().ok()).sum::<u64>())
    });
    Some(Figures {
        per_second: after("Requests/sec:")?.parse().ok()?,
        p50: micros(after("50%")?)?,
        p99: micros(after("99%")?)?,
        failed: failed.sum(),
    })
}

/// Reads a duration such as `1.25ms`.
fn micros(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text.get(digits.len()..)? {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    Some(digits.parse::<f64>().ok()? * factor)
}

/// Path of this program, which also serves.
fn this_program() -> Result<PathBuf> {
    Ok(std::env::current_exe()?)
}
