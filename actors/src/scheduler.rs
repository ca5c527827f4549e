//! The scheduler: which replicas there are, and on which hosts.
//!
//! - [`departure`]: what would have no place if a host left.
//! - [`placement`]: hosts for the replicas of a service.
//! - [`reconcile`]: one pass, from the state to one batch of commands.
//! - [`restarts`]: the leader's account of container failures.
//! - [`pace`]: when a pass is made.
//! - [`actor`]: the shell around them.

pub mod actor;
pub mod departure;
pub mod pace;
pub mod placement;
pub mod projects;
pub mod reconcile;
pub mod restarts;

pub use actor::{Args, SchedulerActor};

use jaco_supervision::{ChildSpec, Strategy, SupervisorHandle, SupervisorSpec};

/// The scheduler's part of a node's tree.
#[must_use]
pub fn supervisor(args: Args) -> (ChildSpec, SupervisorHandle) {
    let (reconcile, _) = ChildSpec::worker::<SchedulerActor>("reconcile", args);
    let spec = SupervisorSpec::new(Strategy::OneForOne).child(reconcile);
    ChildSpec::supervisor("scheduler", spec)
}
