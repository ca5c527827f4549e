//! DNS answers per second and their latency on a bridge, beside dnsmasq and unbound.
//!
//! All servers listen on the address of one bridge in one namespace and are asked by one client in
//! another, in turn and in several rounds: a service with three addresses, which each answers from
//! its own data, and an external name, which each has in its cache.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

#[path = "dns_answers/lab.rs"]
mod lab;
#[path = "dns_answers/load.rs"]
mod load;
#[path = "dns_answers/serve.rs"]
mod serve;

use std::{thread, time::Duration};

use anyhow::{Result, anyhow, ensure};
use jaco_bench::Samples;

use lab::{Lab, Peer};
use load::Load;

/// Rounds, in each of which every server is measured with every name.
const ROUNDS: usize = 7;
/// Questions outstanding while answers per second are measured, and the clients that share them:
/// one client is no faster than the servers.
const OUTSTANDING: usize = 64;
const CLIENTS: usize = 2;
/// Time of such a measurement.
const TIME: Duration = Duration::from_millis(700);
/// Questions of a measurement with one outstanding.
const SINGLE: usize = 1500;
/// The names with their number of addresses.
const NAMES: [(&str, u16); 2] = [(lab::SERVICE, 3), (lab::EXTERNAL, 1)];

/// Figures of one server for one name.
#[derive(Default)]
struct Figures {
    per_second: Vec<f64>,
    cpu: Vec<f64>,
    loaded: Vec<Duration>,
    single: Vec<Duration>,
}

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return serve::serve();
    }
    let lab = Lab::start()?;
    let peers = lab.peers()?;
    println!(
        "{ROUNDS} rounds; {OUTSTANDING} questions of {CLIENTS} clients outstanding for answers per \
         second, 1 for latency"
    );
    for (name, addresses) in NAMES {
        let mut figures: Vec<_> = peers.iter().map(|_| Figures::default()).collect();
        for _ in 0..ROUNDS {
            for (peer, figures) in peers.iter().zip(&mut figures) {
                measure(&lab, peer, name, addresses, figures)?;
            }
        }
        println!("\n{name}: {addresses} address(es)");
        println!(
            "{:<10} {:>12} {:>14} {:>20} {:>20}",
            "", "answers/s", "CPU us/answer", "loaded p50/p99 us", "single p50/p99 us"
        );
        for (peer, figures) in peers.iter().zip(figures) {
            print(peer.name, figures);
        }
    }
    Ok(())
}

fn measure(
    lab: &Lab,
    peer: &Peer,
    name: &str,
    addresses: u16,
    figures: &mut Figures,
) -> Result<()> {
    lab.client().within(|| {
        let mut load = Load::new(peer.address, name)?;
        let found = load.addresses()?;
        ensure!(found == addresses, "{}: {found} addresses", peer.name);
        let cpu = peer.cpu()?;
        let runs: Vec<_> = thread::scope(|scope| {
            let run = || Load::new(peer.address, name)?.run(OUTSTANDING / CLIENTS, TIME);
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(run)).collect();
            let joined = clients.into_iter().map(thread::ScopedJoinHandle::join);
            joined.collect::<Result<_, _>>()
        })
        .map_err(|_| anyhow!("a client panicked"))?;
        let cpu = peer.cpu()? - cpu;
        let (mut answers, mut per_second) = (0.0, 0.0);
        for run in runs {
            let (latencies, time) = run?;
            let count = f64::from(u32::try_from(latencies.len())?);
            answers += count;
            per_second += count / time.as_secs_f64();
            figures.loaded.extend(latencies);
        }
        figures.per_second.push(per_second);
        figures.cpu.push(cpu.as_secs_f64() * 1e6 / answers);
        load.run_single(SINGLE, &mut figures.single)
    })?
}

fn print(name: &str, mut figures: Figures) {
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let micros = |samples: Vec<Duration>| {
        let samples = Samples::new(samples);
        let [p50, p99] = [50, 99].map(|percent| samples.percentile(percent).as_secs_f64() * 1e6);
        format!("{p50:.0} / {p99:.0}")
    };
    println!(
        "{name:<10} {:>12.0} {:>14.2} {:>20} {:>20}",
        median(&mut figures.per_second),
        median(&mut figures.cpu),
        micros(figures.loaded),
        micros(figures.single),
    );
}
