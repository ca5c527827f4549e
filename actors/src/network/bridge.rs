//! Bridge network of one (deployment, network) on this host.
//!
//! [`plan`] compares the engine's networks with the wanted one; `core` decides when to ensure and
//! when to remove it; `actor` drives both.

mod actor;
mod core;
mod refused_blocks;

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use jaco_engine::{
    EngineError, EngineNetwork, NetworkSpec,
    cidr::Cidr,
    labels::{LABEL_CLUSTER, LABEL_DEPLOYMENT, LABEL_NETWORK, LABEL_SUBNET},
};

use super::{SharedEngine, ipam, names::NetworkId};

pub use actor::{Args, BridgeActor, BridgeContext, Msg};
pub(crate) use refused_blocks::MAX_REFUSED_BLOCKS;
pub use refused_blocks::RefusedBlocks;

/// MTU that leaves room for the mesh's encapsulation in a 1500-byte frame.
const MTU: u16 = 1420;
/// Grace period of a container evicted from a network.
const EVICTION_GRACE: Duration = Duration::from_secs(10);

/// Network that containers can join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeReady {
    /// Name of the network in the engine.
    pub engine_network: String,
    /// Address of the bridge, on which the containers' DNS resolver listens.
    pub gateway: Ipv4Addr,
    /// This host's address block of the network.
    pub cidr: Cidr,
}

/// Reason why a network is not ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No address block is available for it.
    #[error("no address block for the network")]
    Subnet(#[source] ipam::Error),
    /// An engine request failed.
    #[error("failed to set up the network")]
    Engine(#[source] EngineError),
    /// The host already uses addresses of the block for something else.
    #[error("block {0} is taken on this host")]
    BlockInUse(Cidr, #[source] EngineError),
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
    /// The bridge's actor exhausted its restarts; it is started again after at most this time.
    #[error("the bridge's actor gave up and is started again within {} s", .0.as_secs())]
    Exhausted(Duration),
    /// The bridge's actor is not running or did not respond in time; a retry may succeed.
    #[error("the bridge did not answer")]
    Unavailable,
}

/// Target of [`ensure`]: a network of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredNetwork {
    /// Deployment and network name.
    pub id: NetworkId,
    /// Cluster it belongs to.
    pub cluster_id: String,
    /// This host's address block.
    pub cidr: Cidr,
}

/// Steps from the engine's networks to the wanted one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The network exists as wanted.
    Reuse,
    /// Remove these networks and their containers, then create one.
    Replace {
        /// Networks of ours that differ from the wanted one; may be empty.
        remove: Vec<EngineNetwork>,
        /// The network to create.
        create: NetworkSpec,
    },
}

/// Compares the engine's bridge networks with `wanted`.
///
/// Returns [`Error::Foreign`] or [`Error::NameConflict`] if the engine name belongs to another
/// network, and [`Error::NoBridgeName`] if both Linux names are taken.
pub fn plan(wanted: &DesiredNetwork, networks: &[EngineNetwork]) -> Result<Plan, Error> {
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
        && matches_wanted(only, wanted)
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

/// The (deployment, network) in the labels of a network, regardless of its cluster.
pub(super) fn owner(network: &EngineNetwork) -> Option<NetworkId> {
    let deployment = network.labels.get(LABEL_DEPLOYMENT)?;
    let name = network.labels.get(LABEL_NETWORK)?;
    Some(NetworkId::new(deployment, name))
}

/// Whether a network belongs to this cluster.
pub(super) fn is_of_cluster(network: &EngineNetwork, cluster_id: &str) -> bool {
    network
        .labels
        .get(LABEL_CLUSTER)
        .is_some_and(|id| id == cluster_id)
}

/// Compares the live subnet, because the label only records what was once requested.
fn matches_wanted(found: &EngineNetwork, wanted: &DesiredNetwork) -> bool {
    let live = found
        .subnets
        .first()
        .and_then(|subnet| subnet.parse::<Cidr>().ok());
    live == Some(wanted.cidr) && is_of_cluster(found, &wanted.cluster_id)
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

/// Creates the engine's network as wanted; idempotent.
///
/// # Errors
/// See [`plan`]; [`Error::BlockInUse`] if the host cannot use the block; [`Error::Engine`] if a
/// step fails; a retry continues from there.
pub async fn ensure(engine: &SharedEngine, wanted: &DesiredNetwork) -> Result<BridgeReady, Error> {
    let networks = engine.list().await.map_err(Error::Engine)?;
    match plan(wanted, &networks)? {
        Plan::Reuse => {}
        Plan::Replace { remove, create } => {
            for old in remove {
                evict_all(engine, &old).await.map_err(Error::Engine)?;
                engine.remove(old.id).await.map_err(Error::Engine)?;
            }
            engine.create(create).await.map_err(|error| {
                if refused_blocks::is_address_conflict(&error) {
                    Error::BlockInUse(wanted.cidr, error)
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

/// Outcome of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// No network of ours is left in the engine.
    Gone,
    /// Containers are attached; the network was not removed.
    InUse,
}

/// Removes this cluster's network of `id` unless a container is attached to it.
///
/// # Errors
/// [`EngineError`] of the engine; a retry continues from there.
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
mod tests;
