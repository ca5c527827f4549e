//! Dependencies and limits of the raft actor.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use super::{RaftHandle, observe::Observe};
use crate::{OutgoingSnapshot, storage::Storage};

/// Sends raft messages to the peers. Delivery may fail; raft retries.
pub trait Transport: Send + Sync + 'static {
    /// Sends an encoded message to node `to` without blocking. The implementation reports a lost
    /// message through [`RaftHandle::unreachable`].
    fn send(&self, to: u64, message: Vec<u8>);

    /// Streams a snapshot to node `to`, in parallel to the messages and without blocking. The end
    /// is reported through [`OutgoingSnapshot::report`]: until then raft sends nothing else to `to`.
    fn send_snapshot(&self, to: u64, snapshot: OutgoingSnapshot);
}

/// Transport of a single-node cluster: drops all messages, because there are no peers.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTransport;

impl Transport for NoTransport {
    fn send(&self, _to: u64, _message: Vec<u8>) {}

    fn send_snapshot(&self, _to: u64, _snapshot: OutgoingSnapshot) {}
}

/// Sizes and durations; the defaults are the production values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaftLimits {
    /// Length of a raft tick.
    pub tick: Duration,
    /// Time a proposer waits for its outcome. A command that raft has not taken by then is
    /// withdrawn; the outcome of any other is reported as unknown.
    pub commit_budget: Duration,
    /// Time without progress of raft's thread after which this node no longer counts as leading or
    /// as following the log.
    pub stall: Duration,
    /// Time without progress of raft's thread after which it is given up.
    pub give_up: Duration,
    /// Largest encoded command.
    pub command_bytes: usize,
    /// Encoded bytes of proposals that may be in flight; further proposals are answered as busy.
    pub inflight_bytes: usize,
    /// Longest time a small batch waits for more proposals while earlier entries await a majority.
    /// No batch waits otherwise.
    pub batch_delay: Duration,
    /// Log length, in entries, that triggers compaction.
    pub compact_entries: u64,
    /// Log size, in bytes, beyond which applied entries are compacted even if followers need them.
    pub log_bytes: u64,
    /// Largest encoded snapshot, in bytes, that is sent or received.
    pub snapshot_bytes: u64,
}

impl Default for RaftLimits {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(100),
            commit_budget: Duration::from_secs(5),
            stall: Duration::from_secs(3),
            give_up: Duration::from_secs(45),
            command_bytes: 8 << 20,
            inflight_bytes: 32 << 20,
            batch_delay: Duration::from_millis(2),
            compact_entries: 8192,
            log_bytes: 256 << 20,
            snapshot_bytes: 2 << 30,
        }
    }
}

/// Receiver of the failure that ends raft; see [`RaftArgs::on_fatal`].
pub type OnFatal = Arc<dyn Fn(&(dyn Error + 'static)) + Send + Sync>;

/// Arguments of a start or restart of the actor.
#[derive(Clone)]
pub struct RaftArgs {
    /// The open data directory.
    pub storage: Arc<Storage>,
    /// Handle given to the other components before the actor runs; see [`RaftHandle::new`].
    pub handle: RaftHandle,
    /// Sends messages to the peers.
    pub transport: Arc<dyn Transport>,
    /// Called once when the storage has failed ([`storage::Error`](crate::storage::Error)) or does
    /// not answer ([`Hung`](super::Hung)). The process must exit with a failure soon: a restart of
    /// the actor cannot help.
    pub on_fatal: OnFatal,
    /// Receives a call for each committed and applied command; `()` ignores them.
    pub observer: Arc<dyn Observe>,
    /// Sizes and times.
    pub limits: RaftLimits,
}

impl fmt::Debug for RaftArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaftArgs")
            .field("storage", &self.storage)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
