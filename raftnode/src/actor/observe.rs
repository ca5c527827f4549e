//! Callbacks about the actor's work.

use std::time::Duration;

use prost_types::Timestamp;

/// Callbacks about commands. They run on raft's thread, so they must return at once.
pub trait Observe: Send + Sync + 'static {
    /// A proposal of this node was committed, `_latency` after it was made.
    fn committed(&self, _latency: Duration) {}

    /// This node applied a committed command.
    fn applied(&self, _applied: &Applied) {}
}

/// Ignores all calls.
impl Observe for () {}

/// A command that was applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// Its log index.
    pub index: u64,
    /// Name of its variant; see [`crate::command_name`].
    pub op: &'static str,
    /// Timestamp set by the proposer.
    pub ts: Option<Timestamp>,
    /// Whether the state machine accepted the command.
    pub accepted: bool,
    /// Duration of its application.
    pub took: Duration,
}
