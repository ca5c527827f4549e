//! The two binaries of JACO.
//!
//! - [`client`]: the command line `jaco`.
//! - [`daemon`]: the daemon `jacod`.
//! - [`logging`]: log output of both, to stderr or the journal.

pub mod client;
pub mod daemon;
pub mod logging;

/// Version of this build: as stamped by the release process, else `dev`.
#[must_use]
pub fn version() -> &'static str {
    option_env!("JACO_VERSION").unwrap_or("dev")
}
