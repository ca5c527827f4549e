//! The two binaries of JACO.
//!
//! - [`client`]: the command line `jaco`.
//! - [`daemon`]: the daemon `jacod`.
//! - [`logging`]: what both write to stderr or the journal.

pub mod client;
pub mod daemon;
pub mod logging;

/// Version of this build: what the release process stamped, else `dev`.
#[must_use]
pub fn version() -> &'static str {
    option_env!("JACO_VERSION").unwrap_or("dev")
}
