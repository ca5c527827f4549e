//! Scheduler: decides on the leader which replicas exist and on which hosts they run.
//!
//! - [`drain_check`]: replicas that could not be placed if a host left.
//! - [`placement`]: assigns hosts to the replicas of a service.
//! - [`projects`]: cached scheduling view of compose documents.
//! - [`reconcile`]: one pass, from the state to one batch of commands.
//! - [`restarts`]: accounting of container failures.
//! - [`pass_timer`]: timing of passes.
//! - [`actor`]: driver that proposes the passes.

pub mod actor;
pub mod drain_check;
pub mod pass_timer;
pub mod placement;
pub mod projects;
pub mod reconcile;
pub mod restarts;

pub use actor::{Args, SchedulerActor};

use jaco_supervision::{ChildSpec, Strategy, SupervisorHandle, SupervisorSpec};

/// The scheduler's subtree of a node's supervision tree.
#[must_use]
pub fn supervisor(args: Args) -> (ChildSpec, SupervisorHandle) {
    let (reconcile, _) = ChildSpec::worker::<SchedulerActor>("reconcile", args);
    let spec = SupervisorSpec::new(Strategy::OneForOne).child(reconcile);
    ChildSpec::supervisor("scheduler", spec)
}
