//! Raft status of this node.

use std::time::Instant;

use raft::{ProgressState, StateRole, Storage};

use super::RaftCore;

/// Raft role of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Raft does not run: not started, or between a failure and the restart.
    #[default]
    Stopped,
    /// Follows a leader or waits for one.
    Follower,
    /// Runs a pre-vote.
    PreCandidate,
    /// Runs an election.
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

/// Replication state of one member, as known to the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Raft id of the member.
    pub raft_id: u64,
    /// Index of the last entry that the member is known to have.
    pub matched: u64,
    /// Whether a message of the member arrived within the last election timeout.
    pub recent_active: bool,
    /// Whether the member is being sent a snapshot; it receives no entries until that ends.
    pub pending_snapshot: bool,
}

/// Expected outcome of a write requested now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// A leader is known and decides.
    Ok,
    /// No leader is known or it is not ready, as during an election. The state is temporary.
    NoLeader,
    /// This node's side of a partition cannot elect a leader: no majority of voters was in contact
    /// for two election timeouts.
    QuorumLost {
        /// Number of voters in contact, this node included.
        reachable: usize,
        /// Number of voters that form a majority.
        needed: usize,
    },
}

impl RaftStatus {
    /// Returns the expected outcome of a write requested now.
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

    /// Whether raft's thread hangs, so that this node neither leads nor follows the log.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled_since.is_some()
    }

    /// Returns the voter to transfer leadership to: a recently active one other than this node with
    /// the longest matched log, and among equals the one with the lowest id.
    #[must_use]
    pub fn transfer_target(&self) -> Option<u64> {
        let others = self.progress.iter().filter(|p| p.raft_id != self.raft_id);
        let able = others.filter(|p| p.recent_active && !p.pending_snapshot);
        able.filter(|p| self.voters.contains(&p.raft_id))
            .max_by_key(|p| (p.matched, std::cmp::Reverse(p.raft_id)))
            .map(|p| p.raft_id)
    }
}

/// Snapshot of the raft state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RaftStatus {
    /// Id of this node in the group; 0 before the first start.
    pub raft_id: u64,
    /// Current term.
    pub term: u64,
    /// Role of this node in the term.
    pub role: Role,
    /// Whether this node is the leader, has applied an entry of its own term (so that its state
    /// includes everything acknowledged before), has not stopped applying, and is not transferring
    /// leadership.
    pub leading: bool,
    /// Leader of the term, if it is known.
    pub leader_id: Option<u64>,
    /// Index of the last entry in the log.
    pub last_index: u64,
    /// Index of the last entry known to be committed.
    pub commit: u64,
    /// Index of the last applied entry.
    pub applied: u64,
    /// Ids of the voters, ascending.
    pub voters: Vec<u64>,
    /// Ids of the learners, ascending.
    pub learners: Vec<u64>,
    /// Whether a change of voters or learners is pending.
    pub changing_members: bool,
    /// On a leader, the replication state of every member including itself, by ascending id; else
    /// empty.
    pub progress: Vec<Progress>,
    /// Voters in contact within the last election timeout, ascending; includes this node if it
    /// votes. A follower receives messages from its leader only, while there is one.
    pub reachable: Vec<u64>,
    /// Ticks without a known leader, at most two election timeouts.
    pub leaderless_ticks: u64,
    /// Whether no majority of voters was in contact for two election timeouts.
    pub quorum_lost: bool,
    /// Time of the last contact with a majority, while `quorum_lost`; set by the driver.
    pub quorum_lost_since: Option<Instant>,
    /// Time of the last progress of raft's thread, while it hangs, as on a disk that does not
    /// answer; set by the driver's watchdog. All other fields but `leading` are outdated then.
    pub stalled_since: Option<Instant>,
    /// Reason why entries are no longer applied, if so: this version does not understand one of
    /// them.
    pub halted: Option<String>,
}

impl<S: Storage> RaftCore<S> {
    /// Returns the current raft status.
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
        let recent = |id: u64| id == raft.id || self.quorum.is_recent(id, timeout);
        let reachable =
            |voters: &[u64]| sorted(voters.iter().copied().filter(|&id| recent(id)).collect());
        let mut progress = Vec::new();
        if leader {
            progress.extend(raft.prs().iter().map(|(&raft_id, p)| Progress {
                raft_id,
                matched: p.matched,
                recent_active: recent(raft_id),
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
            leaderless_ticks: self.quorum.leaderless().min(2 * timeout),
            quorum_lost: self.quorum_lost(),
            quorum_lost_since: None,
            stalled_since: None,
            voters: sorted(conf.voters),
            learners: sorted(conf.learners),
            halted: None,
        }
    }

    /// Whether no majority of voters was in contact for two election timeouts.
    pub(super) fn quorum_lost(&self) -> bool {
        self.quorum.ticks_without_quorum() >= self.quorum_lost_after()
    }

    /// Ticks without contact with a majority after which the quorum counts as lost.
    pub(super) fn quorum_lost_after(&self) -> u64 {
        2 * self.config.election_ticks as u64
    }
}
