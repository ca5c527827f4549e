//! Isolation of deployments on this host: the ruleset of the kernel, its test and its repair.
//!
//! - [`FirewallActor`]: drives the core; the kernel is behind a [`FirewallPort`].
//! - [`KernelPort`]: the packet filter of this network namespace.
//! - [`FirewallGate`]: lets containers start once their block is isolated and their packets stay
//!   encrypted.

mod actor;
mod gate;
mod kernel;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::stream::BoxStream;
use jaco_engine::cidr::Cidr;
use jaco_policy::network::{
    firewall::{
        core::Applied,
        exemptions::{Exemption, Outcome},
        ruleset::Ruleset,
    },
    probe::drops::Drops,
};
use jaco_supervision::ChildSpec;

pub use actor::{Args, FirewallActor, Msg};
pub use gate::FirewallGate;
pub use jaco_policy::network::{
    firewall::core::{Rendered, Status},
    readiness::IsolationStatus,
};
pub use kernel::KernelPort;

/// Creates the firewall of a node and the gate to it.
#[must_use]
pub fn child(args: Args) -> (ChildSpec, FirewallGate) {
    let (status, mesh) = (args.status.subscribe(), args.mesh.clone());
    let (spec, handle) = ChildSpec::worker::<FirewallActor>("firewall", args);
    (spec, FirewallGate::new(handle, status, mesh))
}

/// Shared handle to a packet filter.
pub type SharedPort = Arc<dyn FirewallPort>;

/// A packet filter. All methods block, except [`FirewallPort::changes`].
pub trait FirewallPort: Send + Sync {
    /// Reads the table; `None` if it does not exist.
    ///
    /// # Errors
    /// The reason, for an operator.
    fn read(&self) -> Result<Option<Ruleset>, String>;

    /// Replaces the table as a whole; returns whether others changed tables since it was last read.
    ///
    /// # Errors
    /// The reason, for an operator; the table is unchanged then.
    fn apply(&self, ruleset: &Ruleset) -> Result<Applied, String>;

    /// Checks the exemptions from the engine's rules and writes those that are not in place. Unless
    /// `accepts`, those that let packets pass are removed.
    fn exempt(&self, pool: Cidr, accepts: bool) -> Vec<(Exemption, Outcome)>;

    /// Ends the tracked connections that `ruleset` forbids; returns their number, `None` if the kernel
    /// lists no connections.
    ///
    /// # Errors
    /// The reason, for an operator; some of them may have ended.
    fn cut_flows(&self, ruleset: &Ruleset) -> Result<Option<usize>, String>;

    /// Packets that the rules dropped since the daemon started, and those that the counters of an
    /// earlier one had; the part of a table that another program replaced since the last call is lost.
    ///
    /// # Errors
    /// The reason, for an operator.
    fn drops(&self) -> Result<Drops, String>;

    /// Subscribes to changes of the packet filter, made by anyone. The stream ends with an error
    /// of the subscription.
    ///
    /// # Errors
    /// The reason, for an operator.
    fn changes(&self) -> Result<BoxStream<'static, ()>, String>;
}
