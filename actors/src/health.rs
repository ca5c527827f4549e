//! Node health: failure detection, fencing and recovery.
//!
//! [`jaco_policy::health`] decides.
//!
//! - [`failure_detector`]: heartbeat state, shared by the transport and every consumer of liveness.
//! - [`actor`]: the actor that drives it.
//! - [`contact`]: contact with the cluster, for actors whose effects need one.

use std::sync::Arc;

use jaco_supervision::ChildSpec;

pub mod actor;
pub mod contact;
pub mod failure_detector;

pub use actor::{Args, HealthActor, NetworkStatus};
pub use contact::{Contact, ContactSwitch};
pub(crate) use failure_detector::LeaderClaim;
pub use failure_detector::{FailureDetector, Hosts};

/// Child specification of the health actor.
#[must_use]
pub fn worker(args: Args) -> ChildSpec {
    ChildSpec::worker::<HealthActor>("health", args).0
}

/// Returns a confirmation that uses a read index of raft: it succeeds once this node has applied
/// every entry committed when it was requested.
#[must_use]
pub fn confirm_by_read_index(raft: &jaco_raftnode::RaftHandle) -> actor::Confirm {
    let raft = raft.clone();
    Arc::new(move || {
        let raft = raft.clone();
        Box::pin(async move { raft.read_index().await.is_ok() })
    })
}

#[cfg(test)]
mod tests;
