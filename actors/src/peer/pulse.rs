//! Signs of life between members.

use std::collections::BTreeSet;

use super::Sender;

/// What a member says of itself every two seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Index of the last entry it has applied.
    pub applied: u64,
    /// Its raft term.
    pub term: u64,
    /// Whether it leads that term, and has applied an entry of it.
    pub leads: bool,
    /// From a leader: hostnames of the members it hears, itself included.
    pub hears: BTreeSet<String>,
    /// Whether it has stopped applying the log, because it does not understand an entry.
    pub halted: bool,
}

/// Makes and takes heartbeats; the transport only carries them.
pub trait Pulse: Send + Sync + 'static {
    /// What this node says now.
    fn beat(&self) -> Heartbeat;

    /// Member `from` said this, just now. Must return at once.
    fn heard(&self, from: &Sender, heartbeat: Heartbeat);
}

/// Says nothing of interest, and does not listen.
impl Pulse for () {
    fn beat(&self) -> Heartbeat {
        Heartbeat::default()
    }

    fn heard(&self, _from: &Sender, _heartbeat: Heartbeat) {}
}
