//! Time of a change of the mesh's peers: one device with 64 of them, in a network namespace.
//!
//! Each change replaces the whole set, as `MeshActor` does. No peer exists; new ones are greeted.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result};
use clap::Parser;
use jaco_bench::{Samples, millis};
use jaco_net::{
    netns::Namespace,
    wireguard::{Config, Device, Peer, PrivateKey},
};

#[derive(Parser)]
#[command(about = "Measures changes of the mesh's peers")]
struct Options {
    /// Peers of the device.
    #[arg(long, default_value_t = 64)]
    peers: u8,
    /// Changes of each kind.
    #[arg(long, default_value_t = 1000)]
    changes: usize,
}

#[expect(clippy::print_stdout, reason = "the figures are the output")]
fn main() -> Result<()> {
    let options = Options::parse();
    let namespace = Namespace::create()?;
    let config = Config {
        name: "jaco0".to_owned(),
        mtu: 1420,
        private_key: PrivateKey::generate()?,
        port: 0,
        workers: None,
    };
    let device = namespace.within(|| Device::open(config))??;
    let all: Vec<Peer> = (1..=options.peers).map(peer).collect::<Result<_>>()?;
    let (_, others) = all.split_last().context("no peers")?;
    let mut grown = all.clone();
    for (peer, number) in grown.iter_mut().zip(1..) {
        peer.allowed_ips
            .push((Ipv4Addr::new(10, 245, number, 0), 24));
    }
    println!(
        "{} peers (goal: one more or less under 1 ms)",
        options.peers
    );
    let kinds = [
        ("one peer more", others.to_vec(), all.clone()),
        ("one peer less", all.clone(), others.to_vec()),
        ("a network more for all", all.clone(), grown),
        ("nothing", all.clone(), all.clone()),
        ("all peers new", Vec::new(), all.clone()),
    ];
    for (name, before, after) in kinds {
        let mut samples = Vec::with_capacity(options.changes);
        for _ in 0..options.changes {
            device.set_peers(before.clone())?;
            let wanted = after.clone();
            let began = std::time::Instant::now();
            device.set_peers(wanted)?;
            samples.push(began.elapsed());
        }
        let samples = Samples::new(samples);
        println!(
            "{name:<22} p50 {:>7.3} ms  p99 {:>7.3} ms  longest {:>7.3} ms",
            millis(samples.percentile(50)),
            millis(samples.percentile(99)),
            millis(samples.percentile(100)),
        );
    }
    Ok(())
}

fn peer(number: u8) -> Result<Peer> {
    Ok(Peer {
        public_key: PrivateKey::generate()?.public(),
        endpoint: Some(SocketAddr::from(([127, 0, 0, 1], 9))),
        allowed_ips: vec![
            (Ipv4Addr::new(10, 99, 0, number), 32),
            (Ipv4Addr::new(10, 244, number, 0), 24),
        ],
        keepalive: None,
    })
}
