//! Which change of the raft configuration comes next: at most one at a time.
//!
//! The Node rows say who belongs to the cluster, the raft configuration who takes part in it.
//! Whatever stopped half-way (a join, a removal, a leader) left a difference between the two, and
//! the next plan removes it, so nothing has to remember what it was doing.
//!
//! A change that would leave less than a majority of its voters active is never made: nothing
//! could be committed after it, not even its own undoing. A leader that is to leave and finds
//! nobody to lead in its place stays, and its mark goes: it would be in the way of every other
//! removal, for good.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Voters a cluster has at most.
pub const MAX_VOTERS: usize = 7;
/// How long a leader has known a learner before it gives it a vote.
pub const SETTLED: Duration = Duration::from_secs(3);
/// How long a leader that leaves waits for somebody who could lead in its place.
pub const HEIRLESS: Duration = Duration::from_secs(10);
/// Entries a learner may be behind the commit index when it gets a vote.
pub const MAX_LAG: u64 = 100;

/// Why a leader that leaves is still there.
pub const NO_HEIR: &str = "no other member can lead";

/// Voters that a cluster of `members` should have: the largest odd number it can, up to
/// [`MAX_VOTERS`].
#[must_use]
pub fn target_voters(members: usize) -> usize {
    match members.min(MAX_VOTERS) {
        0 => 0,
        members => (members - 1) | 1,
    }
}

/// A Node row, as far as membership goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its hostname; voters are chosen in this order.
    pub hostname: String,
    /// Whether it is on its way out of the cluster.
    pub leaving: bool,
}

/// What the leader knows of a member's copy of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Last log index it is known to have.
    pub matched: u64,
    /// Whether it answered within the last election timeout.
    pub active: bool,
}

/// What a leader sees at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Raft id of the leader, which is also the one that plans.
    pub leader: u64,
    /// Its commit index.
    pub commit: u64,
    /// Whether a change of the configuration is under way.
    pub changing: bool,
    /// Raft ids with a vote.
    pub voters: BTreeSet<u64>,
    /// Raft ids that follow without a vote.
    pub learners: BTreeSet<u64>,
    /// Node rows by raft id.
    pub rows: BTreeMap<u64, Member>,
    /// Followers by raft id; the leader itself need not be there.
    pub progress: BTreeMap<u64, Progress>,
}

/// One step towards the configuration that the rows ask for. Each names a raft id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Add it to the configuration, without a vote.
    Add(u64),
    /// Give the learner a vote.
    Promote(u64),
    /// Take the vote away; it stays as a learner.
    Demote(u64),
    /// Drop the learner from the configuration.
    Remove(u64),
    /// Hand leadership to this voter, because the leader leaves.
    Transfer(u64),
    /// Delete its row: it left the configuration for good.
    Forget(u64),
    /// Clear the mark of the leader, which cannot leave.
    Keep(u64),
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing, or nothing before something under way has ended.
    Rest,
    /// This, and then look again.
    Act(Action),
    /// Nothing, although `raft_id` is to lose its vote or to leave.
    Blocked {
        /// The member that stays where it is.
        raft_id: u64,
        /// What is in the way.
        reason: &'static str,
    },
}

/// The policy of one leadership; a new leader starts with a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    first_seen: BTreeMap<u64, Duration>,
    /// Since when the leader leaves and nobody could lead in its place.
    heirless: Option<Duration>,
}

impl Policy {
    /// The policy of a leader that has seen nobody yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decides what to do at `now`, a time since any fixed moment.
    ///
    /// To be asked at least once every few seconds: a member counts as seen from the first call
    /// that finds it in the configuration.
    pub fn plan(&mut self, now: Duration, view: &View) -> Verdict {
        let configured = || view.voters.iter().chain(&view.learners).copied();
        self.first_seen
            .retain(|id, _| view.voters.contains(id) || view.learners.contains(id));
        for id in configured() {
            self.first_seen.entry(id).or_insert(now);
        }
        if view.changing {
            return Verdict::Rest;
        }
        if let Some(action) = view.reconcile() {
            return Verdict::Act(action);
        }
        let eligible: Vec<u64> = view
            .by_name(view.learners.iter().copied())
            .into_iter()
            .filter(|id| self.eligible(now, view, *id))
            .collect();
        if !view.leaves(view.leader) {
            self.heirless = None;
            return self.vote(view, &eligible);
        }
        let blocked = match view.hand_over(&eligible) {
            Verdict::Blocked { .. } => self.heirless(now, view),
            verdict => {
                self.heirless = None;
                return verdict;
            }
        };
        // Others that leave do not wait for it; one of them may be in its way.
        match self.vote(view, &eligible) {
            Verdict::Act(action) => Verdict::Act(action),
            Verdict::Rest | Verdict::Blocked { .. } => blocked,
        }
    }

    /// What becomes of a leader that leaves and cannot hand over: it waits for a member that is
    /// there and not ready to vote yet, for any length of time, and for one that is not there for
    /// a while.
    fn heirless(&mut self, now: Duration, view: &View) -> Verdict {
        let leader = view.leader;
        let stays = |(&id, row): (&u64, &Member)| id != leader && !row.leaving && view.active(id);
        if view.rows.iter().any(stays) || !view.rows.contains_key(&leader) {
            self.heirless = None;
        } else if now.saturating_sub(*self.heirless.get_or_insert(now)) >= HEIRLESS {
            return Verdict::Act(Action::Keep(leader));
        }
        Verdict::Blocked {
            raft_id: leader,
            reason: NO_HEIR,
        }
    }

    /// Whether learner `id` may get a vote.
    fn eligible(&self, now: Duration, view: &View, id: u64) -> bool {
        let settled = self
            .first_seen
            .get(&id)
            .is_some_and(|seen| now.saturating_sub(*seen) >= SETTLED);
        let progress = view.progress.get(&id).copied().unwrap_or_default();
        let lag = view.commit.saturating_sub(progress.matched);
        settled && progress.active && lag <= MAX_LAG && !view.leaves(id)
    }

    /// The next change of votes, and the end of those that leave.
    fn vote(&self, view: &View, eligible: &[u64]) -> Verdict {
        let stays = |id: &&u64| !view.leaves(**id);
        let staying = view.voters.iter().filter(stays).count();
        let members = staying + view.learners.iter().filter(stays).count();
        let target = target_voters(members);

        let mut demotable: Vec<u64> = view.voters.iter().copied().collect();
        demotable.retain(|&id| id != view.leader);
        let mut demotable = view.by_name(demotable);
        demotable.reverse();
        // Those that leave come first, then those that are one too many.
        demotable.sort_by_key(|&id| !view.leaves(id));
        demotable.retain(|&id| view.leaves(id) || staying > target);
        if let Some(&id) = demotable.iter().find(|&&id| view.safe_without(id)) {
            return Verdict::Act(Action::Demote(id));
        }
        let gone = view.learners.iter().copied().find(|&id| view.leaves(id));
        if let Some(id) = gone {
            return Verdict::Act(Action::Remove(id));
        }
        // An even number of voters survives no more failures than one less: two are promoted
        // together or not at all.
        let promotes = staying < target && (staying % 2 == 0 || eligible.len() > 1);
        if promotes
            && view.voters.len() < MAX_VOTERS
            && let Some(&id) = eligible.first()
        {
            return Verdict::Act(Action::Promote(id));
        }
        match demotable.first() {
            Some(&raft_id) => Verdict::Blocked {
                raft_id,
                reason: "the voters that would be left are no active majority",
            },
            None => Verdict::Rest,
        }
    }
}

impl View {
    /// A difference between rows and configuration that is no matter of votes.
    fn reconcile(&self) -> Option<Action> {
        let mut outside = self
            .rows
            .iter()
            .filter(|(id, _)| !self.voters.contains(id) && !self.learners.contains(id));
        outside.next().map(|(&id, row)| match row.leaving {
            true => Action::Forget(id),
            false => Action::Add(id),
        })
    }

    /// Whether `id` has no place in the configuration: it leaves, or no row speaks for it.
    fn leaves(&self, id: u64) -> bool {
        self.rows.get(&id).is_none_or(|row| row.leaving)
    }

    /// `ids` in the order of their hostnames; those without a row last.
    fn by_name(&self, ids: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut ids: Vec<u64> = ids.into_iter().collect();
        ids.sort_by_key(|id| {
            let name = self.rows.get(id).map(|row| row.hostname.as_str());
            (name.is_none(), name, *id)
        });
        ids
    }

    fn active(&self, id: u64) -> bool {
        id == self.leader || self.progress.get(&id).is_some_and(|p| p.active)
    }

    /// Whether an active majority is left when `id` has no vote any more.
    fn safe_without(&self, id: u64) -> bool {
        let left = self.voters.iter().filter(|&&voter| voter != id);
        let (all, active) = left.fold((0, 0), |(all, active), &voter| {
            (all + 1, active + usize::from(self.active(voter)))
        });
        2 * active > all
    }

    /// How a leader that leaves gets rid of its leadership.
    fn hand_over(&self, eligible: &[u64]) -> Verdict {
        let heirs = self
            .by_name(self.voters.iter().copied())
            .into_iter()
            .filter(|&id| id != self.leader && !self.leaves(id) && self.active(id));
        let matched = |id: u64| self.progress.get(&id).map_or(0, |p| p.matched);
        // Of those that have the most of the log the first by name: `max_by_key` returns the last.
        if let Some(id) = heirs.rev().max_by_key(|&id| matched(id)) {
            return Verdict::Act(Action::Transfer(id));
        }
        match eligible.first() {
            Some(&id) if self.voters.len() < MAX_VOTERS => Verdict::Act(Action::Promote(id)),
            Some(_) | None => Verdict::Blocked {
                raft_id: self.leader,
                reason: NO_HEIR,
            },
        }
    }
}

#[cfg(test)]
mod tests;
