//! Swapping a large table of routes, and the delay of requests meanwhile.
//!
//! Requests arrive at a constant rate; a delay counts from the time at which one was due. The same
//! load on a table that does not change shows what the machine adds by itself. Needs nginx and
//! openssl.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::{
    hint::black_box,
    io::{BufRead as _, BufReader},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use jaco_bench::{
    Samples,
    ingress::{
        Lab, Load, Outcome, Pace, Protocol,
        client::Resource,
        load,
        serve::{self, Swap},
    },
    millis,
};
use jaco_net::ingress::{Match, Proxy, RouteTable, Settings};

/// The allocator of jacod.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A delay that a swap must not cause.
const LIMIT: Duration = Duration::from_millis(5);
/// Lookups whose mean is printed.
const LOOKUPS: u32 = 100_000;

/// Arguments of the benchmark.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    mode: Option<Mode>,
    /// Routes of the table.
    #[arg(long, default_value_t = 100_000)]
    routes: usize,
    /// Milliseconds between two swaps.
    #[arg(long, default_value_t = 500)]
    every: u64,
    /// Length of one measurement in seconds.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Requests per second.
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
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
    lookups(args.routes)?;
    let lab = Lab::start(args.threads)?;
    let routes = args.routes.to_string();
    let still = lab.jaco("still", &["--routes", &routes])?;
    let load = Load {
        protocol: Protocol::Plain,
        resource: Resource {
            path: "/1k",
            length: 1024,
        },
        new_connections: false,
        clients: 64,
        threads: args.threads,
        pace: Pace::Rate(args.rate),
        time: Duration::from_secs_f64(args.seconds),
    };
    let quiet = load::run(&still, &load)?;
    drop(still);
    let every = args.every.to_string();
    let swapping = ["--routes", &routes, "--swap-every", &every];
    let mut swapping = lab.jaco("swapping", &swapping)?;
    let output = swapping.process.output().context("output")?;
    let reader = thread::spawn(move || {
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        lines.filter_map(|line| Swap::parse(&line)).collect()
    });
    let (clock, monotonic) = (Instant::now(), serve::monotonic());
    let busy = load::run(&swapping, &load)?;
    drop(swapping);
    let swaps: Vec<Swap> = reader.join().ok().context("reader")?;
    // Those before the load are left out.
    let start = |swap: &Swap| Some(clock + swap.start.checked_sub(monotonic)?);
    let swaps: Vec<(Instant, Swap)> = swaps
        .into_iter()
        .filter_map(|swap| Some((start(&swap)?, swap)))
        .collect();
    ensure!(!swaps.is_empty(), "nothing was swapped");
    print_swaps(&args, &swaps);
    print_delays("no swaps", quiet.latencies(), late(&quiet));
    print_delays("swaps", busy.latencies(), late(&busy));
    let during = busy.answers.iter().filter(|answer| {
        let ended = answer.due + answer.latency;
        swaps.iter().any(|(start, swap)| {
            ended >= *start && answer.due <= *start + swap.built + swap.swapped
        })
    });
    let during: Vec<Duration> = during.map(|answer| answer.latency).collect();
    ensure!(!during.is_empty(), "no request came during a swap");
    let late = during.iter().filter(|delay| **delay > LIMIT).count();
    print_delays("during one", Samples::new(during), late);
    Ok(())
}

fn late(outcome: &Outcome) -> usize {
    let late = |answer: &&load::Answer| answer.latency > LIMIT;
    outcome.answers.iter().filter(late).count()
}

fn print_swaps(args: &Args, swaps: &[(Instant, Swap)]) {
    let samples =
        |of: fn(&Swap) -> Duration| Samples::new(swaps.iter().map(|(_, swap)| of(swap)).collect());
    let (built, swapped) = (samples(|swap| swap.built), samples(|swap| swap.swapped));
    let both = samples(|swap| swap.built + swap.swapped);
    println!(
        "{} routes, {} swaps, {} requests/s",
        args.routes,
        swaps.len(),
        args.rate
    );
    for (name, times) in [("build", built), ("swap", swapped), ("both", both)] {
        println!(
            "{name:<11} median {:>6.2} ms, worst {:>6.2} ms",
            millis(times.quantile(0.5)),
            millis(times.quantile(1.0))
        );
    }
}

fn print_delays(name: &str, delays: Samples, late: usize) {
    println!(
        "{name:<11} {:>6} requests: p50 {:.2}, p99 {:.2}, p99.9 {:.2}, worst {:.2} ms; {late} above {LIMIT:?}",
        delays.count(),
        millis(delays.quantile(0.5)),
        millis(delays.quantile(0.99)),
        millis(delays.quantile(0.999)),
        millis(delays.quantile(1.0)),
    );
}

/// Measures lookups in a table of `count` routes of one domain, and of as many domains.
fn lookups(count: usize) -> Result<()> {
    let addr = ([127, 0, 0, 1], 80).into();
    let in_one = |n: usize| serve::rule("one.example", &format!("/team{}/app{n}", n % 100), addr);
    let in_many = |n: usize| serve::rule(&format!("d{n}.example"), "", addr);
    let of: [(&str, &dyn Fn(usize) -> jaco_net::ingress::Rule); 2] =
        [("one domain", &in_one), ("as many domains", &in_many)];
    for (name, make) in of {
        let proxy = Proxy::new(Settings::default());
        proxy.swap(RouteTable::new((0..count).map(make)));
        let table = proxy.table();
        let wanted = make(count / 2);
        let path = format!("{}/x", wanted.path);
        let start = Instant::now();
        for _ in 0..LOOKUPS {
            let found = table.lookup(black_box(&wanted.domain), black_box(&path));
            ensure!(matches!(found, Some(Match::Forward(_))), "no route");
        }
        let lookup = start.elapsed() / LOOKUPS;
        println!("{count} routes, {name}: a lookup takes {lookup:?}");
    }
    Ok(())
}
