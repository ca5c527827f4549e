//! Bridge network of one (deployment, network) on this host.
//!
//! [`jaco_policy::network::bridge`] compares the engine's networks with the wanted one and decides
//! when to ensure, repair and remove it; `actor` drives both, `repair` restores what was lost.

mod actor;
mod repair;

use std::{net::Ipv4Addr, time::Duration};

use jaco_engine::{EngineError, EngineNetwork, cidr::Cidr};
use jaco_policy::network::{
    bridge::{
        Removal,
        plan::{self, Plan, is_of_cluster, owner, plan},
        refused_blocks::is_address_conflict,
    },
    names::NetworkId,
};

use super::{SharedEngine, gate::NotEnforced, interfaces::Interfaces, ipam};

pub use actor::{Args, BridgeActor, BridgeContext, Msg};
pub use jaco_policy::network::bridge::plan::DesiredNetwork;

/// Grace period of a container evicted from a network.
const EVICTION_GRACE: Duration = Duration::from_secs(10);
/// Times that differing networks are removed before a request fails.
const MAX_REMOVALS: usize = 3;

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
    /// The network cannot be, because of something else on this host.
    #[error(transparent)]
    Plan(#[from] plan::Error),
    /// The host did not list its interfaces.
    #[error("failed to list the interfaces: {0}")]
    Interfaces(String),
    /// The bridge of the network could not be set up or got no address.
    #[error("failed to restore a bridge: {0}")]
    Restore(String),
    /// The network returns whenever it was removed.
    #[error("network {0:?} returns after its removal")]
    Contested(String),
    /// The isolation of the block is not in force.
    #[error(transparent)]
    NotEnforced(NotEnforced),
    /// The bridge's actor exhausted its restarts; it is started again after at most this time.
    #[error("the bridge's actor gave up and is started again within {} s", .0.as_secs())]
    Exhausted(Duration),
    /// The bridge's actor is not running or did not respond in time; a retry may succeed.
    #[error("the bridge did not answer")]
    Unavailable,
}

impl Error {
    /// Block that this host cannot use.
    fn unusable_block(&self) -> Option<Cidr> {
        match self {
            Self::BlockInUse(cidr, _) | Self::Plan(plan::Error::AddressInUse { cidr, .. }) => {
                Some(*cidr)
            }
            Self::Subnet(_)
            | Self::Engine(_)
            | Self::Plan(_)
            | Self::Interfaces(_)
            | Self::Restore(_)
            | Self::Contested(_)
            | Self::NotEnforced(_)
            | Self::Exhausted(_)
            | Self::Unavailable => None,
        }
    }
}

/// Creates the engine's network as wanted; idempotent. Networks of ours with the name that differ
/// from it are removed first, and with them their containers.
///
/// # Errors
/// [`Error::Plan`]; [`Error::BlockInUse`] if the host cannot use the block; [`Error::Engine`] if a
/// step fails; a retry continues from there.
pub async fn ensure(
    engine: &SharedEngine,
    interfaces: &dyn Interfaces,
    wanted: &DesiredNetwork,
) -> Result<BridgeReady, Error> {
    let ready = BridgeReady {
        engine_network: wanted.id.engine_name(),
        gateway: wanted.cidr.gateway(),
        cidr: wanted.cidr,
    };
    for _ in 0..=MAX_REMOVALS {
        let networks = engine.list().await.map_err(Error::Engine)?;
        let listed = interfaces.list().await;
        let listed = listed.map_err(|error| Error::Interfaces(error.to_string()))?;
        match plan(wanted, &networks, &listed)? {
            Plan::Reuse(_) => return Ok(ready),
            Plan::Remove(differing) => {
                for old in differing {
                    evict_all(engine, &old).await.map_err(Error::Engine)?;
                    engine.remove(old.id).await.map_err(Error::Engine)?;
                }
            }
            Plan::Create(spec) => {
                engine.create(spec).await.map_err(|error| {
                    if is_address_conflict(&error) {
                        Error::BlockInUse(wanted.cidr, error)
                    } else {
                        Error::Engine(error)
                    }
                })?;
                return Ok(ready);
            }
        }
    }
    Err(Error::Contested(ready.engine_network))
}

async fn evict_all(engine: &SharedEngine, network: &EngineNetwork) -> Result<(), EngineError> {
    let containers = engine.attached(network).await?;
    let evictions = containers
        .into_iter()
        .map(|container| engine.evict(container, EVICTION_GRACE));
    futures::future::try_join_all(evictions).await.map(drop)
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
