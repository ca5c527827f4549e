//! What the actor tells about its work while it does it.

use std::time::Duration;

use prost_types::Timestamp;

/// Hears of commands on raft's own thread, so it must return at once.
pub trait Observe: Send + Sync + 'static {
    /// A proposal of this node was committed, this long after it was made.
    fn committed(&self, _latency: Duration) {}

    /// A committed command was applied here.
    fn applied(&self, _applied: &Applied) {}
}

/// Nobody listens.
impl Observe for () {}

/// A command that was applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// Its log index.
    pub index: u64,
    /// Name of its variant; see [`crate::command_name`].
    pub op: &'static str,
    /// The time its proposer gave it.
    pub ts: Option<Timestamp>,
    /// Whether the state machine accepted it.
    pub accepted: bool,
    /// How long applying it took.
    pub took: Duration,
}
