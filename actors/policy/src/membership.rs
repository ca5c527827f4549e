//! Policy of raft configuration changes, at most one at a time.
//!
//! Node rows list the members of the cluster; the raft configuration lists the replicas of its log.
//! An interrupted operation (a join, a removal, a change of leader) leaves a difference between the
//! two, which the next plan removes, so no operation needs state of its own.
//!
//! A change that would leave less than an active majority of its voters is never made: nothing
//! could be committed after it, not even its reversal. A leader that is leaving and finds no
//! transfer target stays, and its mark is cleared: otherwise it would block every other removal for
//! good.
//!
//! A marked member drains first: it keeps its role until no replica needs it. A drain without
//! progress for [`DRAIN_LIMIT`] is given up; the member then stays. The limit counts from the last
//! replica handed over, or from the first view of this leadership that shows the drain, so that no
//! clock is involved.

mod drain;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use jaco_state::State;

pub use drain::{
    DRAIN_LIMIT, Departure, DrainProgress, can_leave, clear_mark, departure, end_drain, leaving,
    records_timeout, request_removal, skips_drain, timed_out,
};

/// Maximum number of voters.
pub const MAX_VOTERS: usize = 7;
/// Time for which a leader must have known a learner before it promotes it.
pub const MIN_LEARNER_AGE: Duration = Duration::from_secs(3);
/// Time for which a leaving leader without a transfer target waits before it gives up leaving.
pub const TRANSFER_TARGET_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum lag of a learner behind the commit index at its promotion, in entries.
pub const MAX_LAG: u64 = 100;

/// Reason reported while a leaving leader has no transfer target.
pub const NO_TRANSFER_TARGET: &str = "no other member can lead";

/// Number of voters for a cluster of `members`: the largest odd number up to it and to
/// [`MAX_VOTERS`]; 0 without members.
#[must_use]
pub fn target_voters(members: usize) -> usize {
    match members.min(MAX_VOTERS) {
        0 => 0,
        members => (members - 1) | 1,
    }
}

/// Membership part of a Node row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Hostname; voters are chosen in this order.
    pub hostname: String,
    /// How far its removal is.
    pub departure: Departure,
    /// Ids of the replicas that it drains of.
    pub remaining: BTreeSet<String>,
}

/// Replication progress of a member, as seen by the leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Highest log index known to match.
    pub matched: u64,
    /// Whether it responded recently.
    pub active: bool,
}

/// Snapshot of the leader's view, the input of the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Raft id of the leader, on which the policy runs.
    pub leader: u64,
    /// Commit index of the leader.
    pub commit: u64,
    /// Whether a configuration change is in progress.
    pub changing: bool,
    /// Raft ids of the voters.
    pub voters: BTreeSet<u64>,
    /// Raft ids of the learners.
    pub learners: BTreeSet<u64>,
    /// Node rows by raft id.
    pub rows: BTreeMap<u64, Member>,
    /// Progress of the followers by raft id; the leader may be absent.
    pub progress: BTreeMap<u64, Progress>,
}

/// One step towards the configuration that the rows describe, with the raft id it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Add the member as a learner.
    Add(u64),
    /// Promote the learner to voter.
    Promote(u64),
    /// Demote the voter to learner.
    Demote(u64),
    /// Remove the learner from the configuration.
    Remove(u64),
    /// Transfer leadership to this voter, because the leader is leaving.
    Transfer(u64),
    /// Delete the row of a member that left the configuration.
    DeleteRow(u64),
    /// Clear the mark of the leader, which cannot leave.
    ClearMark(u64),
    /// Give up the drain of the member, which took too long.
    EndDrain(u64),
}

/// A demotion or removal that is due but impossible now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The member that keeps its role.
    pub raft_id: u64,
    /// Reason.
    pub reason: &'static str,
}

/// Decision about one view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// Nothing to do, or nothing until a change in progress ends.
    Idle,
    Act(Action),
    Blocked(Blocked),
}

/// State of the policy during one leadership; a new leader starts with a new policy.
///
/// It has no timeout: followers answer and catch up without an event, so the leader looks at its
/// view again after a few seconds, and more often while a member is leaving.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    first_seen: BTreeMap<u64, Instant>,
    /// The drains in progress.
    drains: BTreeMap<u64, DrainProgress>,
    /// Start of the time in which the leader is leaving without a transfer target.
    no_target_since: Option<Instant>,
    action: Option<Action>,
    blocked: Option<Blocked>,
}

impl Policy {
    /// Returns the policy of a new leader.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decides about the present view. An action that was not taken before is obsolete.
    ///
    /// Must be called at least every few seconds: the age of a learner counts from the first call
    /// that finds it in the configuration.
    pub fn handle_view(&mut self, now: Instant, view: &View) {
        (self.action, self.blocked) = match self.decide(now, view) {
            Decision::Idle => (None, None),
            Decision::Act(action) => (Some(action), None),
            Decision::Blocked(blocked) => (None, Some(blocked)),
        };
    }

    /// Takes the action for the last view. Once it is carried out, the next view is due at once.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.action.take()
    }

    /// Demotion or removal that the last view blocks.
    #[must_use]
    pub fn blocked(&self) -> Option<Blocked> {
        self.blocked
    }

    fn decide(&mut self, now: Instant, view: &View) -> Decision {
        let configured = || view.voters.iter().chain(&view.learners).copied();
        self.first_seen
            .retain(|id, _| view.voters.contains(id) || view.learners.contains(id));
        for id in configured() {
            self.first_seen.entry(id).or_insert(now);
        }
        let overdue = self.overdue_drain(now, view);
        if view.changing {
            return Decision::Idle;
        }
        if let Some(id) = overdue {
            return Decision::Act(Action::EndDrain(id));
        }
        if let Some(action) = view.reconcile() {
            return Decision::Act(action);
        }
        let eligible: Vec<u64> = view
            .by_name(view.learners.iter().copied())
            .into_iter()
            .filter(|id| self.eligible(now, view, *id))
            .collect();
        if !view.is_leaving(view.leader) {
            self.no_target_since = None;
            return self.plan_votes(view, &eligible);
        }
        let blocked = match view.plan_transfer(&eligible) {
            Decision::Blocked(_) => self.without_target(now, view),
            decision => {
                self.no_target_since = None;
                return decision;
            }
        };
        // Other removals do not wait for the leader's; one of them may even block it.
        match self.plan_votes(view, &eligible) {
            Decision::Act(action) => Decision::Act(action),
            Decision::Idle | Decision::Blocked(_) => blocked,
        }
    }

    /// Updates the drains in progress; returns the first one that made no progress for too long.
    fn overdue_drain(&mut self, now: Instant, view: &View) -> Option<u64> {
        let is_draining = |row: &Member| row.departure == Departure::Draining;
        self.drains
            .retain(|id, _| view.rows.get(id).is_some_and(is_draining));
        for (&id, row) in view.rows.iter().filter(|(_, row)| is_draining(row)) {
            let drain = self.drains.entry(id);
            let drain = drain.or_insert_with(|| DrainProgress::new(now));
            drain.handle_remaining(now, row.remaining.iter().map(String::as_str));
        }
        let mut drains = self.drains.iter();
        let overdue =
            drains.find(|(_, drain)| now.saturating_duration_since(drain.last()) >= DRAIN_LIMIT);
        overdue.map(|(&id, _)| id)
    }

    /// Decision for a leaving leader without a transfer target: it waits without a limit for an
    /// active member that is not eligible yet, otherwise for [`TRANSFER_TARGET_TIMEOUT`], and then
    /// gives up leaving.
    fn without_target(&mut self, now: Instant, view: &View) -> Decision {
        let leader = view.leader;
        let stays = |&id: &u64| id != leader && !view.is_marked(id) && view.active(id);
        if view.rows.keys().any(stays) || !view.rows.contains_key(&leader) {
            self.no_target_since = None;
        } else if now.saturating_duration_since(*self.no_target_since.get_or_insert(now))
            >= TRANSFER_TARGET_TIMEOUT
        {
            return Decision::Act(Action::ClearMark(leader));
        }
        Decision::Blocked(Blocked {
            raft_id: leader,
            reason: NO_TRANSFER_TARGET,
        })
    }

    /// Whether learner `id` may be promoted.
    fn eligible(&self, now: Instant, view: &View, id: u64) -> bool {
        let old_enough = self
            .first_seen
            .get(&id)
            .is_some_and(|seen| now.saturating_duration_since(*seen) >= MIN_LEARNER_AGE);
        let progress = view.progress.get(&id).copied().unwrap_or_default();
        let lag = view.commit.saturating_sub(progress.matched);
        old_enough && progress.active && lag <= MAX_LAG && !view.is_marked(id)
    }

    /// Next promotion, demotion, or removal of a leaving member.
    fn plan_votes(&self, view: &View, eligible: &[u64]) -> Decision {
        let stays = |id: &&u64| !view.is_leaving(**id);
        let staying = view.voters.iter().filter(stays).count();
        let members = staying + view.learners.iter().filter(stays).count();
        let target = target_voters(members);

        let mut demotable: Vec<u64> = view.voters.iter().copied().collect();
        demotable.retain(|&id| id != view.leader);
        let mut demotable = view.by_name(demotable);
        demotable.reverse();
        // Leaving voters come first, then those above the target.
        demotable.sort_by_key(|&id| !view.is_leaving(id));
        demotable.retain(|&id| view.is_leaving(id) || staying > target);
        if let Some(&id) = demotable.iter().find(|&&id| view.safe_without(id)) {
            return Decision::Act(Action::Demote(id));
        }
        let gone = view
            .learners
            .iter()
            .copied()
            .find(|&id| view.is_leaving(id));
        if let Some(id) = gone {
            return Decision::Act(Action::Remove(id));
        }
        // An even number of voters tolerates no more failures than one less, so two are promoted
        // together or none.
        let promotes = staying < target && (staying % 2 == 0 || eligible.len() > 1);
        if promotes
            && view.voters.len() < MAX_VOTERS
            && let Some(&id) = eligible.first()
        {
            return Decision::Act(Action::Promote(id));
        }
        match demotable.first() {
            Some(&raft_id) => Decision::Blocked(Blocked {
                raft_id,
                reason: "the voters that would be left are no active majority",
            }),
            None => Decision::Idle,
        }
    }
}

impl View {
    /// First difference between rows and configuration that involves no votes.
    fn reconcile(&self) -> Option<Action> {
        let mut outside = self
            .rows
            .iter()
            .filter(|(id, _)| !self.voters.contains(id) && !self.learners.contains(id));
        outside.next().map(|(&id, row)| match row.departure {
            Departure::Staying => Action::Add(id),
            // Outside the configuration it learns of no row, so it has nothing to hand over.
            Departure::Draining | Departure::Leaving => Action::DeleteRow(id),
        })
    }

    /// Progress of the removal of `id`; one without a row is leaving.
    fn departure(&self, id: u64) -> Departure {
        let row = self.rows.get(&id);
        row.map_or(Departure::Leaving, |row| row.departure)
    }

    /// Whether `id` does not belong into the configuration.
    fn is_leaving(&self, id: u64) -> bool {
        self.departure(id) == Departure::Leaving
    }

    /// Whether `id` is leaving, or will once it is drained.
    fn is_marked(&self, id: u64) -> bool {
        self.departure(id) != Departure::Staying
    }

    /// Sorts `ids` by hostname; those without a row come last.
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

    /// Whether an active majority remains without the vote of `id`.
    fn safe_without(&self, id: u64) -> bool {
        let left = self.voters.iter().filter(|&&voter| voter != id);
        let (all, active) = left.fold((0, 0), |(all, active), &voter| {
            (all + 1, active + usize::from(self.active(voter)))
        });
        2 * active > all
    }

    /// How a leaving leader gives up leadership.
    fn plan_transfer(&self, eligible: &[u64]) -> Decision {
        let targets = self
            .by_name(self.voters.iter().copied())
            .into_iter()
            .filter(|&id| id != self.leader && !self.is_marked(id) && self.active(id));
        let matched = |id: u64| self.progress.get(&id).map_or(0, |p| p.matched);
        // Longest matching log first, then the first hostname: `max_by_key` returns the last
        // maximum.
        if let Some(id) = targets.rev().max_by_key(|&id| matched(id)) {
            return Decision::Act(Action::Transfer(id));
        }
        match eligible.first() {
            Some(&id) if self.voters.len() < MAX_VOTERS => Decision::Act(Action::Promote(id)),
            Some(_) | None => Decision::Blocked(Blocked {
                raft_id: self.leader,
                reason: NO_TRANSFER_TARGET,
            }),
        }
    }
}

/// Returns the Node rows of `state` by raft id, as [`View::rows`].
#[must_use]
pub fn rows(state: &State) -> BTreeMap<u64, Member> {
    let rows = state.nodes.values().filter(|node| node.raft_id != 0);
    let rows = rows.map(|node| {
        let (departure, remaining) = departure(state, node);
        let member = Member {
            hostname: node.hostname.clone(),
            departure,
            remaining,
        };
        (node.raft_id, member)
    });
    rows.collect()
}

#[cfg(test)]
mod tests;
