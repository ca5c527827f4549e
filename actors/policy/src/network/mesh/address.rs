//! Addresses of the nodes in the mesh, computed by every node from the list of nodes.

use std::{collections::BTreeMap, net::Ipv4Addr};

use jaco_engine::cidr::Cidr;
use jaco_proto::v1;
use sha2::{Digest as _, Sha256};

/// Number of addresses; 0 and 255 are the network and its broadcast address.
const ADDRESSES: u8 = 254;

/// The network of the mesh addresses, `10.99.0.0/24`.
#[must_use]
pub fn network() -> Cidr {
    Cidr::aligned(u32::from_be_bytes([10, 99, 0, 0]), 24)
}

/// The address with the last octet `octet`.
fn address(octet: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, octet)
}

/// Last octet of the address that a node takes unless another one has it, 1 to 254.
fn preferred(hostname: &str) -> u8 {
    let digest = Sha256::digest(hostname);
    match digest[0] {
        0 | 255 => {
            let number = u16::from_be_bytes([digest[0], digest[1]]) % u16::from(ADDRESSES);
            u8::try_from(number).unwrap_or_default() + 1
        }
        octet => octet,
    }
}

/// Key that sorts nodes by the time they joined, then by name.
pub(super) fn join_order(node: &v1::Node) -> (i64, i32, &str) {
    let joined = node.joined_at.unwrap_or_default();
    (joined.seconds, joined.nanos, &node.hostname)
}

/// Assigns each node its address. Of two nodes that prefer the same one the node that joined later
/// takes the next free address upward. Nodes beyond the 254th have none.
#[must_use]
pub fn assign<'a>(nodes: impl IntoIterator<Item = &'a v1::Node>) -> BTreeMap<&'a str, Ipv4Addr> {
    let mut nodes: Vec<&v1::Node> = nodes.into_iter().collect();
    nodes.sort_by_key(|node| join_order(node));
    let mut taken = [false; ADDRESSES as usize];
    let mut assigned = BTreeMap::new();
    for node in nodes {
        let first = usize::from(preferred(&node.hostname)) - 1;
        let upward = (first..taken.len()).chain(0..first);
        let Some(free) = { upward }.find(|at| !taken[*at]) else {
            break;
        };
        taken[free] = true;
        let octet = u8::try_from(free + 1).unwrap_or(ADDRESSES);
        assigned.insert(node.hostname.as_str(), address(octet));
    }
    assigned
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::network::mesh::testing::node;

    #[test]
    fn address_follows_from_the_hostname() {
        for (hostname, octet) in [
            ("node-1", 53),
            ("node-2", 23),
            ("node-3", 168),
            ("n277", 31),
        ] {
            let node = node(hostname, 0);
            assert_eq!(assign([&node])[hostname], address(octet), "{hostname}");
        }
    }

    #[test]
    fn node_that_joined_later_yields() {
        // All three prefer the address of `node-1`.
        let same: Vec<String> = (0..)
            .map(|number| format!("x{number}"))
            .filter(|hostname| preferred(hostname) == 53)
            .take(2)
            .collect();
        let nodes = [node(&same[0], 9), node("node-1", 5), node(&same[1], 9)];
        let assigned = assign(&nodes);
        assert_eq!(assigned["node-1"], address(53));
        let (first, second) = (same.iter().min().unwrap(), same.iter().max().unwrap());
        assert_eq!(assigned[first.as_str()], address(54));
        assert_eq!(assigned[second.as_str()], address(55));
    }

    #[test]
    fn every_address_is_used_before_one_is_missing() {
        let nodes: Vec<v1::Node> = (0..300).map(|at| node(&format!("n{at}"), at)).collect();
        let assigned = assign(&nodes);
        assert_eq!(assigned.len(), 254);
        // Members keep their addresses when there are too many.
        assert!((0..254).all(|at| assigned.contains_key(format!("n{at}").as_str())));
    }

    proptest! {
        #[test]
        fn nodes_agree_and_share_no_address(
            hosts in prop::collection::btree_map("[a-z]{1,3}", 0..4_i64, 0..80),
            rotation in 0..80_usize,
        ) {
            let nodes: Vec<v1::Node> = hosts.iter().map(|(host, at)| node(host, *at)).collect();
            let assigned = assign(&nodes);
            prop_assert_eq!(assigned.len(), nodes.len());
            let distinct: std::collections::BTreeSet<_> = assigned.values().collect();
            prop_assert_eq!(distinct.len(), nodes.len());
            let mut elsewhere = nodes.clone();
            if !elsewhere.is_empty() {
                elsewhere.rotate_left(rotation % nodes.len());
            }
            prop_assert_eq!(assign(&elsewhere), assigned);
        }
    }
}
