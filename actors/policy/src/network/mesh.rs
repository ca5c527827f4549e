//! The encrypted mesh between the nodes: its addresses, peers and routes.
//!
//! - [`address`]: the address of each node in the mesh.
//! - [`foreign`]: routes of other programs in its way.
//! - [`wanted`]: peers and routes that follow from the state.
//! - [`plan`]: steps from what the kernel has to what is wanted.
//! - [`peer_list`]: the peers as text, for the next process.
//! - [`repair`]: differences that another program made and that are audited.
//! - [`core`]: when to look at the kernel and when to carry out the steps.

pub mod address;
pub mod core;
pub mod foreign;
pub mod peer_list;
pub mod plan;
pub mod repair;
mod repair_log;
pub mod wanted;

#[cfg(test)]
mod testing;
