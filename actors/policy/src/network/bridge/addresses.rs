//! Addresses that containers had on their networks.
//!
//! The report of a replica loses the address of a network as soon as its container is detached.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
};

use jaco_engine::NetworkedContainer;

use super::members::Member;
use crate::network::names::NetworkId;

/// Address by container and network, kept for the lifetime of the process; clones share state.
#[derive(Clone, Debug, Default)]
pub struct KnownAddresses(Arc<Mutex<BTreeMap<(String, NetworkId), Ipv4Addr>>>);

impl KnownAddresses {
    /// Records the reported and the present addresses of `network`'s members, and forgets
    /// containers that are not among `containers`, which are all of the cluster on this host.
    pub fn handle_listing(
        &self,
        network: &NetworkId,
        members: &[Member],
        containers: &[NetworkedContainer],
    ) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (container, address) in members.iter().filter_map(|member| member.reported.clone()) {
            known.insert((container, network.clone()), address);
        }
        let name = network.engine_name();
        for container in containers {
            if let Some(Some(address)) = container.networks.get(&name) {
                known.insert((container.id.clone(), network.clone()), *address);
            }
        }
        let exist: BTreeSet<_> = containers.iter().map(|found| found.id.as_str()).collect();
        known.retain(|(container, _), _| exist.contains(container.as_str()));
    }

    /// Last known address of a container on a network.
    #[must_use]
    pub fn of(&self, container: &str, network: &NetworkId) -> Option<Ipv4Addr> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&(container.to_owned(), network.clone())).copied()
    }
}
