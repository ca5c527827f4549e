//! Allocation of address blocks to networks.
//!
//! [`jaco_policy::network::ipam`] chooses the block of a network; [`IpamActor`] makes reading,
//! choosing and committing one critical section.

mod actor;

use std::sync::Arc;

use futures::future::BoxFuture;
use jaco_engine::cidr::Cidr;
use jaco_proto::ErrorCode;
use jaco_raftnode::{ProposeError, State};
use tokio::sync::watch;

pub use actor::{Args, IpamActor, Msg, allocator};
pub use jaco_policy::network::ipam::{InvalidPool, Pool, SubnetKey};

/// Addresses of the containers of all hosts: the pool of the cluster, or else `configured`.
pub(super) fn addresses(state: &State, configured: Pool) -> Cidr {
    Pool::of_cluster(state).unwrap_or(configured).range()
}

/// Reason why a network has no block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Every block is in use or was freed recently.
    #[error("no block left for {0}")]
    Exhausted(SubnetKey),
    /// Only the leader allocates blocks.
    #[error("this node does not lead")]
    NotLeader,
    /// The deployment does not exist, or does not exist yet.
    #[error("deployment {0:?} does not exist")]
    UnknownDeployment(String),
    /// The host is not a member, or not a member yet.
    #[error("{0:?} is not a member")]
    UnknownHost(String),
    /// The chosen block was not committed.
    #[error("failed to commit the block")]
    Propose(#[source] ProposeError),
    /// The allocator is not running or did not respond.
    #[error("the allocator did not answer")]
    Unavailable,
}

impl From<Error> for jaco_proto::Error {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Exhausted(key) => Self::new(ErrorCode::SubnetPoolExhausted, message)
                .with("deployment", key.deployment)
                .with("network", key.network)
                .with("host", key.host),
            Error::NotLeader => Self::new(ErrorCode::NoLeader, message),
            Error::UnknownDeployment(name) => {
                Self::new(ErrorCode::DeploymentNotFound, message).with("deployment", name)
            }
            Error::UnknownHost(host) => {
                Self::new(ErrorCode::NodeNotFound, message).with("host", host)
            }
            Error::Propose(ProposeError::Rejected(why)) => why,
            Error::Propose(ProposeError::NoLeader) => Self::new(ErrorCode::NoLeader, message),
            Error::Propose(ProposeError::Unknown(why)) => {
                Self::new(ErrorCode::RaftApplyFailed, format!("{message}: {why}"))
                    .with("outcome", "unknown")
            }
            Error::Propose(ProposeError::Busy | ProposeError::Unavailable) | Error::Unavailable => {
                Self::new(ErrorCode::IpamUnavailable, message)
            }
        }
    }
}

/// Allocates address blocks: either this node's allocator or the leader's.
pub trait Allocator: Send + Sync + 'static {
    /// Returns the block of `key`, allocating one if necessary. Repeated calls return the same
    /// block unless it overlaps a `refused` one; then another is allocated.
    fn ensure(&self, key: SubnetKey, refused: Vec<Cidr>)
    -> BoxFuture<'static, Result<Cidr, Error>>;
}

/// Shared handle to an allocator.
pub type SharedAllocator = Arc<dyn Allocator>;

/// Returns an allocator that uses `local` while this node leads and `remote` otherwise.
#[must_use]
pub fn leader_allocator(
    local: SharedAllocator,
    remote: SharedAllocator,
    is_leader: watch::Receiver<bool>,
) -> SharedAllocator {
    Arc::new(RoutingAllocator {
        local,
        remote,
        is_leader,
    })
}

struct RoutingAllocator {
    local: SharedAllocator,
    remote: SharedAllocator,
    is_leader: watch::Receiver<bool>,
}

impl Allocator for RoutingAllocator {
    fn ensure(
        &self,
        key: SubnetKey,
        refused: Vec<Cidr>,
    ) -> BoxFuture<'static, Result<Cidr, Error>> {
        if *self.is_leader.borrow() {
            self.local.ensure(key, refused)
        } else {
            self.remote.ensure(key, refused)
        }
    }
}

/// Returns the allocator of a node without peers: it always fails with [`Error::NotLeader`].
#[must_use]
pub fn no_allocator() -> SharedAllocator {
    struct NoAllocator;
    impl Allocator for NoAllocator {
        fn ensure(&self, _: SubnetKey, _: Vec<Cidr>) -> BoxFuture<'static, Result<Cidr, Error>> {
            Box::pin(std::future::ready(Err(Error::NotLeader)))
        }
    }
    Arc::new(NoAllocator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhaustion_error_names_the_network() {
        let key = SubnetKey {
            deployment: "a".into(),
            network: "_default".into(),
            host: "n1".into(),
        };
        let error = jaco_proto::Error::from(Error::Exhausted(key));
        assert_eq!(error.code, ErrorCode::SubnetPoolExhausted);
        assert_eq!(error.details["deployment"], "a");
        assert_eq!(error.details["network"], "_default");
        assert_eq!(error.details["host"], "n1");
    }
}
