//! Gate between a network and its containers: none starts before the ruleset isolates its block and
//! routes keep its packets from leaving the host unencrypted.

use std::sync::Arc;

use futures::future::BoxFuture;
use jaco_engine::cidr::Cidr;
use jaco_policy::network::names::NetworkId;

/// Shared handle to a gate.
pub type SharedGate = Arc<dyn IsolationGate>;

/// Why containers of a block must not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotEnforced {
    /// The kernel did not take the ruleset, or holds another one.
    #[error("the isolation ruleset is not in force: {0}")]
    Unavailable(String),
    /// No ruleset with the block was applied in time.
    #[error("the isolation ruleset does not include {0} yet")]
    Pending(Cidr),
    /// Packets to containers of other hosts could leave this one unencrypted.
    #[error("the routes of the mesh are not set: {0}")]
    Unprotected(String),
}

/// Waits for the isolation of address blocks.
pub trait IsolationGate: Send + Sync {
    /// Waits until the kernel's ruleset includes `block` as part of `network`, and with it every
    /// block that was allocated earlier, and until the kernel discards packets to containers of
    /// other hosts that the mesh does not take.
    ///
    /// # Errors
    /// [`NotEnforced`]; a retry is safe.
    fn wait_enforced<'a>(
        &'a self,
        network: &'a NetworkId,
        block: Cidr,
    ) -> BoxFuture<'a, Result<(), NotEnforced>>;
}

/// Gate of a node without isolation, always open.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoIsolation;

impl IsolationGate for NoIsolation {
    fn wait_enforced<'a>(
        &'a self,
        _: &'a NetworkId,
        _: Cidr,
    ) -> BoxFuture<'a, Result<(), NotEnforced>> {
        Box::pin(async { Ok(()) })
    }
}
