//! Scheduler: decides on the leader which replicas exist and on which hosts they run.
//!
//! - [`drain_check`]: replicas that could not be placed if a host left.
//! - [`imported`]: rows that JACO's Go implementation issued.
//! - [`moves`]: progress of replicas that leave a host.
//! - [`placement`]: assigns hosts to the replicas of a service.
//! - [`projects`]: cached scheduling view of compose documents.
//! - [`reconcile`]: one pass, from the state to one batch of commands.
//! - [`restarts`]: accounting of container failures.
//! - [`rollout`]: rolling update of one service.
//! - [`pass_timer`]: timing of passes.

pub mod drain_check;
pub mod imported;
pub mod moves;
pub mod pass_timer;
pub mod placement;
pub mod platform;
pub mod projects;
pub mod reconcile;
pub mod restarts;
pub mod rollout;
