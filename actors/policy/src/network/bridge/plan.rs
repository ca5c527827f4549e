//! Steps from the engine's networks to the wanted one. Pure.

use std::{collections::BTreeMap, net::IpAddr};

use jaco_engine::{
    EngineNetwork, NetworkSpec,
    cidr::Cidr,
    labels::{LABEL_CLUSTER, LABEL_DEPLOYMENT, LABEL_NETWORK, LABEL_SUBNET},
};
use jaco_proto::config::advertise::Interface;

use crate::network::{names::NetworkId, probe};

/// MTU that leaves room for the mesh's encapsulation in a 1500-byte frame.
pub const MTU: u16 = 1420;

/// A network of this host as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredNetwork {
    /// Deployment and network name.
    pub id: NetworkId,
    /// Cluster it belongs to.
    pub cluster_id: String,
    /// This host's address block.
    pub cidr: Cidr,
}

/// Next step towards the wanted network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The network exists as wanted.
    Reuse(EngineNetwork),
    /// Remove these networks of ours and their containers, then plan again.
    Remove(Vec<EngineNetwork>),
    /// Create the network.
    Create(NetworkSpec),
}

/// Why the wanted network cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A network of this name was not created by JACO and is never touched.
    #[error("network {0:?} exists and is foreign")]
    Foreign(String),
    /// A network of this name belongs to another deployment or network.
    #[error("network_name_conflict: {name:?} belongs to {owner}")]
    NameConflict {
        /// Engine name that both networks map to.
        name: String,
        /// Network that has the name.
        owner: NetworkId,
    },
    /// Both candidate names of the Linux bridge are taken.
    #[error("bridge names {0:?} and {1:?} are both taken")]
    NoBridgeName(String, String),
    /// An interface that is no bridge of the engine has an address of the block.
    #[error("block {cidr} contains an address of interface {interface:?}")]
    AddressInUse {
        /// The block.
        cidr: Cidr,
        /// Name of the interface.
        interface: String,
    },
}

/// Compares the engine's networks and the host's interfaces with `wanted`.
///
/// # Errors
/// [`Error`]; nothing has to be undone.
pub fn plan(
    wanted: &DesiredNetwork,
    networks: &[EngineNetwork],
    interfaces: &[Interface],
) -> Result<Plan, Error> {
    let name = wanted.id.engine_name();
    let same: Vec<_> = networks.iter().filter(|found| found.name == name).collect();
    for found in &same {
        match owner(found) {
            None => return Err(Error::Foreign(name)),
            Some(owner) if owner != wanted.id => return Err(Error::NameConflict { name, owner }),
            Some(_) => {}
        }
    }
    match same.as_slice() {
        [] => {}
        [only] if matches_wanted(only, wanted) => return Ok(Plan::Reuse((*only).clone())),
        differing => return Ok(Plan::Remove(differing.iter().copied().cloned().collect())),
    }
    let engine_bridge = |bridge: &str| {
        let mut bridges = networks.iter().filter_map(|found| found.bridge.as_deref());
        bridges.any(|other| other == bridge)
    };
    let holds_address = |interface: &&Interface| {
        let mut addresses = interface.addresses.iter();
        !engine_bridge(&interface.name) && addresses.any(|address| contains(wanted.cidr, *address))
    };
    if let Some(holder) = interfaces.iter().find(holds_address) {
        return Err(Error::AddressInUse {
            cidr: wanted.cidr,
            interface: holder.name.clone(),
        });
    }
    let taken =
        |bridge: &str| engine_bridge(bridge) || interfaces.iter().any(|other| other.name == bridge);
    let (short, fallback) = (wanted.id.bridge_name(), wanted.id.fallback_bridge_name());
    let bridge = match (taken(&short), taken(&fallback)) {
        (false, _) => short,
        (true, false) => fallback,
        (true, true) => return Err(Error::NoBridgeName(short, fallback)),
    };
    Ok(Plan::Create(NetworkSpec {
        reserved: Some(probe::endpoint(wanted.cidr)),
        name,
        bridge,
        cidr: wanted.cidr,
        mtu: MTU,
        labels: labels(wanted),
    }))
}

/// The (deployment, network) in the labels of a network, regardless of its cluster.
#[must_use]
pub fn owner(network: &EngineNetwork) -> Option<NetworkId> {
    let deployment = network.labels.get(LABEL_DEPLOYMENT)?;
    let name = network.labels.get(LABEL_NETWORK)?;
    Some(NetworkId::new(deployment, name))
}

/// Whether a network belongs to this cluster.
#[must_use]
pub fn is_of_cluster(network: &EngineNetwork, cluster_id: &str) -> bool {
    let label = network.labels.get(LABEL_CLUSTER);
    label.is_some_and(|id| id == cluster_id)
}

/// Compares the live subnet, because the label only records what was once requested.
fn matches_wanted(found: &EngineNetwork, wanted: &DesiredNetwork) -> bool {
    let live = found.subnets.first();
    let live = live.and_then(|subnet| subnet.parse::<Cidr>().ok());
    live == Some(wanted.cidr) && is_of_cluster(found, &wanted.cluster_id)
}

fn contains(cidr: Cidr, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => Cidr::aligned(address.into(), 32).overlaps(cidr),
        IpAddr::V6(_) => false,
    }
}

fn labels(wanted: &DesiredNetwork) -> BTreeMap<String, String> {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    BTreeMap::from([
        label(LABEL_CLUSTER, &wanted.cluster_id),
        label(LABEL_DEPLOYMENT, wanted.id.deployment()),
        label(LABEL_NETWORK, wanted.id.network()),
        label(LABEL_SUBNET, &wanted.cidr.to_string()),
    ])
}

#[cfg(test)]
mod tests;
