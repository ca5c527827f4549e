//! Snapshots between members: outcomes of those sent, and whether to accept one.

use raft::{ProgressState, SnapshotStatus, Storage, eraftpb::Message};

use super::RaftCore;

/// Identity of a snapshot that a leader sends to one member. A leader sends the next snapshot to a
/// member only after the outcome of the last one, so the pair is unique for as long as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotId {
    /// Term of the leader.
    pub term: u64,
    /// Log index of the snapshot.
    pub index: u64,
}

impl SnapshotId {
    /// Returns the identity of the snapshot in a `MsgSnapshot`.
    #[must_use]
    pub fn of(message: &Message) -> Self {
        Self {
            term: message.term,
            index: message.get_snapshot().get_metadata().index,
        }
    }
}

impl<S: Storage> RaftCore<S> {
    /// Handles whether `peer` received `snapshot`. Ignores a report about a snapshot other than the
    /// one that `peer` is being sent: a late report must not end a later transfer.
    pub fn handle_snapshot_sent(&mut self, peer: u64, snapshot: SnapshotId, delivered: bool) {
        let raft = &self.raw.raft;
        let progress = raft.prs().get(peer);
        let pending = progress.is_some_and(|progress| {
            progress.state == ProgressState::Snapshot && progress.pending_snapshot == snapshot.index
        });
        if !pending || raft.term != snapshot.term {
            return;
        }
        let status = if delivered {
            SnapshotStatus::Finish
        } else {
            SnapshotStatus::Failure
        };
        self.raw.report_snapshot(peer, status);
        self.after_event();
    }

    /// Whether `from` is the leader that this node follows, and `snapshot` is one of its current
    /// term with entries that this node does not know to be committed.
    #[must_use]
    pub fn needs_snapshot(&self, from: u64, snapshot: SnapshotId) -> bool {
        let raft = &self.raw.raft;
        from != raft.id
            && (raft.term, raft.leader_id) == (snapshot.term, from)
            && snapshot.index > raft.raft_log.committed
    }
}
