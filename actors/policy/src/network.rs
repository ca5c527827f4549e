//! Networks of the containers: address blocks, names, and the life of a bridge.
//!
//! - [`ipam`]: the address block of a network on a host.
//! - [`bridge`]: when a network of this host is ensured and when it is removed.
//! - [`names`]: names of networks in the engine and in the kernel.

pub mod bridge;
pub mod ipam;
pub mod names;
