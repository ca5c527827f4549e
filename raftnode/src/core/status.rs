//! Where this node stands.

use raft::{StateRole, Storage};

use super::RaftCore;

/// Part a node plays in its term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Raft does not run: not started, or between a failure and the restart.
    #[default]
    Stopped,
    /// Follows a leader or waits for one.
    Follower,
    /// Asks whether it could win an election.
    PreCandidate,
    /// Stands for election.
    Candidate,
    /// Leads.
    Leader,
}

impl From<StateRole> for Role {
    fn from(role: StateRole) -> Self {
        match role {
            StateRole::Follower => Self::Follower,
            StateRole::Candidate => Self::Candidate,
            StateRole::Leader => Self::Leader,
            StateRole::PreCandidate => Self::PreCandidate,
        }
    }
}

/// Raft at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RaftStatus {
    /// Id of this node in the group; 0 before the first start.
    pub raft_id: u64,
    /// Current term.
    pub term: u64,
    /// Part of this node in the term.
    pub role: Role,
    /// Whether this node leads and has applied an entry of its own term, so that its state holds
    /// everything that was acknowledged before.
    pub leading: bool,
    /// Leader of the term, if it is known.
    pub leader_id: Option<u64>,
    /// Index of the last entry in the log.
    pub last_index: u64,
    /// Index of the last entry known to be committed.
    pub commit: u64,
    /// Index of the last applied entry.
    pub applied: u64,
    /// Ids with a vote, ascending.
    pub voters: Vec<u64>,
    /// Ids that follow without a vote, ascending.
    pub learners: Vec<u64>,
    /// Why entries are no longer applied, if that is so: this version does not understand one.
    pub halted: Option<String>,
}

impl<S: Storage> RaftCore<S> {
    /// Where this node stands.
    #[must_use]
    pub fn status(&self) -> RaftStatus {
        let raft = &self.raw.raft;
        let conf = raft.prs().conf().to_conf_state();
        let sorted = |mut ids: Vec<u64>| {
            ids.sort_unstable();
            ids
        };
        let leader = raft.state == StateRole::Leader;
        RaftStatus {
            raft_id: raft.id,
            term: raft.term,
            role: raft.state.into(),
            leading: leader && self.applied_term == raft.term,
            leader_id: (raft.leader_id != raft::INVALID_ID).then_some(raft.leader_id),
            last_index: raft.raft_log.last_index(),
            commit: raft.raft_log.committed,
            applied: raft.raft_log.applied(),
            voters: sorted(conf.voters),
            learners: sorted(conf.learners),
            halted: None,
        }
    }

    /// Index up to which the log may be dropped; `None` while it is short.
    ///
    /// The leader keeps what its slowest member still needs, but never more than `limit` entries:
    /// a member that is further behind receives a snapshot.
    #[must_use]
    pub fn compaction(&self, first_index: u64, limit: u64) -> Option<u64> {
        let raft = &self.raw.raft;
        let applied = raft.raft_log.applied();
        if (applied + 1).saturating_sub(first_index) < limit {
            return None;
        }
        let slowest = (raft.state == StateRole::Leader)
            .then(|| raft.prs().iter().map(|(_, p)| p.matched).min())
            .flatten()
            .unwrap_or(applied);
        // Dropping an eighth at least keeps a dead member from costing a write per entry.
        let oldest = applied.saturating_sub(limit - limit / 8);
        Some(slowest.clamp(oldest, applied))
    }
}
