//! The networks that the engine of this host has, as far as the ruleset depends on them.

use std::{collections::BTreeMap, time::Instant};

use jaco_engine::{EngineNetwork, cidr::Cidr};

use crate::network::{
    bridge::plan::{is_of_cluster, owner},
    names::NetworkId,
};

/// Blocks of JACO's networks in the engine of this host. A container has an address of a block only
/// while such a network exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalNetworks {
    /// Time at which the engine was asked; later changes may be missing.
    pub begun: Instant,
    /// Network and block; no network if it is one of another cluster.
    pub blocks: Vec<(Option<NetworkId>, Cidr)>,
    /// Names of their Linux bridges, as far as they were requested.
    pub bridges: BTreeMap<NetworkId, String>,
}

impl LocalNetworks {
    /// Selects JACO's networks from a list for which the engine was asked at `begun`.
    #[must_use]
    pub fn of_engine(begun: Instant, networks: &[EngineNetwork], cluster_id: &str) -> Self {
        let of = |network: &EngineNetwork| {
            let owner = owner(network)?;
            let id = is_of_cluster(network, cluster_id).then_some(owner);
            let subnets = network.subnets.iter();
            let blocks = subnets.filter_map(|subnet| subnet.parse().ok());
            let blocks: Vec<_> = blocks.map(|block| (id.clone(), block)).collect();
            Some(blocks)
        };
        let bridge = |network: &EngineNetwork| {
            let owner = owner(network)?;
            is_of_cluster(network, cluster_id).then_some(())?;
            Some((owner, network.bridge.clone()?))
        };
        Self {
            begun,
            blocks: networks.iter().filter_map(of).flatten().collect(),
            bridges: networks.iter().filter_map(bridge).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use jaco_engine::labels::{LABEL_CLUSTER, LABEL_DEPLOYMENT, LABEL_NETWORK};

    use super::*;

    #[test]
    fn only_networks_of_this_cluster_are_named() {
        let network = |cluster: &str, subnets: &[&str]| EngineNetwork {
            labels: [
                (LABEL_CLUSTER, cluster),
                (LABEL_DEPLOYMENT, "web"),
                (LABEL_NETWORK, "a"),
            ]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
            subnets: subnets.iter().map(ToString::to_string).collect(),
            bridge: Some(format!("br-{cluster}")),
            ..Default::default()
        };
        let foreign = EngineNetwork {
            subnets: vec!["10.244.9.0/24".to_owned()],
            ..Default::default()
        };
        let networks = [
            network("c1", &["10.244.1.0/24", "fd00::/64"]),
            network("c2", &["10.244.2.0/24"]),
            foreign,
        ];
        let local = LocalNetworks::of_engine(Instant::now(), &networks, "c1");
        let block = |text: &str| text.parse().unwrap();
        assert_eq!(
            local.blocks,
            [
                (Some(NetworkId::new("web", "a")), block("10.244.1.0/24")),
                (None, block("10.244.2.0/24")),
            ]
        );
        let bridge = (NetworkId::new("web", "a"), "br-c1".to_owned());
        assert_eq!(local.bridges, [bridge].into());
    }
}
