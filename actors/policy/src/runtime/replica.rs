//! State machine of one replica on this host: pull, create, start, watch, restart, stop.
//!
//! - [`mod@core`]: the decisions.
//! - [`health`]: derives the replica state from an inspected container.
//! - [`readiness`]: when a container that is up counts as running.
//! - [`report`]: the observation published for a replica.

pub mod core;
pub mod health;
pub mod readiness;
pub mod report;
