//! Scheduler: proposes on the leader which replicas exist and on which hosts they run.
//!
//! [`jaco_policy::scheduler`] decides; [`actor`] proposes the passes.

pub mod actor;

pub use actor::{Args, SchedulerActor};

use jaco_supervision::{ChildSpec, Strategy, SupervisorHandle, SupervisorSpec};

/// The scheduler's subtree of a node's supervision tree.
#[must_use]
pub fn supervisor(args: Args) -> (ChildSpec, SupervisorHandle) {
    let (reconcile, _) = ChildSpec::worker::<SchedulerActor>("reconcile", args);
    let spec = SupervisorSpec::new(Strategy::OneForOne).child(reconcile);
    ChildSpec::supervisor("scheduler", spec)
}
