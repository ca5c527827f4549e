//! How much of the log is kept.

use raft::{ProgressState, StateRole, Storage};

use super::RaftCore;

/// A member that answers keeps this many times more of the log than one that does not: at a high
/// rate of writes it would otherwise need the next snapshot by the time it has installed one.
const ANSWERING: u64 = 32;

impl<S: Storage> RaftCore<S> {
    /// Index up to which the log, which begins at `first_index`, may be dropped; `None` while it
    /// is short.
    ///
    /// A leader keeps what its slowest member still needs: at most 7/8 of `limit` entries for one
    /// that does not answer, which then receives a snapshot, and 32 times `limit` for one that
    /// does. Another node keeps half of `limit`, since those it may lead are seldom further
    /// behind than that.
    #[must_use]
    pub fn compaction(&self, first_index: u64, limit: u64) -> Option<u64> {
        let raft = &self.raw.raft;
        let applied = raft.raft_log.applied();
        if (applied + 1).saturating_sub(first_index) < limit {
            return None;
        }
        let index = if raft.state == StateRole::Leader {
            let needed = raft.prs().iter().filter(|(id, _)| **id != raft.id);
            let needed = needed.map(|(&id, progress)| {
                let timeout = self.config.election_ticks as u64;
                let most = if self.contact.within(id, timeout) {
                    limit.saturating_mul(ANSWERING)
                } else {
                    limit - limit / 8
                };
                let has = match progress.state {
                    // It goes on from where the snapshot ends.
                    ProgressState::Snapshot => progress.pending_snapshot,
                    _ => progress.matched,
                };
                has.max(applied.saturating_sub(most))
            });
            needed.min().unwrap_or(applied).min(applied)
        } else {
            applied - (limit / 2).min(applied)
        };
        // Dropping an eighth at least keeps a slow member from costing a write per entry.
        (index + 1 >= first_index + limit / 8).then_some(index)
    }
}
