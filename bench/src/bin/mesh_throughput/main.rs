//! Throughput, cost and delay of the mesh beside other WireGuard implementations in user space.
//!
//! Two network namespaces of this machine with a veth between them share its cores. In each round,
//! each implementation in turn carries one TCP flow, eight, small UDP packets, and single round trips;
//! the medians of the rounds are printed. This process generates the load, and its CPU time counts.
//! Nothing else may run. `taskset` restricts all of it to some cores.
//!
//! Programs are taken from the directory `JACO_BENCH_PEERS`, then from `PATH`, and skipped if absent:
//!
//! | program               | from                                                       |
//! |-----------------------|------------------------------------------------------------|
//! | `boringtun-cli`       | `cargo install boringtun-cli`                              |
//! | `gotatun`             | `cargo install gotatun-cli`                                |
//! | `wireguard-go`        | Debian's package                                           |
//! | `wireguard-go-latest` | `go install golang.zx2c4.com/wireguard@latest`, renamed    |

#![expect(clippy::print_stdout, reason = "the figures are the output")]

mod cipher;
mod load;
mod tunnel;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use clap::Parser;
use load::{Flow, Trips};
use tunnel::{Implementation, Wire};

/// Length of a raw encrypted packet: the MTU of the interfaces, in bytes.
const MTU: u16 = 1420;

#[derive(Parser)]
#[command(about = "Measures the mesh beside its peers")]
struct Options {
    /// Rounds, of which the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Implementations to measure; all by default.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Directory with the programs to compare with.
    #[arg(long, env = "JACO_BENCH_PEERS")]
    peers: Option<PathBuf>,
}

/// Measurements of one implementation, one element for each round.
#[derive(Default)]
struct Figures {
    one: Vec<Flow>,
    eight: Vec<Flow>,
    packets: Vec<f64>,
    trips: Vec<Trips>,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let length = Duration::from_secs_f64(options.seconds);
    let mut measured: Vec<(Implementation, Figures)> = Vec::new();
    for implementation in Implementation::all(options.peers.as_deref()) {
        let name = implementation.name();
        if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
            continue;
        }
        if implementation.is_present() {
            measured.push((implementation, Figures::default()));
        } else {
            println!("{name}: skipped, not installed");
        }
    }
    let mut raw = Vec::new();
    let wire = Wire::new()?;
    for _ in 0..options.rounds {
        raw.push((cipher::rate(1, length / 4), cipher::rate(2, length / 4)));
        for (implementation, figures) in &mut measured {
            let round = measure(&wire, implementation, length, figures);
            round.with_context(|| implementation.name().to_owned())?;
        }
    }
    let one_core = median(raw.iter().map(|raw| raw.0));
    let two_cores = median(raw.iter().map(|raw| raw.1));
    print(&measured, one_core, two_cores);
    Ok(())
}

fn measure(
    wire: &Wire,
    implementation: &Implementation,
    length: Duration,
    figures: &mut Figures,
) -> Result<()> {
    let tunnel = wire.connect(implementation)?;
    let ends = tunnel.ends();
    // The first packets wait for the handshake.
    load::round_trips(&ends, Duration::from_millis(300))?;
    figures.trips.push(load::round_trips(&ends, length / 2)?);
    figures.one.push(load::streams(&ends, 1, length)?);
    figures.eight.push(load::streams(&ends, 8, length)?);
    figures.packets.push(load::packets(&ends, length)?);
    Ok(())
}

fn print(measured: &[(Implementation, Figures)], one_core: f64, two_cores: f64) {
    println!(
        "{:<20} {:>18} {:>18} {:>10} {:>26}",
        "", "TCP, 1 flow", "TCP, 8 flows", "UDP, 64 B", "round trip and added, µs"
    );
    println!(
        "{:<20} {:>8} {:>9} {:>8} {:>9} {:>10} {:>12} {:>13}",
        "", "Gbit/s", "CPU s/Gb", "Gbit/s", "CPU s/Gb", "kpackets/s", "p50", "p99"
    );
    type Pick = fn(&Trips) -> Duration;
    let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
    let trip = |figures: &Figures, pick: Pick| {
        median(figures.trips.iter().map(|trips| micros(pick(trips))))
    };
    let bare = measured.iter().find(|(one, _)| one.is_bare());
    let (p50_of, p99_of): (Pick, Pick) = (|trips| trips.p50, |trips| trips.p99);
    let base = |pick| bare.map_or(0.0, |(_, figures)| trip(figures, pick));
    let mut best = Vec::new();
    for (implementation, figures) in measured {
        let rate = |flows: &[Flow]| median(flows.iter().map(|flow| flow.gigabits_per_second));
        let cost = |flows: &[Flow]| median(flows.iter().map(|flow| flow.cpu_per_gigabit));
        let (p50, p99) = (trip(figures, p50_of), trip(figures, p99_of));
        println!(
            "{:<20} {:>8.2} {:>9.3} {:>8.2} {:>9.3} {:>10.0} {:>6.0} {:>+5.0} {:>7.0} {:>+5.0}",
            implementation.name(),
            rate(&figures.one),
            cost(&figures.one),
            rate(&figures.eight),
            cost(&figures.eight),
            median(figures.packets.iter().copied()) / 1000.0,
            p50,
            p50 - base(p50_of),
            p99,
            p99 - base(p99_of),
        );
        best.push((
            implementation.name(),
            rate(&figures.one),
            rate(&figures.eight),
        ));
    }
    // Each packet is sealed on one side and opened on the other, by the same cores.
    let allowed = two_cores / 2.0;
    println!(
        "ChaCha20-Poly1305 of {MTU} B packets: one core {one_core:.1} Gbit/s, two cores \
         {two_cores:.1}; sealing and opening on both: {allowed:.1}"
    );
    let Some(&(_, one, eight)) = best.iter().find(|(name, ..)| *name == "jaco") else {
        return;
    };
    println!(
        "jaco reaches {:.0} % of that with 1 flow, {:.0} % with 8 (goal: 50 %)",
        one / allowed * 100.0,
        eight / allowed * 100.0
    );
    for (name, peer_one, peer_eight) in &best {
        let goal = match *name {
            "boringtun-cli" => "at least 3",
            "gotatun" | "wireguard-go-latest" => "above 1",
            _ => continue,
        };
        println!(
            "jaco to {name}: {:.2} with 1 flow, {:.2} with 8 (goal: {goal})",
            one / peer_one,
            eight / peer_eight
        );
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
