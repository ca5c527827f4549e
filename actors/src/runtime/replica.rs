//! One replica on this host: pull, create, start, watch, restart, stop.
//!
//! - [`core`]: the decisions, without I/O or a clock.
//! - [`health`]: what an inspected container means.
//! - [`report`]: what is published about a replica.

pub mod core;
pub mod health;
pub mod report;
