//! Who is alive: heartbeats, verdicts and the way back.
//!
//! - [`mod@core`]: which members are dead, as the leader says it.
//! - [`contact`]: whether this node may act on what its own state says.
//! - [`ready`]: the way back to `ready`, which a node goes itself.
//! - [`heart`]: what is said and heard, for the transport and for all who ask who is alive.
//! - [`actor`]: the shell around them.

use std::sync::Arc;

use jaco_supervision::ChildSpec;

pub mod actor;
pub mod contact;
pub mod core;
pub mod heart;
pub mod ready;

pub use actor::{Args, HealthActor};
pub use heart::{Heart, Hosts};

/// The health of a node as a child of its tree.
#[must_use]
pub fn worker(args: Args) -> ChildSpec {
    ChildSpec::worker::<HealthActor>("health", args).0
}

/// A way to catch up through raft's own confirmation of its leader.
#[must_use]
pub fn confirm_with(raft: &jaco_raftnode::RaftHandle) -> actor::Confirm {
    let raft = raft.clone();
    Arc::new(move || {
        let raft = raft.clone();
        Box::pin(async move { raft.read_index().await.is_ok() })
    })
}

#[cfg(test)]
mod tests;
