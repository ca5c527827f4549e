//! Cost of the isolation ruleset of many networks on many hosts.
//!
//! - Time to render it from the replicated state, to replace the kernel's table by it in one batch,
//!   and to test it: read the table back and compare.
//! - Time per forwarded packet with 1, 10, 100 and 1,000 networks, between two hosts of the last
//!   one, beside two other forms: a chain of one rule per pair of blocks, as iptables has it, and a
//!   verdict map from source to the chain of its network.
//!
//! Runs in network namespaces of its own; needs root, iproute2 and nft.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::{
    fmt::Write as _,
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use jaco_actors::network::firewall::{FirewallPort as _, KernelPort, Rendered};
use jaco_bench::{
    Samples,
    forwarding::{Flow, Router},
    millis,
};
use jaco_net::netns::Namespace;
use jaco_policy::network::firewall::{difference::Difference, ruleset::HostInputs};
use jaco_proto::v1;
use jaco_raftnode::State;

/// First address of the pool `10.0.0.0/8`; a block has 256 addresses.
const POOL: u32 = 0x0a00_0000;
/// Wait for the kernel to free the elements of replaced tables, which it does in the background.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Parser)]
#[command(about = "Measures the isolation ruleset")]
struct Options {
    /// Networks.
    #[arg(long, default_value_t = 1000)]
    networks: u32,
    /// Hosts, each with a block of every network.
    #[arg(long, default_value_t = 50)]
    hosts: u32,
    /// Measurements of each step.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Leaves out the cost of forwarding.
    #[arg(long)]
    ruleset_only: bool,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let (networks, hosts) = (options.networks, options.hosts);
    let blocks = networks.checked_mul(hosts);
    ensure!(
        blocks.is_some_and(|blocks| (1..=0xffff).contains(&blocks)),
        "the pool has 65,536 blocks"
    );
    ruleset(&options)?;
    if !options.ruleset_only {
        for count in [1, 10, 100, 1000] {
            if count <= networks {
                forwarding(count, hosts)?;
            }
        }
    }
    Ok(())
}

/// Measures the steps of a pass of the firewall.
fn ruleset(options: &Options) -> Result<()> {
    let (networks, hosts) = (options.networks, options.hosts);
    let state = state(networks, hosts);
    println!(
        "{networks} networks on {hosts} hosts, {} blocks; median and slowest of {}",
        networks * hosts,
        options.rounds
    );
    let namespace = Namespace::create()?;
    let port = KernelPort::default();
    let [mut render, mut apply, mut read, mut test, mut again] = [const { Vec::new() }; 5];
    for _ in 0..options.rounds {
        std::thread::sleep(PAUSE);
        let (rendered, time) = timed(|| Rendered::of(&state, HostInputs::default()));
        render.push(time);
        let (applied, time) = namespace.within(|| timed(|| port.apply(&rendered.ruleset)))?;
        applied.map_err(anyhow::Error::msg)?;
        apply.push(time);
        let (found, time) = namespace.within(|| timed(|| port.read()))?;
        let found = found.map_err(anyhow::Error::msg)?;
        let (equal, compared) = timed(|| {
            found.as_ref() == Some(&rendered.ruleset)
                || Difference::between(&rendered.ruleset, found.as_ref()).is_empty()
        });
        ensure!(equal, "the table in the kernel differs");
        read.push(time);
        test.push(time + compared);
        let (same, time) = namespace.within(|| timed(|| port.read() == Ok(found)))?;
        ensure!(same, "the table in the kernel differs without a change");
        again.push(time);
    }
    for (name, samples, goal) in [
        ("render", render, "goal: under 10 ms"),
        ("one atomic apply", apply, "goal: under 100 ms"),
        ("self-test", test, "goal: under 50 ms"),
        ("  of which read", read, ""),
        ("  if unchanged", again, ""),
    ] {
        let samples = Samples::new(samples);
        println!(
            "  {name:<18} {:>9.2} ms {:>9.2} ms   {goal}",
            millis(samples.percentile(50)),
            millis(samples.percentile(100)),
        );
    }
    Ok(())
}

/// Measures forwarding between the first two hosts of the last of `networks` networks.
fn forwarding(networks: u32, hosts: u32) -> Result<()> {
    let last = networks - 1;
    let (from, to) = (container(networks, last, 0), container(networks, last, 1));
    let router = Router::create(from, to)?;
    router.load("")?;
    ensure!(
        networks == 1 || router.passes(container(networks, 0, 0))?,
        "a packet is lost without rules"
    );
    let without = router.cost(Flow::New)?;
    println!(
        "{networks} networks on {hosts} hosts: {:.0} ns per forwarded packet without rules",
        nanos(without)
    );

    let rendered = Rendered::of(&state(networks, hosts), HostInputs::default());
    let applied = router.within(|| KernelPort::default().apply(&rendered.ruleset))?;
    applied.map_err(anyhow::Error::msg)?;
    report(&router, "jaco", networks, without)?;
    router.load(&rule_chain(networks))?;
    report(&router, "one rule per pair", networks, without)?;
    router.load(&verdict_map(networks, hosts))?;
    report(&router, "verdict map", networks, without)
}

fn report(router: &Router, name: &str, networks: u32, without: Duration) -> Result<()> {
    let established = router.cost(Flow::Established).context("established")?;
    let new = router.cost(Flow::New).context("new")?;
    if networks > 1 {
        let other = container(networks, 0, 0);
        ensure!(!router.passes(other)?, "{name}: a forbidden packet passes");
    }
    let added = |cost: Duration| nanos(cost) - nanos(without);
    println!(
        "  {name:<28} established {:>8.0} ns (+{:.0}), new {:>8.0} ns (+{:.0}), {:>9.0} and {:>9.0} packets/s",
        nanos(established),
        added(established),
        nanos(new),
        added(new),
        1.0 / established.as_secs_f64(),
        1.0 / new.as_secs_f64(),
    );
    Ok(())
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let outcome = work();
    (outcome, start.elapsed())
}

fn nanos(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e9
}

/// Block of a network on a host: those of one host follow each other.
fn block(networks: u32, network: u32, host: u32) -> Ipv4Addr {
    Ipv4Addr::from(POOL + (host * networks + network) * 256)
}

/// Address of a container in [`block`].
fn container(networks: u32, network: u32, host: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(block(networks, network, host)) + 2)
}

/// State with a block of each network on each host.
fn state(networks: u32, hosts: u32) -> State {
    let mut state = State::default();
    for network in 0..networks {
        for host in 0..hosts {
            let row = v1::Subnet {
                deployment: format!("deployment-{:03}", network / 2),
                network: ["front", "back"][network as usize % 2].to_owned(),
                host: format!("host-{host:02}"),
                cidr: format!("{}/24", block(networks, network, host)),
                ..Default::default()
            };
            let key = (
                row.deployment.clone(),
                row.network.clone(),
                row.host.clone(),
            );
            state.subnets.insert(key, Arc::new(row));
        }
    }
    state
}

/// Rules as of a script for iptables: each pair of the first two hosts in a chain.
fn rule_chain(networks: u32) -> String {
    let mut script = "table ip bench {\n chain forward {\n  \
        type filter hook forward priority 0; policy accept;\n  \
        ct state established,related accept\n"
        .to_owned();
    for network in 0..networks {
        let (one, other) = (block(networks, network, 0), block(networks, network, 1));
        for (from, to) in [(one, other), (other, one)] {
            let _ = writeln!(script, "  ip saddr {from}/24 ip daddr {to}/24 accept");
        }
    }
    script + "  ip saddr 10.0.0.0/8 ip daddr 10.0.0.0/8 drop\n }\n}\n"
}

/// Rules in which the source selects the chain of its network.
fn verdict_map(networks: u32, hosts: u32) -> String {
    let mut chains = String::new();
    let mut sources = String::new();
    let mut pool = String::new();
    for network in 0..networks {
        let mut blocks = String::new();
        for host in 0..hosts {
            let block = block(networks, network, host);
            let _ = write!(blocks, "{block}/24,");
            let _ = write!(sources, "{block}/24 : jump n{network},");
            let _ = write!(pool, "{block}/24,");
        }
        let _ = writeln!(
            chains,
            " chain n{network} {{ ip daddr {{ {blocks} }} accept\n }}"
        );
    }
    format!(
        "table ip bench {{\n{chains} set pool {{ type ipv4_addr; flags interval; elements = {{ {pool} }}\n }}\n \
         map sources {{ type ipv4_addr : verdict; flags interval; elements = {{ {sources} }}\n }}\n \
         chain forward {{\n  type filter hook forward priority 0; policy accept;\n  \
         ct state established,related accept\n  ip saddr vmap @sources\n  \
         ip saddr @pool ip daddr @pool drop\n }}\n}}\n"
    )
}
