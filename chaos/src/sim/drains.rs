//! Removals of members: their requests, and the judge of their drains.
//!
//! A removal is forced, as an operator would, only if nothing else can end its drain: a replica
//! that no other host can take. Every other drain must make progress by itself once the faults are
//! over.

use std::collections::{BTreeMap, BTreeSet};

use jaco_policy::{
    membership::{request_removal, skips_drain},
    scheduler::{drain_check, moves, projects::Projects},
};
use jaco_proto::v1::command::Payload;
use jaco_state::State;

use super::{
    calls::{Change, Requester},
    cluster::Cluster,
    documents,
    time::{SECOND, Time},
};

/// Time without progress after which a drain that cannot end is forced.
const PATIENCE: Time = 60 * SECOND;
/// Time within which a drain that can end makes progress. Refused pulls and proposals are retried
/// after half a minute at most, and sweeps come every half minute.
const PROGRESS_BOUND: Time = 120 * SECOND;

/// A removal that waits for replicas.
#[derive(Debug)]
struct Drain {
    /// Replicas that still need the member.
    remaining: BTreeSet<String>,
    /// Time of the last progress, or of the end of the faults.
    since: Time,
}

/// Removals of the run.
#[derive(Debug, Default)]
pub(super) struct Drains {
    /// Drains in progress once the faults are over, by raft id.
    waiting: BTreeMap<u64, Drain>,
    /// Members that had replicas to hand over when their removal was requested.
    needed: BTreeSet<u64>,
    forced: BTreeSet<u64>,
    /// Time of the last progress of any drain.
    pub(super) progressed: Time,
}

impl Drains {
    /// Whether the removed member `id` has handed its replicas over.
    pub(super) fn handed_over(&self, id: u64) -> bool {
        self.needed.contains(&id) && !self.forced.contains(&id)
    }

    /// Updates the drain of member `id`; returns the time since its last progress.
    fn look(&mut self, id: u64, remaining: BTreeSet<String>, now: Time) -> Time {
        let drain = self.waiting.entry(id).or_insert_with(|| Drain {
            remaining: remaining.clone(),
            since: now,
        });
        if !drain.remaining.is_subset(&remaining) {
            drain.since = now;
            self.progressed = now;
        }
        drain.remaining = remaining;
        now - drain.since
    }
}

impl Cluster {
    /// Marks a member for removal, as an operator would, unless too few would be left. The removal
    /// is forced if it would strand a replica.
    pub(super) fn leave(&mut self, id: u64) {
        let newest = self.oracle.newest();
        let leaving = newest.nodes.values().filter(|node| node.draining).count();
        let staying = newest.nodes.len() - leaving;
        let (Some(leader), true) = (self.leader(), staying > 2) else {
            return;
        };
        let row = newest.nodes.get(&*format!("n{id}"));
        if row.is_none_or(|row| skips_drain(row)) {
            return;
        }
        let strands = is_stuck(newest, &format!("n{id}"));
        self.mark(leader, id, strands);
    }

    /// Looks at the drains in progress once the faults are over: forces those that cannot end, and
    /// reports one that could and makes no progress.
    pub(super) fn check_drains(&mut self) {
        let now = self.now;
        let newest = std::sync::Arc::clone(self.oracle.newest());
        let nodes = newest.nodes.values();
        let waiting: BTreeMap<u64, &str> = nodes
            .filter(|node| node.draining && !skips_drain(node))
            .map(|node| (node.raft_id, node.hostname.as_str()))
            .collect();
        self.drains.waiting.retain(|id, _| waiting.contains_key(id));
        for (id, host) in waiting {
            let remaining = drain_check::remaining(&newest, host);
            let ids = remaining.iter().map(|&id| id.to_owned()).collect();
            let idle = self.drains.look(id, ids, now);
            if idle < PATIENCE {
                continue;
            }
            if is_stuck(&newest, host) {
                if let Some(leader) = self.leader() {
                    self.mark(leader, id, true);
                }
            } else if idle > PROGRESS_BOUND {
                let what = format!(
                    "{host} is to leave, and no replica was handed over for {} s; other hosts \
                     can take what needs it: {remaining:?}",
                    idle / SECOND
                );
                self.oracle.violate("drains end", what);
            }
        }
    }

    fn mark(&mut self, leader: u64, id: u64, force: bool) {
        self.count(match force {
            true => "forced removals",
            false => "drained removals",
        });
        let newest = self.oracle.newest();
        if !drain_check::remaining(newest, &format!("n{id}")).is_empty() {
            self.drains.needed.insert(id);
        }
        if force {
            self.drains.forced.insert(id);
        }
        let Some(row) = newest.nodes.get(&*format!("n{id}")) else {
            return;
        };
        let update = request_removal(row, force);
        let Some(command) = self.node_command(leader, |_| Payload::NodeStatusUpdate(update)) else {
            return;
        };
        self.note(&[23, id], || format!("n{id} is to leave, forced: {force}"));
        self.submit(leader, Requester::Detached, Change::Command(command));
    }
}

/// Whether nothing but force can end the drain of `host`: no other host can take one of its
/// replicas, or its replacement has spent its restart budget.
fn is_stuck(state: &State, host: &str) -> bool {
    let mut projects = Projects::reading_with(documents::templates);
    let is_spent = |id: &str| {
        let row = state.replicas_desired.get(id);
        row.is_some_and(|row| row.host != host && moves::is_exhausted(state, row))
    };
    let remaining = drain_check::remaining(state, host);
    remaining.into_iter().any(is_spent)
        || !drain_check::stranded(state, host, &mut projects).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn each_handed_over_replica_restarts_the_time() {
        let mut drains = Drains::default();
        assert_eq!(drains.look(3, ids(&["a", "b"]), 100), 0);
        assert_eq!(drains.look(3, ids(&["a", "b"]), 150), 50);
        assert_eq!(drains.look(3, ids(&["b"]), 180), 0);
        assert_eq!(drains.progressed, 180);
        assert_eq!(drains.look(3, ids(&["b", "c"]), 190), 10, "a new replica");
        assert_eq!(drains.look(3, ids(&["c"]), 200), 0);
        assert_eq!(drains.look(4, ids(&["a"]), 200), 0, "another member");
        assert_eq!(drains.look(3, ids(&[]), 210), 0);
        assert_eq!(drains.look(3, ids(&[]), 250), 40, "it is drained");
    }

    #[test]
    fn only_unforced_removal_hands_over() {
        let mut drains = Drains {
            needed: BTreeSet::from([1, 2]),
            ..Drains::default()
        };
        drains.forced.insert(2);
        assert!(drains.handed_over(1));
        assert!(!drains.handed_over(2));
        assert!(!drains.handed_over(3), "it had no replica");
    }
}
