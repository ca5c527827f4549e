//! One replica on this host.
//!
//! - [`actor`]: driver that runs the effects of [`jaco_policy::runtime::replica`] and feeds their
//!   outcomes back.

pub mod actor;
pub(crate) mod launch;

pub use actor::{Msg, ReplicaActor};
