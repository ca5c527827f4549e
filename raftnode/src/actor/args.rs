//! What the actor needs from outside.

use std::{fmt, sync::Arc, time::Duration};

use super::{RaftHandle, observe::Observe};
use crate::{
    OutgoingSnapshot,
    storage::{self, Storage},
};

/// Way to the peers. Delivery may fail; raft sends again.
pub trait Transport: Send + Sync + 'static {
    /// Sends an encoded message to node `to` without waiting for it. One that is lost is reported
    /// through [`RaftHandle::unreachable`].
    fn send(&self, to: u64, message: Vec<u8>);

    /// Streams a snapshot to node `to`, beside the messages and without waiting for it. Its end
    /// must be reported through [`RaftHandle::snapshot_sent`]: until then raft sends `to` nothing
    /// else. Dropping the snapshot unfinished is such a report.
    fn send_snapshot(&self, to: u64, snapshot: OutgoingSnapshot);
}

/// Transport of a cluster of one node: there is nobody to send to.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTransport;

impl Transport for NoTransport {
    fn send(&self, _to: u64, _message: Vec<u8>) {}

    fn send_snapshot(&self, _to: u64, _snapshot: OutgoingSnapshot) {}
}

/// Sizes and times; the defaults are what the cluster runs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Length of a raft tick.
    pub tick: Duration,
    /// How long a proposer waits before its outcome counts as unknown.
    pub commit_budget: Duration,
    /// Largest encoded command.
    pub command_bytes: usize,
    /// Encoded bytes of proposals that may wait at once; more are answered as busy.
    pub inflight_bytes: usize,
    /// How long a few proposals wait for more at most, while earlier ones are on their way to a
    /// majority; nothing waits otherwise.
    pub hold: Duration,
    /// Log length, in entries, that triggers compaction.
    pub compact_entries: u64,
    /// Log size, in bytes, beyond which applied entries go, whoever still needs them.
    pub log_bytes: u64,
    /// Largest snapshot that is sent or received, in encoded bytes.
    pub snapshot_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(100),
            commit_budget: Duration::from_secs(5),
            command_bytes: 8 << 20,
            inflight_bytes: 32 << 20,
            hold: Duration::from_millis(2),
            compact_entries: 8192,
            log_bytes: 256 << 20,
            snapshot_bytes: 2 << 30,
        }
    }
}

/// Everything a start, or a restart, of the actor needs.
#[derive(Clone)]
pub struct RaftArgs {
    /// The open directory.
    pub storage: Arc<Storage>,
    /// Handle that others hold already; make it with [`RaftHandle::new`].
    pub handle: RaftHandle,
    /// Way to the peers.
    pub transport: Arc<dyn Transport>,
    /// Called once when the storage can no longer be trusted. The process must end with a
    /// failure, soon: no restart of the actor helps.
    pub on_fatal: Arc<dyn Fn(&storage::Error) + Send + Sync>,
    /// Hears what becomes of commands; `()` does not listen.
    pub observer: Arc<dyn Observe>,
    /// Sizes and times.
    pub limits: Limits,
}

impl fmt::Debug for RaftArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RaftArgs")
            .field("storage", &self.storage)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
