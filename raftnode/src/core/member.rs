//! Membership changes, one member at a time.

use raft::{
    StateRole, Storage,
    eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2},
};

use super::RaftCore;

/// One change of the configuration; carries the raft id of the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberChange {
    /// Adds a node as a learner, which follows without a vote.
    AddLearner(u64),
    /// Makes a learner a voter.
    Promote(u64),
    /// Makes a voter a learner.
    Demote(u64),
    /// Removes a voter or learner.
    Remove(u64),
}

/// Reason why a configuration change was not appended; a retry is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeRefused {
    /// This node does not lead, or is transferring leadership.
    #[error("not the leader")]
    NotLeader,
    /// Another change has not been applied yet.
    #[error("another change of members is pending")]
    Pending,
    /// The change does not apply to the member: promoting a node that is not a learner, demoting
    /// one that is not a voter, removing or demoting the leader itself or the last voter, or the id
    /// is 0.
    #[error("the member is not what the change needs")]
    NotApplicable,
}

impl MemberChange {
    /// Returns the raft id of the member that changes.
    #[must_use]
    pub fn raft_id(self) -> u64 {
        match self {
            Self::AddLearner(id) | Self::Promote(id) | Self::Demote(id) | Self::Remove(id) => id,
        }
    }

    /// Whether a configuration with these voters and learners already includes the change.
    #[must_use]
    pub fn is_done(self, voters: &[u64], learners: &[u64]) -> bool {
        let (votes, learns) = (
            voters.contains(&self.raft_id()),
            learners.contains(&self.raft_id()),
        );
        match self {
            Self::AddLearner(_) => votes || learns,
            Self::Promote(_) => votes,
            Self::Demote(_) => learns,
            Self::Remove(_) => !votes && !learns,
        }
    }

    fn conf_change(self) -> ConfChangeV2 {
        let mut single = ConfChangeSingle {
            node_id: self.raft_id(),
            ..ConfChangeSingle::default()
        };
        single.set_change_type(match self {
            Self::AddLearner(_) | Self::Demote(_) => ConfChangeType::AddLearnerNode,
            Self::Promote(_) => ConfChangeType::AddNode,
            Self::Remove(_) => ConfChangeType::RemoveNode,
        });
        ConfChangeV2 {
            changes: vec![single],
            ..ConfChangeV2::default()
        }
    }
}

impl<S: Storage> RaftCore<S> {
    /// Proposes a configuration change. [`RaftStatus`](super::RaftStatus) shows it once it is
    /// applied; a change that is already in effect is not appended.
    ///
    /// # Errors
    /// [`ChangeRefused`]; nothing was appended.
    pub fn handle_member_change(&mut self, change: MemberChange) -> Result<(), ChangeRefused> {
        let raft = &self.raw.raft;
        if raft.state != StateRole::Leader || raft.lead_transferee.is_some() {
            return Err(ChangeRefused::NotLeader);
        }
        let conf = raft.prs().conf().to_conf_state();
        let id = change.raft_id();
        let (votes, learns) = (conf.voters.contains(&id), conf.learners.contains(&id));
        let shrinks = votes && matches!(change, MemberChange::Demote(_) | MemberChange::Remove(_));
        let applicable = match change {
            _ if id == raft::INVALID_ID => false,
            _ if shrinks => id != raft.id && conf.voters.len() > 1,
            MemberChange::Promote(_) => votes || learns,
            MemberChange::Demote(_) => learns,
            MemberChange::AddLearner(_) | MemberChange::Remove(_) => true,
        };
        if !applicable {
            return Err(ChangeRefused::NotApplicable);
        }
        let joint = !conf.voters_outgoing.is_empty();
        if joint || raft.has_pending_conf() {
            return Err(ChangeRefused::Pending);
        }
        if change.is_done(&conf.voters, &conf.learners) {
            return Ok(());
        }
        let proposed = self
            .raw
            .propose_conf_change(Vec::new(), change.conf_change());
        self.after_event();
        proposed.map_err(|_| ChangeRefused::NotLeader)
    }
}
