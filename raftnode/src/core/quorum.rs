//! Tracks contact with the other members, in ticks, to detect the loss of a quorum.

use std::collections::BTreeMap;

use raft::eraftpb::ConfState;

/// Time of the last message from each member, on a clock of ticks.
///
/// Followers receive messages from their leader only, and a leader without a majority steps down. A
/// message of the leader therefore counts as contact with a majority. Without a leader, elections
/// make all voters send messages.
#[derive(Clone, Debug, Default)]
pub(super) struct QuorumTracker {
    now: u64,
    last_message: BTreeMap<u64, u64>,
    /// Last tick at which a majority was in contact.
    majority: u64,
    /// Tick since which no leader is known.
    leaderless: Option<u64>,
    /// Leader at the last [`QuorumTracker::update`], and whether a tick has passed since.
    last_leader: u64,
    changed: bool,
}

impl QuorumTracker {
    /// Records a message of member `from`; `leader` is the current leader, 0 if unknown.
    pub(super) fn record_message(&mut self, from: u64, leader: u64) {
        self.last_message.insert(from, self.now);
        if from == leader {
            self.majority = self.now;
        }
    }

    pub(super) fn tick(&mut self) {
        self.now += 1;
        self.changed = true;
    }

    /// Whether [`QuorumTracker::update`] would change more than the ages of contacts.
    pub(super) fn changed(&self, leader: u64) -> bool {
        self.changed || leader != self.last_leader
    }

    /// Recomputes the contact with a majority: `own` is this node's id, `leader` the current
    /// leader, 0 if unknown.
    pub(super) fn update(&mut self, own: u64, leader: u64, conf: &ConfState) {
        (self.last_leader, self.changed) = (leader, false);
        if leader != raft::INVALID_ID {
            self.leaderless = None;
        } else if self.leaderless.is_none() {
            self.leaderless = Some(self.now);
        }
        self.last_message.retain(|&id, _| contains(conf, id));
        self.majority = self.majority.max(self.last_quorum(own, conf));
    }

    /// Returns the latest tick since which each member of some majority has sent a message.
    fn last_quorum(&self, own: u64, conf: &ConfState) -> u64 {
        let in_reach = |since: u64| {
            let reached =
                |id: &u64| *id == own || self.last_message.get(id).is_some_and(|&at| at >= since);
            has_majority(&conf.voters, reached) && has_majority(&conf.voters_outgoing, reached)
        };
        let times = self.last_message.values().copied().chain([self.now]);
        times.filter(|&at| in_reach(at)).max().unwrap_or_default()
    }

    /// Ticks since a majority was last in contact.
    pub(super) fn ticks_without_quorum(&self) -> u64 {
        self.now - self.majority
    }

    /// Ticks since a leader was last known.
    pub(super) fn leaderless(&self) -> u64 {
        self.leaderless.map_or(0, |since| self.now - since)
    }

    /// Whether a message of `id` arrived within the last `ticks`.
    pub(super) fn is_recent(&self, id: u64, ticks: u64) -> bool {
        let at = self.last_message.get(&id);
        at.is_some_and(|at| self.now - at <= ticks)
    }
}

fn contains(conf: &ConfState, id: u64) -> bool {
    let lists = [
        &conf.voters,
        &conf.voters_outgoing,
        &conf.learners,
        &conf.learners_next,
    ];
    lists.iter().any(|list| list.contains(&id))
}

/// Whether `reached` holds for a majority of `voters`. An empty half of a joint configuration is
/// satisfied.
fn has_majority(voters: &[u64], reached: impl Fn(&u64) -> bool) -> bool {
    let count = voters.iter().filter(|id| reached(id)).count();
    voters.is_empty() || count > voters.len() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(voters: &[u64], outgoing: &[u64]) -> ConfState {
        ConfState {
            voters: voters.to_vec(),
            voters_outgoing: outgoing.to_vec(),
            learners: vec![9],
            ..ConfState::default()
        }
    }

    fn pass(quorum: &mut QuorumTracker, ticks: u64, leader: u64, conf: &ConfState) {
        for _ in 0..ticks {
            quorum.tick();
            quorum.update(1, leader, conf);
        }
    }

    #[test]
    fn majority_contact_is_as_old_as_oldest_member() {
        let conf = conf(&[1, 2, 3, 4, 5], &[]);
        let mut quorum = QuorumTracker::default();
        pass(&mut quorum, 3, 0, &conf);
        quorum.record_message(2, 0);
        pass(&mut quorum, 4, 0, &conf);
        quorum.record_message(3, 0);
        pass(&mut quorum, 5, 0, &conf);
        assert_eq!(quorum.ticks_without_quorum(), 9, "since the message of 2");
        quorum.record_message(9, 0);
        quorum.update(1, 0, &conf);
        assert_eq!(quorum.ticks_without_quorum(), 9, "a learner has no vote");
        quorum.record_message(4, 0);
        quorum.update(1, 0, &conf);
        assert_eq!(quorum.ticks_without_quorum(), 5, "since the message of 3");
    }

    #[test]
    fn leader_contact_counts_as_majority() {
        let conf = conf(&[1, 2, 3, 4, 5], &[]);
        let mut quorum = QuorumTracker::default();
        pass(&mut quorum, 30, 2, &conf);
        quorum.record_message(2, 2);
        quorum.update(1, 2, &conf);
        assert_eq!((quorum.ticks_without_quorum(), quorum.leaderless()), (0, 0));
        pass(&mut quorum, 7, 0, &conf);
        assert_eq!((quorum.ticks_without_quorum(), quorum.leaderless()), (7, 6));
        pass(&mut quorum, 1, 3, &conf);
        assert_eq!(quorum.leaderless(), 0);
    }

    #[test]
    fn joint_configuration_needs_both_majorities() {
        let conf = conf(&[1, 2, 3], &[1, 4, 5]);
        let mut quorum = QuorumTracker::default();
        pass(&mut quorum, 5, 0, &conf);
        quorum.record_message(2, 0);
        quorum.update(1, 0, &conf);
        assert_eq!(quorum.ticks_without_quorum(), 5);
        quorum.record_message(4, 0);
        quorum.update(1, 0, &conf);
        assert_eq!(quorum.ticks_without_quorum(), 0);
    }

    #[test]
    fn single_or_missing_voters_keep_quorum() {
        for voters in [&[1][..], &[]] {
            let conf = conf(voters, &[]);
            let mut quorum = QuorumTracker::default();
            pass(&mut quorum, 50, 0, &conf);
            assert_eq!(quorum.ticks_without_quorum(), 0, "{voters:?}");
        }
    }
}
