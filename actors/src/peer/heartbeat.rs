//! Heartbeats between members.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::watch;

use super::Sender;

/// Heartbeat, sent to every connected member every two seconds, and by a leader when its live members
/// change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Index of the last entry applied by the sender.
    pub applied: u64,
    /// Raft term of the sender.
    pub term: u64,
    /// Whether the sender leads that term and has applied an entry of it.
    pub leads: bool,
    /// From a leader: hostnames of the members with a recent heartbeat, the leader included.
    pub live: BTreeSet<String>,
    /// Whether the sender has stopped applying the log: at an entry it does not support, or because
    /// its disk does not answer.
    pub halted: bool,
}

/// Produces and consumes heartbeats; the transport only carries them.
pub trait HeartbeatHandler: Send + Sync + 'static {
    /// Returns the present heartbeat of this node.
    fn next_heartbeat(&self) -> Heartbeat;

    /// Handles a heartbeat just received from member `from`. Must not block.
    fn on_heartbeat(&self, from: &Sender, heartbeat: Heartbeat);

    /// Subscribes to the live members; by default they never change. A member is not ready before
    /// it is in the leader's set, so a leader sends a change at once.
    fn live(&self) -> watch::Receiver<Arc<BTreeSet<String>>> {
        watch::channel(Arc::default()).1
    }
}

/// Sends default heartbeats and ignores received ones.
impl HeartbeatHandler for () {
    fn next_heartbeat(&self) -> Heartbeat {
        Heartbeat::default()
    }

    fn on_heartbeat(&self, _from: &Sender, _heartbeat: Heartbeat) {}
}
