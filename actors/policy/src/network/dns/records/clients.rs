//! Networks of each container, by its addresses.

use std::{net::Ipv4Addr, sync::Arc};

use imbl::OrdMap;
use jaco_proto::v1::ReplicaObserved;

use crate::network::reported::{addresses, is_alive};

/// Names of the engine networks of each observed container, by address and replica.
///
/// An address that moves from one container to the next belongs to both until the end of the first
/// one is observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clients(OrdMap<Ipv4Addr, OrdMap<String, Arc<[String]>>>);

impl Clients {
    /// Replaces the addresses of one replica.
    pub(super) fn update(
        &mut self,
        before: Option<&ReplicaObserved>,
        after: Option<&ReplicaObserved>,
    ) {
        let unchanged = |(a, b): (&ReplicaObserved, &ReplicaObserved)| {
            a.details == b.details && is_alive(a) == is_alive(b)
        };
        if before.zip(after).is_some_and(unchanged) {
            return;
        }
        for (row, address, _) in before.into_iter().flat_map(attachments) {
            if let Some(replicas) = self.0.get_mut(&address) {
                replicas.remove(&row.id);
                if replicas.is_empty() {
                    self.0.remove(&address);
                }
            }
        }
        let networks: Arc<[String]> = after
            .into_iter()
            .flat_map(attachments)
            .map(|(_, _, network)| network.to_owned())
            .collect();
        for (row, address, _) in after.into_iter().flat_map(attachments) {
            let replicas = self.0.entry(address).or_default();
            replicas.insert(row.id.clone(), Arc::clone(&networks));
        }
    }

    /// Whether a container with `address` on engine network `network` is known.
    pub(super) fn knows(&self, address: Ipv4Addr, network: &str) -> bool {
        self.is_on(address, network, network)
    }

    /// Whether a container of a replica for which `is_meant` is true has `address` on engine network
    /// `network`.
    pub(super) fn is_any(
        &self,
        address: Ipv4Addr,
        network: &str,
        is_meant: impl Fn(&str) -> bool,
    ) -> bool {
        self.replicas(address, network).any(|id| is_meant(id))
    }

    /// Replicas whose container has `address` on engine network `network`.
    pub(super) fn replicas(
        &self,
        address: Ipv4Addr,
        network: &str,
    ) -> impl Iterator<Item = &String> {
        let replicas = self.0.get(&address).into_iter().flatten();
        let on = replicas.filter(move |(_, networks)| networks.iter().any(|on| on == network));
        on.map(|(id, _)| id)
    }

    /// Whether a container with `address` on engine network `network` is on network `other` too.
    pub(super) fn is_on(&self, address: Ipv4Addr, network: &str, other: &str) -> bool {
        let has = |list: &[String], name: &str| list.iter().any(|listed| listed == name);
        let mut replicas = self.0.get(&address).into_iter().flat_map(OrdMap::values);
        replicas.any(|networks| has(networks, network) && has(networks, other))
    }
}

/// Addresses of a replica's container with the name of the engine network.
fn attachments(row: &ReplicaObserved) -> impl Iterator<Item = (&ReplicaObserved, Ipv4Addr, &str)> {
    addresses(row).map(move |(network, address)| (row, address, network))
}
