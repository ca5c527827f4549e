//! Node health: failure detection, fencing and recovery.
//!
//! - [`mod@core`]: failure detector of the leader, which decides which members are dead.
//! - [`fencing`]: fencing, which decides whether this node may act on its own state.
//! - [`ready`]: conditions under which this node reports itself `ready`.

pub mod core;
pub mod fencing;
pub mod ready;
