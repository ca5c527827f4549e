//! The bridge of one (deployment, network) on this host.
//!
//! [`plan`] compares the engine's networks with the one that is wanted; `core` decides when
//! to ensure and when to remove it; `actor` is the shell around both.

mod actor;
mod core;
mod refused;

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use super::{
    cidr::Cidr,
    engine::{EngineError, EngineNetwork, NetworkSpec, SharedEngine},
    ipam,
    names::NetworkId,
};
use crate::labels::{LABEL_CLUSTER, LABEL_DEPLOYMENT, LABEL_NETWORK, LABEL_SUBNET};

pub use actor::{Args, BridgeActor, Env, Msg};
pub(crate) use refused::REMEMBERED;
pub use refused::Refused;

/// Leaves room for the mesh's encapsulation in a 1500-byte frame.
const MTU: u16 = 1420;
/// How long an evicted container may take to stop.
const EVICTION_GRACE: Duration = Duration::from_secs(10);

/// A network that containers can join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeReady {
    /// Its name in the engine.
    pub engine_network: String,
    /// Address of the bridge, where containers find their resolver.
    pub gateway: Ipv4Addr,
    /// Addresses of this host's part of the network.
    pub cidr: Cidr,
}

/// Why a network is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It has no address block.
    #[error("no address block for the network")]
    Subnet(#[source] ipam::Error),
    /// The engine did not do as it was asked.
    #[error("failed to set up the network")]
    Engine(#[source] EngineError),
    /// Something else on this host has addresses of the block.
    #[error("block {0} is taken on this host")]
    Taken(Cidr, #[source] EngineError),
    /// A network of this name is not JACO's; it is never touched.
    #[error("network {0:?} exists and is foreign")]
    Foreign(String),
    /// A network of this name belongs to another deployment or network.
    #[error("network_name_conflict: {name:?} belongs to {owner}")]
    NameConflict {
        /// The shared engine name.
        name: String,
        /// Who has it.
        owner: NetworkId,
    },
    /// Both Linux names are taken.
    #[error("bridge names {0:?} and {1:?} are both taken")]
    NoBridgeName(String, String),
    /// The bridge's actor failed too often; it is started again after this time at the latest.
    #[error("the bridge's actor gave up and is started again within {} s", .0.as_secs())]
    Exhausted(Duration),
    /// The bridge's actor is not up, or takes too long; asking again later may help.
    #[error("the bridge did not answer")]
    Unavailable,
}

/// What is wanted of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which network.
    pub id: NetworkId,
    /// Cluster it belongs to.
    pub cluster_id: String,
    /// This host's block.
    pub cidr: Cidr,
}

/// How to get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// It is there.
    Reuse,
    /// Remove these networks with what is attached to them, then create one.
    Replace {
        /// Networks that are ours and not as wanted; empty if there is none.
        remove: Vec<EngineNetwork>,
        /// The network to create.
        create: NetworkSpec,
    },
}

/// Compares the engine's bridge networks with `wanted`.
///
/// # Errors
/// [`Error::Foreign`] or [`Error::NameConflict`] if the name is somebody else's, and
/// [`Error::NoBridgeName`] if the Linux names are.
pub fn plan(wanted: &Wanted, networks: &[EngineNetwork]) -> Result<Plan, Error> {
    let name = wanted.id.engine_name();
    let (same, others): (Vec<_>, Vec<_>) = networks.iter().partition(|found| found.name == name);
    for found in &same {
        match owner(found) {
            None => return Err(Error::Foreign(name)),
            Some(owner) if owner != wanted.id => return Err(Error::NameConflict { name, owner }),
            Some(_) => {}
        }
    }
    if let [only] = same.as_slice()
        && is_as_wanted(only, wanted)
    {
        return Ok(Plan::Reuse);
    }
    let taken = |bridge: &String| {
        others
            .iter()
            .any(|other| other.bridge.as_ref() == Some(bridge))
    };
    let (short, fallback) = (wanted.id.bridge_name(), wanted.id.fallback_bridge_name());
    let bridge = match (taken(&short), taken(&fallback)) {
        (false, _) => short,
        (true, false) => fallback,
        (true, true) => return Err(Error::NoBridgeName(short, fallback)),
    };
    let create = NetworkSpec {
        name,
        bridge,
        cidr: wanted.cidr,
        mtu: MTU,
        labels: labels(wanted),
    };
    let remove = same.into_iter().cloned().collect();
    Ok(Plan::Replace { remove, create })
}

/// The (deployment, network) a network is labelled with, whatever cluster it is of.
pub(super) fn owner(network: &EngineNetwork) -> Option<NetworkId> {
    let deployment = network.labels.get(LABEL_DEPLOYMENT)?;
    let name = network.labels.get(LABEL_NETWORK)?;
    Some(NetworkId::new(deployment, name))
}

/// Whether a network is of this cluster.
pub(super) fn is_of_cluster(network: &EngineNetwork, cluster_id: &str) -> bool {
    network
        .labels
        .get(LABEL_CLUSTER)
        .is_some_and(|id| id == cluster_id)
}

/// Compares the live block, since the label only says what once was asked for.
fn is_as_wanted(found: &EngineNetwork, wanted: &Wanted) -> bool {
    let live = found
        .subnets
        .first()
        .and_then(|subnet| subnet.parse::<Cidr>().ok());
    live == Some(wanted.cidr) && is_of_cluster(found, &wanted.cluster_id)
}

fn labels(wanted: &Wanted) -> BTreeMap<String, String> {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    BTreeMap::from([
        label(LABEL_CLUSTER, &wanted.cluster_id),
        label(LABEL_DEPLOYMENT, wanted.id.deployment()),
        label(LABEL_NETWORK, wanted.id.network()),
        label(LABEL_SUBNET, &wanted.cidr.to_string()),
    ])
}

/// Makes the engine's network as wanted; doing it again changes nothing.
///
/// # Errors
/// See [`plan`]; [`Error::Taken`] if the host cannot use the block; [`Error::Engine`] if a step
/// fails, and asking again goes on from there.
pub async fn ensure(engine: &SharedEngine, wanted: &Wanted) -> Result<BridgeReady, Error> {
    let networks = engine.list().await.map_err(Error::Engine)?;
    match plan(wanted, &networks)? {
        Plan::Reuse => {}
        Plan::Replace { remove, create } => {
            for old in remove {
                evict_all(engine, &old).await.map_err(Error::Engine)?;
                engine.remove(old.id).await.map_err(Error::Engine)?;
            }
            engine.create(create).await.map_err(|error| {
                if refused::is_about_addresses(&error) {
                    Error::Taken(wanted.cidr, error)
                } else {
                    Error::Engine(error)
                }
            })?;
        }
    }
    Ok(BridgeReady {
        engine_network: wanted.id.engine_name(),
        gateway: wanted.cidr.gateway(),
        cidr: wanted.cidr,
    })
}

async fn evict_all(engine: &SharedEngine, network: &EngineNetwork) -> Result<(), EngineError> {
    let containers = engine.attached(network).await?;
    let evictions = containers
        .into_iter()
        .map(|container| engine.evict(container, EVICTION_GRACE));
    futures::future::try_join_all(evictions).await.map(drop)
}

/// What became of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// No network of ours is left.
    Gone,
    /// Containers are attached; nothing was removed.
    InUse,
}

/// Removes this cluster's network of `id` unless a container is attached to it.
///
/// # Errors
/// The engine's; asking again goes on from there.
pub async fn remove(
    engine: &SharedEngine,
    cluster_id: &str,
    id: &NetworkId,
) -> Result<Removal, EngineError> {
    let name = id.engine_name();
    let networks = engine.list().await?;
    let ours = networks.into_iter().filter(|found| {
        found.name == name && owner(found).as_ref() == Some(id) && is_of_cluster(found, cluster_id)
    });
    for found in ours {
        if !engine.attached(&found).await?.is_empty() {
            return Ok(Removal::InUse);
        }
        engine.remove(found.id).await?;
    }
    Ok(Removal::Gone)
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
