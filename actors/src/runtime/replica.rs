//! State machine of one replica on this host: pull, create, start, watch, restart, stop.
//!
//! - [`core`]: decisions, without I/O or a clock.
//! - [`health`]: derives the replica state from an inspected container.
//! - [`report`]: the observation published for a replica.
//! - [`actor`]: driver that runs effects and feeds their outcomes back.

pub mod actor;
pub mod core;
pub mod health;
pub(crate) mod launch;
pub mod report;

pub use actor::{Msg, ReplicaActor};
