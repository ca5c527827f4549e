//! States for the tests.

use jaco_engine::cidr::Cidr;
use jaco_proto::v1;
use jaco_state::State;

use super::wanted::Wanted;
use crate::network::testing::{put_node, put_subnet};

/// Pool of the blocks in the tests.
pub(super) fn pool() -> Cidr {
    Cidr::aligned(0x0af4_0000, 16)
}

/// Mesh without isolation.
pub(super) fn wanted_of(state: &State, hostname: &str, port: u16) -> Option<Wanted> {
    Wanted::of(state, hostname, port, pool(), |_, _| true)
}

/// A member that joined at the second `joined`.
pub(super) fn node(hostname: &str, joined: i64) -> v1::Node {
    let mut key = vec![0; 32];
    key[..hostname.len().min(32)].copy_from_slice(&hostname.as_bytes()[..hostname.len().min(32)]);
    v1::Node {
        hostname: hostname.to_owned(),
        address: "192.0.2.7:7001".to_owned(),
        wireguard_pubkey: key,
        wg_port: 51820,
        joined_at: Some(prost_types::Timestamp {
            seconds: joined,
            nanos: 0,
        }),
        ..Default::default()
    }
}

/// A state with these members.
pub(super) fn state(nodes: &[v1::Node]) -> State {
    let mut state = State::default();
    for node in nodes {
        put_node(&mut state, node.clone());
    }
    state
}

/// Adds the block of a host.
pub(super) fn allocate(state: &mut State, host: &str, cidr: &str) {
    put_subnet(state, ("web", cidr, host, cidr));
}
