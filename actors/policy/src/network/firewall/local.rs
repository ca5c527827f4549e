//! Knowledge of this host itself about its networks and containers, as far as the ruleset depends on it.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use imbl::{OrdMap, ordmap::DiffItem};
use jaco_engine::{EngineNetwork, cidr::Cidr};
use jaco_proto::v1::ReplicaObserved;

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

/// Last report of each replica actor since the daemon started, by replica.
///
/// They count before the replicated rows, which show an ended container as running for as long as no
/// report can be written. A clone costs nothing.
#[derive(Clone, Debug, Default)]
pub struct LocalReports(OrdMap<String, Arc<ReplicaObserved>>);

impl LocalReports {
    /// Replaces the report of a replica.
    pub fn insert(&mut self, report: ReplicaObserved) {
        self.0.insert(report.id.clone(), Arc::new(report));
    }

    /// Removes the report of a replica whose actor is gone; returns whether there was one.
    pub fn remove(&mut self, replica: &str) -> bool {
        self.0.remove(replica).is_some()
    }

    /// Returns the last report of a replica, if its actor has made one.
    #[must_use]
    pub fn get(&self, replica: &str) -> Option<&ReplicaObserved> {
        self.0.get(replica).map(AsRef::as_ref)
    }

    /// Replicas whose reports differ between two sets.
    pub(super) fn changed<'a>(&'a self, next: &'a Self) -> impl Iterator<Item = &'a String> {
        self.0.diff(&next.0).map(|item| match item {
            DiffItem::Add(id, _)
            | DiffItem::Update { new: (id, _), .. }
            | DiffItem::Remove(id, _) => id,
        })
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
