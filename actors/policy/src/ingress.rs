//! Ingress: which replicas serve a route, and when the reverse proxy follows the state.
//!
//! - [`debounce`]: debouncing of bursts of changes.
//! - [`table`]: the replicas that serve each route, as seen from one node.

pub mod debounce;
pub mod table;
