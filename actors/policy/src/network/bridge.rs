//! Bridge network of one (deployment, network) on one host.
//!
//! [`mod@core`] decides when to ensure and when to remove it; [`refused_blocks`] records the blocks
//! that the host cannot use.

pub mod core;
pub mod refused_blocks;

/// Outcome of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// No network of ours is left in the engine.
    Gone,
    /// Containers are attached; the network was not removed.
    InUse,
}
