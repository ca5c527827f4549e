//! Status of the container networks: the reports of the members, and for members without one what
//! the replicated state says.

use jaco_proto::v1::{
    BridgeStatus, Elapsed, MeshDevice, MeshPeer, NetworkStatusResponse, Node, NodeNetwork,
};
use jaco_state::State;

use super::{names::NetworkId, probe::faults};

/// Port of the mesh on a node that never reported one.
pub const DEFAULT_MESH_PORT: u32 = 51820;

/// Returns the status of all members. `report` returns the report of a member with its age.
pub fn status(
    state: &State,
    report: impl Fn(&str) -> Option<(NodeNetwork, std::time::Duration)>,
) -> NetworkStatusResponse {
    let nodes = state.nodes.keys().map(|host| match report(host) {
        Some((report, age)) => NodeNetwork {
            hostname: host.clone(),
            age: Some(elapsed(age)),
            ..report
        },
        None => unreported(state, host),
    });
    let nodes: Vec<_> = nodes.collect();
    let faults = faults::faults(nodes.iter().filter(|node| node.age.is_some()));
    NetworkStatusResponse { nodes, faults }
}

/// Length of time as it is sent, in whole microseconds.
#[must_use]
pub fn elapsed(time: std::time::Duration) -> Elapsed {
    Elapsed {
        micros: u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
    }
}

/// Returns the parts of a node's network status that follow from the state.
#[must_use]
pub fn unreported(state: &State, host: &str) -> NodeNetwork {
    let others = state.nodes.values().filter(|node| node.hostname != host);
    let own = state.nodes.get(host);
    NodeNetwork {
        hostname: host.to_owned(),
        mesh: Some(MeshDevice {
            port: own.map_or(0, |node| mesh_port(node)),
            ..Default::default()
        }),
        peers: others
            .map(|node| MeshPeer {
                hostname: node.hostname.clone(),
                endpoint: mesh_endpoint(node),
                ..Default::default()
            })
            .collect(),
        bridges: bridges(state, host),
        ..Default::default()
    }
}

/// Networks with a block on `host`, with the preferred names of their bridges, as if all were down.
#[must_use]
pub fn bridges(state: &State, host: &str) -> Vec<BridgeStatus> {
    let rows = state.subnets.values().filter(|row| row.host == host);
    rows.map(|row| {
        let id = NetworkId::new(&row.deployment, &row.network);
        BridgeStatus {
            deployment: id.deployment().to_owned(),
            network: id.network().to_owned(),
            block: row.cidr.clone(),
            bridge: id.bridge_name(),
            ..Default::default()
        }
    })
    .collect()
}

/// Endpoint of a node's mesh; empty if its address has no host part.
#[must_use]
pub fn mesh_endpoint(node: &Node) -> String {
    match node.address.rsplit_once(':') {
        Some((host, _)) if !host.is_empty() => format!("{host}:{}", mesh_port(node)),
        Some(_) | None => String::new(),
    }
}

fn mesh_port(node: &Node) -> u32 {
    match node.wg_port {
        0 => DEFAULT_MESH_PORT,
        port => port,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::network::testing::{put_node, put_subnet};

    fn state() -> State {
        let mut state = State::default();
        for (host, address, wg_port) in [("h1", "10.0.0.1:7001", 0), ("h2", "[fd00::2]:7001", 9)] {
            let node = Node {
                hostname: host.to_owned(),
                address: address.to_owned(),
                wg_port,
                ..Default::default()
            };
            put_node(&mut state, node);
        }
        put_subnet(&mut state, ("web", "frontend", "h1", "10.244.0.0/24"));
        state
    }

    #[test]
    fn members_without_report_show_the_state() {
        let reported = NodeNetwork {
            hostname: "forged".to_owned(),
            ..Default::default()
        };
        let age = Duration::from_millis(1500);
        let found = status(&state(), |host| {
            (host == "h2").then(|| (reported.clone(), age))
        });
        let [h1, h2] = &found.nodes[..] else {
            panic!("{found:?}");
        };
        assert_eq!(h1.age, None);
        assert_eq!(h1.mesh.as_ref().unwrap().port, DEFAULT_MESH_PORT);
        assert_eq!(h1.peers.len(), 1);
        assert_eq!(h1.peers[0].endpoint, "[fd00::2]:9");
        assert_eq!(h1.bridges[0].block, "10.244.0.0/24");
        assert_eq!(h1.bridges[0].bridge, "jaco-ca84-9ecc");
        assert_eq!((h2.hostname.as_str(), h2.age), ("h2", Some(elapsed(age))));
        assert!(found.faults.is_empty());
    }

    #[test]
    fn endpoint_needs_a_host() {
        for (address, expected) in [
            ("10.0.0.1:7001", "10.0.0.1:51820"),
            ("a.example:1", "a.example:51820"),
            (":7001", ""),
            ("", ""),
        ] {
            let node = Node {
                address: address.to_owned(),
                ..Default::default()
            };
            assert_eq!(mesh_endpoint(&node), expected, "{address}");
        }
    }
}
