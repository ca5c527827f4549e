//! Selects how much of the log is kept.

use raft::{ProgressState, StateRole, Storage};

use super::RaftCore;

/// Factor by which a responsive member may lag further than an unresponsive one: at a high rate of
/// writes it would otherwise need the next snapshot by the time it has installed one.
const ANSWERING: u64 = 32;

impl<S: Storage> RaftCore<S> {
    /// Returns the index up to which the log, which begins at `first_index`, may be dropped; `None`
    /// while it is short.
    ///
    /// A leader keeps the entries its slowest member needs: at most 7/8 of `limit` entries for an
    /// unresponsive member, which then receives a snapshot, and 32 times `limit` for a responsive
    /// one. Other nodes keep half of `limit`, because a member they may lead later seldom lags
    /// further.
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
                let most = if self.quorum.is_recent(id, timeout) {
                    limit.saturating_mul(ANSWERING)
                } else {
                    limit - limit / 8
                };
                let has = match progress.state {
                    // The member continues from the end of the snapshot.
                    ProgressState::Snapshot => progress.pending_snapshot,
                    _ => progress.matched,
                };
                has.max(applied.saturating_sub(most))
            });
            needed.min().unwrap_or(applied).min(applied)
        } else {
            applied - (limit / 2).min(applied)
        };
        // At least an eighth is dropped, so that a slow member does not cost a write per entry.
        (index + 1 >= first_index + limit / 8).then_some(index)
    }
}
