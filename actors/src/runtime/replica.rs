//! One replica on this host.
//!
//! - [`actor`]: driver that runs the actions of [`jaco_policy::runtime::replica`] and reports their
//!   outcomes to it.

pub mod actor;
pub(crate) mod launch;
mod readiness;

pub use actor::{Msg, ReplicaActor};
