//! Ingress: when the reverse proxy follows the routes of the state.
//!
//! - [`debounce`]: debouncing of bursts of changes.

pub mod debounce;
