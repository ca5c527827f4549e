//! Report of a node about its container networks.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use jaco_proto::v1::{
    DroppedPackets, MeshDevice, MeshPeer, MeshState, NodeNetwork, PathEnd, PathExpectation,
    PathJudgement, PathVerdict,
};
use jaco_state::State;

use super::{
    Expectation,
    core::{Core, Judgement, Outcome, Verdict},
    drops::Drops,
    paths::Target,
    throughput::{Counters, Meter},
};
use crate::network::{
    names::NetworkId,
    status::{self, elapsed},
};

/// The mesh as its data plane sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeshView {
    /// State of the device.
    pub state: MeshState,
    /// Why it does not work; empty if it does.
    pub reason: String,
    /// Address of this node.
    pub address: Option<Ipv4Addr>,
    /// UDP port.
    pub port: Option<u16>,
    /// Connections to other nodes.
    pub peers: Vec<PeerView>,
    /// Packets that the node dropped.
    pub drops: Drops,
}

/// A mesh connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerView {
    /// Public key of the other node, 32 bytes.
    pub public_key: Vec<u8>,
    /// Where packets go.
    pub endpoint: Option<SocketAddr>,
    /// Time since the last handshake.
    pub handshake_age: Option<Duration>,
    /// Round-trip time, if the data plane measures it.
    pub rtt: Option<Duration>,
    /// Fraction of lost packets from 0 to 1, if the data plane measures it.
    pub loss: Option<f64>,
    /// Bytes since the session began.
    pub counters: Counters,
}

/// A bridge of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BridgeView {
    /// Name of the Linux bridge.
    pub bridge: String,
    /// Whether it is up.
    pub up: bool,
    /// Address of the probe endpoint, if it answers.
    pub endpoint: Option<Ipv4Addr>,
}

/// Builds the reports of one host.
#[derive(Clone, Debug, Default)]
pub struct Reporter {
    meters: BTreeMap<Vec<u8>, Meter>,
}

impl Reporter {
    /// Builds a report. Loss and round-trip time of a peer are those of the data plane, else those of
    /// the probes.
    pub fn report(
        &mut self,
        now: Instant,
        (state, host): (&State, &str),
        core: &Core,
        bridges: &BTreeMap<NetworkId, BridgeView>,
        mesh: &MeshView,
    ) -> NodeNetwork {
        let mut report = status::unreported(state, host);
        let known = report.mesh.unwrap_or_default();
        report.mesh = Some(MeshDevice {
            state: mesh.state.into(),
            address: mesh.address.map(|ip| ip.to_string()).unwrap_or_default(),
            port: mesh.port.map_or(known.port, u32::from),
            reason: mesh.reason.clone(),
        });
        self.meters
            .retain(|key, _| mesh.peers.iter().any(|peer| peer.public_key == *key));
        for peer in &mut report.peers {
            let key = state.nodes.get(&peer.hostname);
            let key = key.map_or(&[][..], |node| &node.wireguard_pubkey);
            let seen = mesh.peers.iter().find(|seen| seen.public_key == key);
            if let Some(seen) = seen {
                let meter = self.meters.entry(key.to_vec()).or_default();
                let rates = meter.handle_sample(now, seen.counters);
                fill(peer, seen);
                peer.rx_bytes_per_second = rates.rx;
                peer.tx_bytes_per_second = rates.tx;
            }
            let measured = seen.is_some_and(|seen| seen.loss.is_some());
            if let Some(quality) = core.links().of(&peer.hostname) {
                peer.rtt = quality.rtt.map(elapsed).or(peer.rtt);
                if !measured {
                    peer.loss = quality.loss;
                }
            }
        }
        for bridge in &mut report.bridges {
            let id = NetworkId::new(&bridge.deployment, &bridge.network);
            if let Some(seen) = bridges.get(&id) {
                bridge.bridge.clone_from(&seen.bridge);
                bridge.up = seen.up;
                let address = seen.endpoint.map(|address| address.to_string());
                bridge.probe_address = address.unwrap_or_default();
            }
        }
        let drops = mesh.drops.iter().filter(|(_, packets)| **packets > 0);
        report.drops = drops
            .map(|(reason, packets)| DroppedPackets {
                reason: reason.name().to_owned(),
                packets: *packets,
            })
            .collect();
        report.paths = core.verdicts().map(|seen| verdict(now, &seen)).collect();
        report
    }
}

/// Returns the parts of a report whose change other members should see at once.
#[must_use]
pub fn essence(report: &NodeNetwork) -> NodeNetwork {
    let mut report = report.clone();
    report.peers.clear();
    report.drops.clear();
    report.age = None;
    for path in &mut report.paths {
        path.target = None;
        path.probe_age = None;
        path.rtt = None;
    }
    report
}

fn fill(peer: &mut MeshPeer, seen: &PeerView) {
    if let Some(endpoint) = seen.endpoint {
        peer.endpoint = endpoint.to_string();
    }
    peer.handshake_age = seen.handshake_age.map(elapsed);
    peer.rtt = seen.rtt.map(elapsed);
    peer.loss = seen.loss.unwrap_or_default();
    peer.rx_bytes = seen.counters.rx;
    peer.tx_bytes = seen.counters.tx;
}

fn verdict(now: Instant, seen: &Verdict) -> PathVerdict {
    let (target, age, outcome) = match &seen.last {
        Some((target, at, outcome)) => (
            Some(end(target)),
            Some(now.saturating_duration_since(*at)),
            Some(outcome),
        ),
        None => (None, None, None),
    };
    PathVerdict {
        deployment: seen.from.deployment().to_owned(),
        network: seen.from.network().to_owned(),
        expectation: match seen.expectation {
            Expectation::Allowed => PathExpectation::Allowed,
            Expectation::Forbidden => PathExpectation::Forbidden,
        }
        .into(),
        judgement: match seen.judgement {
            Judgement::Untested => PathJudgement::Unspecified,
            Judgement::AsExpected => PathJudgement::Ok,
            Judgement::Violated => PathJudgement::Violated,
        }
        .into(),
        target,
        probe_age: age.map(elapsed),
        rtt: match outcome {
            Some(Outcome::Answered(rtt)) => Some(elapsed(*rtt)),
            Some(Outcome::Silent | Outcome::NotSent) | None => None,
        },
        violations: seen.violations.iter().map(end).collect(),
    }
}

fn end(target: &Target) -> PathEnd {
    PathEnd {
        hostname: target.host.clone(),
        deployment: target.network.deployment().to_owned(),
        network: target.network.network().to_owned(),
        address: target.address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use jaco_proto::v1::Node;

    use super::*;
    use crate::network::{
        probe::{
            drops::DropReason,
            paths::{Paths, tests::all_live},
        },
        testing::{put_node, state},
    };

    fn cluster() -> State {
        let mut state = state(&[
            ("a", "_default", "h1", "10.244.1.0/24"),
            ("a", "_default", "h2", "10.244.2.0/24"),
        ]);
        for (host, key) in [("h1", 1), ("h2", 2)] {
            let node = Node {
                hostname: host.to_owned(),
                address: format!("{host}:7001"),
                wireguard_pubkey: vec![key; 32],
                ..Default::default()
            };
            put_node(&mut state, node);
        }
        state
    }

    fn mesh(loss: Option<f64>, rx: u64, drops: &[(DropReason, u64)]) -> MeshView {
        MeshView {
            state: MeshState::Up,
            reason: String::new(),
            address: Some([10, 99, 0, 1].into()),
            port: Some(9),
            peers: vec![PeerView {
                public_key: vec![2; 32],
                handshake_age: Some(Duration::from_secs(4)),
                loss,
                counters: Counters { rx, tx: 0 },
                ..Default::default()
            }],
            drops: drops.iter().copied().collect(),
        }
    }

    #[test]
    fn report_joins_mesh_probes_and_bridges() {
        let state = cluster();
        let start = Instant::now();
        let mut core = Core::default();
        core.handle_paths(start, Paths::new(&state, "h1", &all_live(&state)));
        let round = core.poll_timeout().unwrap();
        core.handle_timeout(round);
        let rtt = Duration::from_millis(7);
        while let Some(action) = core.poll_action() {
            let crate::network::probe::core::Action::Send(probe) = action else {
                continue;
            };
            core.handle_outcome(round, probe.id, Outcome::Answered(rtt));
        }
        let bridge = BridgeView {
            bridge: "jaco-x".to_owned(),
            up: true,
            endpoint: Some([10, 244, 1, 254].into()),
        };
        let bridges = [(NetworkId::new("a", "_default"), bridge)].into();
        let mut reporter = Reporter::default();
        let now = round + Duration::from_secs(2);
        let mut report = |now, mesh| reporter.report(now, (&state, "h1"), &core, &bridges, &mesh);
        let drops = [(DropReason::OutsideMesh, 0), (DropReason::MeshInvalid, 8)];
        let first = report(now, mesh(None, 1000, &drops));
        let [dropped] = &first.drops[..] else {
            panic!("{first:?}");
        };
        assert_eq!(
            (dropped.reason.as_str(), dropped.packets),
            ("mesh_invalid", 8)
        );
        let device = first.mesh.clone().unwrap();
        assert_eq!((device.address.as_str(), device.port), ("10.99.0.1", 9));
        let [peer] = &first.peers[..] else {
            panic!("{first:?}");
        };
        assert_eq!(peer.rtt, Some(elapsed(rtt)));
        assert_eq!(peer.endpoint, "h2:51820");
        let [bridge] = &first.bridges[..] else {
            panic!("{first:?}");
        };
        assert_eq!(bridge.probe_address, "10.244.1.254");
        assert_eq!((bridge.bridge.as_str(), bridge.up), ("jaco-x", true));
        let judgements: Vec<_> = first.paths.iter().map(|path| path.judgement()).collect();
        assert_eq!(
            judgements,
            [PathJudgement::Ok, PathJudgement::Unspecified],
            "no other network"
        );
        assert_eq!(
            first.paths[0].probe_age,
            Some(elapsed(Duration::from_secs(2)))
        );
        // Volatile parts differ, the essence does not.
        let second = report(now + Duration::from_secs(1), mesh(Some(0.5), 3000, &[]));
        assert_eq!(second.peers[0].rx_bytes_per_second, 2000);
        assert_eq!(second.peers[0].loss, 0.5);
        assert_ne!(second, first);
        assert_eq!(essence(&second), essence(&first));
    }
}
