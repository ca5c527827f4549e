//! Limits of the API, and answers computed from the state.
//!
//! - [`connection_limits`]: limits on connections, and the time they may stay idle.
//! - [`diff`]: changes that a command would make.
//! - [`files`]: contents of the files that an apply mounts.
//! - [`rate_limits`]: rate limits for callers that guess tokens.
//! - [`secrets`]: secrets that containers have as environment variables.
//! - [`views`]: responses of the read calls.

mod client_network;
pub mod connection_limits;
pub mod diff;
pub mod files;
pub mod rate_limits;
pub mod secrets;
pub mod views;
