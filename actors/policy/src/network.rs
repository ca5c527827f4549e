//! Networks of the containers: address blocks, names, and the life of a bridge.
//!
//! - [`dns`]: names of the containers.
//! - [`ipam`]: the address block of a network on a host.
//! - [`bridge`]: when a network of this host is ensured and when it is removed.
//! - [`firewall`]: the ruleset that isolates deployments, its test and its repair.
//! - [`mesh`]: peers and routes of the encrypted mesh between the nodes.
//! - [`names`]: names of networks in the engine and in the kernel.
//! - [`readiness`]: network conditions of a node that becomes `ready`.
//! - [`scopes`]: the blocks that belong together, and reachability between addresses.
//! - [`probe`]: reachability of the networks, tested on every host.
//! - [`status`]: the status that operators see.

pub mod bridge;
pub mod dns;
pub mod firewall;
pub mod ipam;
pub mod mesh;
pub mod names;
pub mod probe;
pub mod readiness;
mod reported;
pub mod scopes;
pub mod status;
#[cfg(test)]
pub(crate) mod testing;
