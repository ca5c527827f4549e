//! Node health: failure detection, fencing and recovery.
//!
//! - [`mod@core`]: failure detector of the leader, which decides which members are dead.
//! - [`fencing`]: fencing, which decides whether this node may act on its own state.
//! - [`isolation`]: the lost isolation of a member that is out of contact.
//! - [`liveness`]: the set of live hosts, and the events of both.
//! - [`ready`]: conditions under which this node reports itself `ready`.

pub mod core;
pub mod fencing;
pub mod isolation;
pub mod liveness;
pub mod ready;
