//! Tracks contact with the other members, in ticks, to detect the loss of a quorum.

use std::collections::BTreeMap;

use raft::eraftpb::ConfState;

/// Time of the last message from each member, on a clock of ticks.
///
/// Followers receive messages from their leader only, and a leader without a majority steps down. A
/// message of the leader therefore counts as contact with a majority. Without a leader, elections
/// make all voters send messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Contact {
    now: u64,
    heard: BTreeMap<u64, u64>,
    /// Last tick at which a majority was in contact.
    majority: u64,
    /// Tick since which no leader is known.
    leaderless: Option<u64>,
    /// Leader at the last [`Contact::settle`], and whether a tick has passed since.
    settled: u64,
    due: bool,
}

impl Contact {
    /// Records a message of member `from`; `leader` is the current leader, 0 if unknown.
    pub(super) fn hear(&mut self, from: u64, leader: u64) {
        self.heard.insert(from, self.now);
        if from == leader {
            self.majority = self.now;
        }
    }

    pub(super) fn tick(&mut self) {
        self.now += 1;
        self.due = true;
    }

    /// Whether [`Contact::settle`] would change more than the ages of contacts.
    pub(super) fn due(&self, leader: u64) -> bool {
        self.due || leader != self.settled
    }

    /// Recomputes the contact with a majority: `own` is this node's id, `leader` the current
    /// leader, 0 if unknown.
    pub(super) fn settle(&mut self, own: u64, leader: u64, conf: &ConfState) {
        (self.settled, self.due) = (leader, false);
        if leader != raft::INVALID_ID {
            self.leaderless = None;
        } else if self.leaderless.is_none() {
            self.leaderless = Some(self.now);
        }
        self.heard.retain(|&id, _| contains(conf, id));
        self.majority = self.majority.max(self.majority_heard(own, conf));
    }

    /// Returns the latest tick since which each member of some majority has sent a message.
    fn majority_heard(&self, own: u64, conf: &ConfState) -> u64 {
        let in_reach = |since: u64| {
            let heard = |id: &u64| *id == own || self.heard.get(id).is_some_and(|&at| at >= since);
            quorum(&conf.voters, heard) && quorum(&conf.voters_outgoing, heard)
        };
        let times = self.heard.values().copied().chain([self.now]);
        times.filter(|&at| in_reach(at)).max().unwrap_or_default()
    }

    /// Ticks since a majority was last in contact.
    pub(super) fn silent(&self) -> u64 {
        self.now - self.majority
    }

    /// Ticks since a leader was last known.
    pub(super) fn leaderless(&self) -> u64 {
        self.leaderless.map_or(0, |since| self.now - since)
    }

    /// Whether a message of `id` arrived within the last `ticks`.
    pub(super) fn within(&self, id: u64, ticks: u64) -> bool {
        let at = self.heard.get(&id);
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

/// Whether a majority of `voters` is `heard`. An empty half of a joint configuration is satisfied.
fn quorum(voters: &[u64], heard: impl Fn(&u64) -> bool) -> bool {
    let count = voters.iter().filter(|id| heard(id)).count();
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

    fn pass(contact: &mut Contact, ticks: u64, leader: u64, conf: &ConfState) {
        for _ in 0..ticks {
            contact.tick();
            contact.settle(1, leader, conf);
        }
    }

    #[test]
    fn majority_contact_is_as_old_as_oldest_member() {
        let conf = conf(&[1, 2, 3, 4, 5], &[]);
        let mut contact = Contact::default();
        pass(&mut contact, 3, 0, &conf);
        contact.hear(2, 0);
        pass(&mut contact, 4, 0, &conf);
        contact.hear(3, 0);
        pass(&mut contact, 5, 0, &conf);
        assert_eq!(contact.silent(), 9, "since the message of 2");
        contact.hear(9, 0);
        contact.settle(1, 0, &conf);
        assert_eq!(contact.silent(), 9, "a learner has no vote");
        contact.hear(4, 0);
        contact.settle(1, 0, &conf);
        assert_eq!(contact.silent(), 5, "since the message of 3");
    }

    #[test]
    fn leader_contact_counts_as_majority() {
        let conf = conf(&[1, 2, 3, 4, 5], &[]);
        let mut contact = Contact::default();
        pass(&mut contact, 30, 2, &conf);
        contact.hear(2, 2);
        contact.settle(1, 2, &conf);
        assert_eq!((contact.silent(), contact.leaderless()), (0, 0));
        pass(&mut contact, 7, 0, &conf);
        assert_eq!((contact.silent(), contact.leaderless()), (7, 6));
        pass(&mut contact, 1, 3, &conf);
        assert_eq!(contact.leaderless(), 0);
    }

    #[test]
    fn joint_configuration_needs_both_majorities() {
        let conf = conf(&[1, 2, 3], &[1, 4, 5]);
        let mut contact = Contact::default();
        pass(&mut contact, 5, 0, &conf);
        contact.hear(2, 0);
        contact.settle(1, 0, &conf);
        assert_eq!(contact.silent(), 5);
        contact.hear(4, 0);
        contact.settle(1, 0, &conf);
        assert_eq!(contact.silent(), 0);
    }

    #[test]
    fn single_or_missing_voters_keep_quorum() {
        for voters in [&[1][..], &[]] {
            let conf = conf(voters, &[]);
            let mut contact = Contact::default();
            pass(&mut contact, 50, 0, &conf);
            assert_eq!(contact.silent(), 0, "{voters:?}");
        }
    }
}
