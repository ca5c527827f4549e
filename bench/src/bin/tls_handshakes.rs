//! TLS 1.3 handshakes of the ingress, full and resumed with a ticket, beside nginx, haproxy and
//! caddy.
//!
//! The certificate has a P-256 key. No requests are sent. The proxies take turns in several rounds;
//! figures are medians. Needs nginx and openssl; a missing peer is left out.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use jaco_bench::ingress::{Lab, handshake, median, serve};

/// The allocator of jacod.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Arguments of the benchmark.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// Rounds, in each of which every proxy is measured.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of one measurement in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Handshakes at a time.
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// Threads of each proxy and of the clients.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Runs our proxy; started by the benchmark itself.
    Serve(serve::Args),
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(Mode::Serve(serve)) = &args.mode {
        return serve::serve(serve);
    }
    let lab = Lab::start(args.threads)?;
    let proxies = lab.proxies()?;
    let time = Duration::from_secs_f64(args.seconds);
    println!(
        "{} rounds of {time:?}; {} clients; {} threads each",
        args.rounds, args.clients, args.threads
    );
    for (name, resumed) in [("full", false), ("resumed", true)] {
        let mut rates: Vec<Vec<f64>> = proxies.iter().map(|_| Vec::new()).collect();
        let mut costs = rates.clone();
        for _ in 0..args.rounds {
            for ((proxy, rates), costs) in proxies.iter().zip(&mut rates).zip(&mut costs) {
                let measured = handshake::run(proxy, resumed, args.threads, args.clients, time)?;
                rates.push(measured.per_second);
                costs.push(measured.cpu_micros);
            }
        }
        for ((proxy, rates), costs) in proxies.iter().zip(rates).zip(costs) {
            println!(
                "{name:<8} {:<8} {:>8.0} handshakes/s, {:>6.1} us of CPU each",
                proxy.name,
                median(rates),
                median(costs)
            );
        }
    }
    Ok(())
}
