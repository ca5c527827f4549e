//! Requests per second through the ingress, their latency and their processor time, beside nginx,
//! haproxy and caddy.
//!
//! Each kind of request is measured twice: as fast as a proxy answers, and at one rate that is the
//! same for all of them, which makes latencies comparable. The proxies take turns in several rounds;
//! figures are medians of the rounds. Needs nginx and openssl; a missing peer is left out.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use jaco_bench::{
    Samples,
    ingress::{Lab, Load, Outcome, Pace, Protocol, Proxy, client::Resource, load, median, serve},
};

/// The allocator of jacod.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Arguments of the benchmark.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// Rounds, in each of which every proxy is measured in every way.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of one measurement in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Requests in flight at most.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Threads of each proxy and of the clients.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Factor of the rates at which latency is compared.
    #[arg(long, default_value_t = 1.0)]
    rate: f64,
    /// Measures only the kinds of requests whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Runs our proxy; started by the benchmark itself.
    Serve(serve::Args),
}

const SMALL: Resource = Resource {
    path: "/1k",
    length: 1024,
};
const LARGE: Resource = Resource {
    path: "/64k",
    length: 64 * 1024,
};

/// A kind of request.
struct Kind {
    protocol: Protocol,
    resource: Resource,
    new_connections: bool,
}

impl Kind {
    fn all() -> Vec<Self> {
        let mut kinds = Vec::new();
        for protocol in [
            Protocol::Plain,
            Protocol::Tls,
            Protocol::Http2,
            Protocol::Http3,
        ] {
            for new_connections in [false, true] {
                for resource in [SMALL, LARGE] {
                    kinds.push(Self {
                        protocol,
                        resource,
                        new_connections,
                    });
                }
            }
        }
        kinds
    }

    fn name(&self) -> String {
        let connections = if self.new_connections {
            "new connections"
        } else {
            "keep-alive"
        };
        let kib = self.resource.length / 1024;
        format!("{:?}, {connections}, {kib} KiB", self.protocol)
    }

    /// Requests per second at which latency is compared: well below what any proxy can do.
    fn rate(&self) -> f64 {
        let rate = match (self.new_connections, self.protocol) {
            (false, _) => 2000.0,
            (true, Protocol::Plain) => 1000.0,
            (true, Protocol::Tls | Protocol::Http2 | Protocol::Http3) => 300.0,
        };
        if self.resource.length > SMALL.length {
            rate / 2.0
        } else {
            rate
        }
    }
}

/// Figures of the rounds of one proxy.
#[derive(Default)]
struct Figures {
    per_second: Vec<f64>,
    cpu: Vec<f64>,
    latency: Latency,
    /// At the common rate.
    paced_cpu: Vec<f64>,
    paced: Latency,
}

/// Microseconds.
#[derive(Default)]
struct Latency {
    p50: Vec<f64>,
    p99: Vec<f64>,
    p999: Vec<f64>,
}

impl Latency {
    fn add(&mut self, samples: &Samples) {
        let micros = |share| samples.quantile(share).as_secs_f64() * 1e6;
        self.p50.push(micros(0.5));
        self.p99.push(micros(0.99));
        self.p999.push(micros(0.999));
    }

    fn print(&self) {
        for values in [&self.p50, &self.p99, &self.p999] {
            print!(" {:>8.0}", median(values.clone()));
        }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(Mode::Serve(serve)) = &args.mode {
        return serve::serve(serve);
    }
    let lab = Lab::start(args.threads)?;
    let proxies = lab.proxies()?;
    println!(
        "{} rounds of {} s; {} clients; {} threads each; times in us, of the CPU per request",
        args.rounds, args.seconds, args.clients, args.threads
    );
    let kinds = Kind::all().into_iter();
    for kind in kinds.filter(|kind| kind.name().contains(&args.only)) {
        compare(&args, &proxies, &kind)?;
    }
    Ok(())
}

fn compare(args: &Args, proxies: &[Proxy], kind: &Kind) -> Result<()> {
    let proxies: Vec<&Proxy> = proxies
        .iter()
        .filter(|proxy| proxy.serves(kind.protocol))
        .collect();
    let rate = kind.rate() * args.rate;
    let mut figures: Vec<Figures> = proxies.iter().map(|_| Figures::default()).collect();
    for _ in 0..args.rounds {
        for (proxy, figures) in proxies.iter().zip(&mut figures) {
            let outcome = measure(args, proxy, kind, Pace::Closed)?;
            figures.per_second.push(outcome.per_second());
            figures.cpu.push(outcome.cpu_micros());
            figures.latency.add(&outcome.latencies());
        }
        for (proxy, figures) in proxies.iter().zip(&mut figures) {
            let outcome = measure(args, proxy, kind, Pace::Rate(rate))?;
            let share = outcome.answers.len() as f64 / (rate * args.seconds);
            ensure!(share > 0.98, "{} clients are too few", args.clients);
            figures.paced_cpu.push(outcome.cpu_micros());
            figures.paced.add(&outcome.latencies());
        }
    }
    println!("\n{}", kind.name());
    println!(
        "{:<8} {:>10} {:>6} {:>8} {:>8} {:>8} | {:>6} {:>8} {:>8} {:>8} at {rate:.0}/s",
        "", "requests/s", "CPU", "p50", "p99", "p99.9", "CPU", "p50", "p99", "p99.9"
    );
    for (proxy, figures) in proxies.iter().zip(figures) {
        let (rate, cpu) = (median(figures.per_second), median(figures.cpu));
        print!("{:<8} {rate:>10.0} {cpu:>6.1}", proxy.name);
        figures.latency.print();
        print!(" | {:>6.1}", median(figures.paced_cpu));
        figures.paced.print();
        println!();
    }
    Ok(())
}

fn measure(args: &Args, proxy: &Proxy, kind: &Kind, pace: Pace) -> Result<Outcome> {
    let load = Load {
        protocol: kind.protocol,
        resource: kind.resource,
        new_connections: kind.new_connections,
        clients: args.clients,
        threads: args.threads,
        pace,
        time: Duration::from_secs_f64(args.seconds),
    };
    load::run(proxy, &load)
}
