//! The replicated state of JACO: one truth, changed only by committed commands.
//!
//! - [`state`]: the typed state; a snapshot is an `Arc` and costs O(1).
//! - [`propose`]: how a change is asked for, and how it can fail.

pub mod propose;
pub mod state;

pub use propose::{Committed, Propose, ProposeError};
pub use state::State;
