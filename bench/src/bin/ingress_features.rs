//! Processor time per request that limits and sticky sessions add to a route.
//!
//! Three of our proxies, one with limits, one with sticky sessions and one without either, take
//! turns in many short rounds. A figure is the median over the rounds of the difference within a
//! round, since the load of the machine changes between them. Clients send the cookie back. Needs
//! nginx and openssl.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use jaco_bench::ingress::{Lab, Load, Pace, Protocol, client::Resource, load, median, serve};

/// The allocator of jacod.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Arguments of the benchmark.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// Rounds, in each of which every proxy is measured.
    #[arg(long, default_value_t = 25)]
    rounds: usize,
    /// Length of one measurement in seconds.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Requests in flight.
    #[arg(long, default_value_t = 64)]
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
    // Two without either: their difference is the error of the others.
    let proxies = [
        lab.jaco("neither", &[])?,
        lab.jaco("again", &[])?,
        lab.jaco("limits", &["--limits"])?,
        lab.jaco("affinity", &["--affinity"])?,
        lab.jaco("both", &["--limits", "--affinity"])?,
    ];
    println!(
        "{} rounds of {} s; {} clients; {} threads each; plain HTTP/1.1, keep-alive, 1 KiB",
        args.rounds, args.seconds, args.clients, args.threads
    );
    let mut costs: Vec<Vec<f64>> = proxies.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds {
        for at in 0..proxies.len() {
            // Each follows every other one as often.
            let at = (at + round) % proxies.len();
            let outcome = load::run(&proxies[at], &load_of(&args))?;
            costs[at].push(outcome.cpu_micros());
        }
    }
    for (proxy, of_proxy) in proxies.iter().zip(&costs) {
        let added = of_proxy.iter().zip(&costs[0]);
        let added = added.map(|(with, without)| (with / without - 1.0) * 100.0);
        println!(
            "{:<9} {:>6.2} us of CPU per request, {:>+6.2} %",
            proxy.name,
            median(of_proxy.clone()),
            median(added.collect())
        );
    }
    Ok(())
}

fn load_of(args: &Args) -> Load {
    Load {
        protocol: Protocol::Plain,
        resource: Resource {
            path: "/1k",
            length: 1024,
        },
        new_connections: false,
        clients: args.clients,
        threads: args.threads,
        pace: Pace::Closed,
        time: Duration::from_secs_f64(args.seconds),
    }
}
