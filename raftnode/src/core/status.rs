//! Where this node stands.

use raft::{ProgressState, StateRole, Storage};

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

/// What a leader knows of one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The member.
    pub raft_id: u64,
    /// Index of the last entry it is known to have.
    pub matched: u64,
    /// Whether it was heard within the last election timeout.
    pub recent_active: bool,
    /// Whether it is being sent a snapshot, and nothing else until that is over.
    pub pending_snapshot: bool,
}

/// What becomes of a write that is asked for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// A leader is known; it decides.
    Ok,
    /// No leader is known, or it is not ready, as during an election. Soon there may be one.
    NoLeader,
    /// This side cannot elect one: it has not reached a majority of voters for two election
    /// timeouts.
    QuorumLost {
        /// Voters that it reaches, itself included.
        reachable: usize,
        /// Voters that make a majority.
        needed: usize,
    },
}

impl RaftStatus {
    /// What becomes of a write that is asked for now.
    #[must_use]
    pub fn writes(&self) -> Writes {
        let leads = self.role == Role::Leader;
        match self.leader_id {
            _ if self.quorum_lost => Writes::QuorumLost {
                reachable: self.reachable.len(),
                needed: self.voters.len() / 2 + 1,
            },
            Some(_) if leads == self.leading => Writes::Ok,
            _ => Writes::NoLeader,
        }
    }

    /// The voter that takes over at the least cost: not this one, heard lately, with most of the
    /// log, and among equals the one with the lowest id.
    #[must_use]
    pub fn successor(&self) -> Option<u64> {
        let others = self.progress.iter().filter(|p| p.raft_id != self.raft_id);
        let able = others.filter(|p| p.recent_active && !p.pending_snapshot);
        able.filter(|p| self.voters.contains(&p.raft_id))
            .max_by_key(|p| (p.matched, std::cmp::Reverse(p.raft_id)))
            .map(|p| p.raft_id)
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
    /// Whether this node leads, has applied an entry of its own term, so that its state holds
    /// everything that was acknowledged before, goes on applying, and is not handing leadership
    /// over.
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
    /// Whether a change of voters or learners is under way.
    pub changing_members: bool,
    /// What a leader knows of every member, itself included, by ascending id; empty on others.
    pub progress: Vec<Progress>,
    /// Voters that this node has heard within the last election timeout, itself included if it is
    /// one, ascending. A follower hears nobody but its leader while there is one.
    pub reachable: Vec<u64>,
    /// Ticks since which no leader is known, up to two election timeouts.
    pub leaderless_ticks: u64,
    /// Whether no majority of voters was in reach for two election timeouts.
    pub quorum_lost: bool,
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
        let timeout = self.config.election_ticks as u64;
        let heard = |id: u64| id == raft.id || self.contact.within(id, timeout);
        let reachable =
            |voters: &[u64]| sorted(voters.iter().copied().filter(|&id| heard(id)).collect());
        let mut progress = Vec::new();
        if leader {
            progress.extend(raft.prs().iter().map(|(&raft_id, p)| Progress {
                raft_id,
                matched: p.matched,
                recent_active: heard(raft_id),
                pending_snapshot: p.state == ProgressState::Snapshot,
            }));
            progress.sort_unstable_by_key(|p| p.raft_id);
        }
        RaftStatus {
            raft_id: raft.id,
            term: raft.term,
            role: raft.state.into(),
            leading: leader
                && !self.halted
                && self.applied_term == raft.term
                && raft.lead_transferee.is_none(),
            leader_id: (raft.leader_id != raft::INVALID_ID).then_some(raft.leader_id),
            last_index: raft.raft_log.last_index(),
            commit: raft.raft_log.committed,
            applied: raft.raft_log.applied(),
            changing_members: !conf.voters_outgoing.is_empty() || raft.has_pending_conf(),
            progress,
            reachable: reachable(&conf.voters),
            leaderless_ticks: self.contact.leaderless().min(2 * timeout),
            quorum_lost: self.quorum_lost(),
            voters: sorted(conf.voters),
            learners: sorted(conf.learners),
            halted: None,
        }
    }

    /// Whether no majority of voters was in reach for two election timeouts.
    pub(super) fn quorum_lost(&self) -> bool {
        self.contact.silent() >= 2 * self.config.election_ticks as u64
    }
}
