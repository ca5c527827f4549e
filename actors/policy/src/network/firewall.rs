//! Isolation of deployments: the expected ruleset, its test against the kernel, and its repair.
//!
//! - [`ruleset`]: the ruleset as a value, rendered from the scopes.
//! - [`difference`]: comparison of the expected ruleset with the kernel's.
//! - [`exemptions`]: rules that keep the engine's firewall out of the traffic between containers.
//! - [`local`]: the networks of this host's engine.
//! - [`mod@core`]: when to test and to repair, and the reports about it.

mod attachments;
pub mod core;
pub mod difference;
pub mod exemptions;
pub mod local;
mod retired;
pub mod ruleset;
