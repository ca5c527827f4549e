//! Bridge network of one (deployment, network) on one host.
//!
//! - [`plan`]: steps from the engine's networks to the wanted one.
//! - [`mod@core`]: when to ensure, repair and remove it.
//! - [`survey`]: when the networks of a host are compared with the state, [`drift`]: how.
//! - [`members`]: the replicas that belong to a network, [`addresses`]: the addresses that their
//!   containers had.
//! - [`sight`]: which bridges of the engine are visible.
//! - [`refused_blocks`]: the blocks that the host cannot use.

pub mod addresses;
pub mod core;
pub mod drift;
pub mod members;
pub mod plan;
pub mod refused_blocks;
pub mod sight;
pub mod survey;

/// Outcome of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// No network of ours is left in the engine.
    Gone,
    /// Containers are attached; the network was not removed.
    InUse,
}
