//! Paths that can be probed, according to the address blocks in the state.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use jaco_engine::cidr::Cidr;
use jaco_state::State;

use super::{Expectation, endpoint};
use crate::network::names::NetworkId;

/// End of a probed path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Network of the address.
    pub network: NetworkId,
    /// Host of the address.
    pub host: String,
    /// Address of the probe endpoint, or of the bridge's gateway on the probing host.
    pub address: Ipv4Addr,
}

/// The endpoints of a cluster, as seen from one host.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    /// Networks of this host, with the gateway of each.
    local: BTreeMap<NetworkId, Target>,
    /// Every endpoint of the cluster.
    known: BTreeSet<Target>,
    /// The endpoints that answer probes, in the order of `known`.
    live: Vec<Target>,
    /// Positions in `live` of the endpoints of each network.
    ranges: BTreeMap<NetworkId, (usize, usize)>,
}

impl Paths {
    /// Collects the endpoints of the blocks in `state`, of which those with an address in `live`
    /// answer probes. Blocks that do not parse are left out.
    #[must_use]
    pub fn new(state: &State, host: &str, live: &BTreeSet<Ipv4Addr>) -> Self {
        let mut paths = Self::default();
        for row in state.subnets.values() {
            let Ok(block) = row.cidr.parse::<Cidr>() else {
                continue;
            };
            let network = NetworkId::new(&row.deployment, &row.network);
            let target = |address| Target {
                network: network.clone(),
                host: row.host.clone(),
                address,
            };
            if row.host == host {
                let gateway = target(block.gateway());
                paths.local.insert(network.clone(), gateway);
            }
            paths.known.insert(target(endpoint(block)));
        }
        let live = paths
            .known
            .iter()
            .filter(|target| live.contains(&target.address));
        paths.live = live.cloned().collect();
        for (at, target) in paths.live.iter().enumerate() {
            let range = paths.ranges.entry(target.network.clone());
            range.or_insert((at, at)).1 = at + 1;
        }
        paths
    }

    /// Whether there is an endpoint on `host`.
    #[must_use]
    pub fn reaches(&self, host: &str) -> bool {
        self.known.iter().any(|target| target.host == host)
    }

    /// Networks with a block on this host.
    pub fn networks(&self) -> impl Iterator<Item = &NetworkId> {
        self.local.keys()
    }

    /// Whether `network` has a block on this host.
    #[must_use]
    pub fn is_local(&self, network: &NetworkId) -> bool {
        self.local.contains_key(network)
    }

    /// Whether `target` belongs to the probing host.
    #[must_use]
    pub fn is_on_this_host(&self, target: &Target) -> bool {
        let own = self.local.get(&target.network);
        own.is_some_and(|gateway| gateway.host == target.host)
    }

    /// The candidate number `turn` for a path from `network`; the candidates repeat in the same
    /// order. `None` if there is none.
    ///
    /// An allowed path leads to another host, or to the gateway if no other host answers.
    #[must_use]
    pub fn candidate(
        &self,
        network: &NetworkId,
        expectation: Expectation,
        turn: usize,
    ) -> Option<&Target> {
        let gateway = self.local.get(network)?;
        let (first, end) = self.ranges.get(network).copied().unwrap_or_default();
        match expectation {
            Expectation::Allowed => {
                let same = &self.live[first..end];
                let is_other = |target: &&Target| target.host != gateway.host;
                let others = same.iter().filter(is_other).count();
                match turn.checked_rem(others) {
                    Some(at) => same.iter().filter(is_other).nth(at),
                    None => Some(gateway),
                }
            }
            Expectation::Forbidden => {
                let others = self.live.len() - (end - first);
                let at = turn.checked_rem(others)?;
                self.live
                    .get(if at < first { at } else { at + end - first })
            }
        }
    }

    /// Whether a fault of the path to `target` still means something: its block exists, and for an
    /// allowed path its endpoint answers others.
    #[must_use]
    pub fn is_current(&self, target: &Target, expectation: Expectation) -> bool {
        match expectation {
            Expectation::Allowed => {
                let is_gateway = self.local.get(&target.network) == Some(target);
                is_gateway || self.live.binary_search(target).is_ok()
            }
            Expectation::Forbidden => self.known.contains(target),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::network::testing::state;

    /// All endpoint addresses of `state`.
    pub(crate) fn all_live(state: &State) -> BTreeSet<Ipv4Addr> {
        let rows = state.subnets.values();
        rows.filter_map(|row| row.cidr.parse().ok().map(endpoint))
            .collect()
    }

    fn turns(paths: &Paths, from: &NetworkId, expectation: Expectation) -> Vec<String> {
        let targets = (0..4).map(|turn| paths.candidate(from, expectation, turn));
        targets
            .flatten()
            .map(|target| target.address.to_string())
            .collect()
    }

    #[test]
    fn candidates_rotate_over_hosts_and_networks() {
        let state = state(&[
            ("a", "_default", "h1", "10.244.1.0/24"),
            ("a", "_default", "h2", "10.244.2.0/24"),
            ("a", "_default", "h3", "10.244.3.0/24"),
            ("a", "front", "h1", "10.244.4.0/24"),
            ("b", "_default", "h2", "10.244.5.0/24"),
            ("b", "_default", "h3", "unparsable"),
        ]);
        let paths = Paths::new(&state, "h1", &all_live(&state));
        let (own, front) = (NetworkId::new("a", "default"), NetworkId::new("a", "front"));
        assert!(paths.networks().eq([&own, &front]));
        let table = [
            (
                &own,
                Expectation::Allowed,
                ["10.244.2.254", "10.244.3.254"].repeat(2),
            ),
            (
                &own,
                Expectation::Forbidden,
                ["10.244.4.254", "10.244.5.254"].repeat(2),
            ),
            // A network of this host alone: its gateway.
            (&front, Expectation::Allowed, ["10.244.4.1"].repeat(4)),
            (
                &front,
                Expectation::Forbidden,
                vec![
                    "10.244.1.254",
                    "10.244.2.254",
                    "10.244.3.254",
                    "10.244.5.254",
                ],
            ),
        ];
        for (from, expectation, expected) in table {
            assert_eq!(turns(&paths, from, expectation), expected, "{from}");
        }
        let elsewhere = NetworkId::new("b", "_default");
        assert_eq!(
            paths.candidate(&elsewhere, Expectation::Allowed, 0),
            None,
            "not on this host"
        );
    }

    #[test]
    fn silent_endpoints_are_no_candidates() {
        let state = state(&[
            ("a", "_default", "h1", "10.244.1.0/24"),
            ("a", "_default", "h2", "10.244.2.0/24"),
            ("b", "_default", "h2", "10.244.5.0/24"),
        ]);
        let paths = Paths::new(&state, "h1", &BTreeSet::new());
        let own = NetworkId::new("a", "_default");
        assert_eq!(turns(&paths, &own, Expectation::Allowed), ["10.244.1.1"; 4]);
        assert!(turns(&paths, &own, Expectation::Forbidden).is_empty());
        let target = |deployment, address: [u8; 4]| Target {
            network: NetworkId::new(deployment, "_default"),
            host: "h2".to_owned(),
            address: address.into(),
        };
        let (same, other) = (
            target("a", [10, 244, 2, 254]),
            target("b", [10, 244, 5, 254]),
        );
        assert!(!paths.is_current(&same, Expectation::Allowed));
        assert!(paths.is_current(&other, Expectation::Forbidden));
        let gone = target("b", [10, 244, 9, 254]);
        assert!(!paths.is_current(&gone, Expectation::Forbidden));
    }

    proptest! {
        #[test]
        fn expectation_follows_the_networks(
            rows in prop::collection::btree_map((0..4_u8, 0..2_u8, 0..4_u8), any::<bool>(), 0..20),
            turn in 0_usize..40,
        ) {
            let name = |prefix: &str, number: u8| format!("{prefix}{number}");
            let rows: Vec<_> = rows.keys().enumerate().map(|(at, &(d, n, h))| {
                (name("d", d), name("n", n), name("h", h), format!("10.244.{at}.0/24"))
            }).collect();
            let rows: Vec<_> = rows.iter().map(|(d, n, h, c)| (d.as_str(), n.as_str(), h.as_str(), c.as_str())).collect();
            let state = state(&rows);
            let paths = Paths::new(&state, "h0", &all_live(&state));
            for from in paths.networks() {
                if let Some(target) = paths.candidate(from, Expectation::Allowed, turn) {
                    prop_assert_eq!(&target.network, from);
                }
                let forbidden = paths.candidate(from, Expectation::Forbidden, turn);
                prop_assert!(forbidden.is_none_or(|target| target.network != *from));
                let others = rows.iter().any(|row| NetworkId::new(row.0, row.1) != *from);
                prop_assert_eq!(forbidden.is_some(), others);
            }
        }
    }
}
