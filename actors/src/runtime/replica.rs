//! One replica on this host: pull, create, start, watch, restart, stop.
//!
//! - [`core`]: the decisions, without I/O or a clock.
//! - [`health`]: what an inspected container means.
//! - [`report`]: what is published about a replica.
//! - [`actor`]: the shell that runs effects and feeds outcomes back.

pub mod actor;
pub mod core;
pub mod health;
pub(crate) mod launch;
pub mod report;

pub use actor::{Msg, ReplicaActor};
