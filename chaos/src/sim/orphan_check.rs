//! Orphan check: containers that run without a row for their host, and the time they are allowed.
//!
//! A replica runs on one node, and on two while it moves, when both know of the move. A node may
//! keep running a container whose row moved away or was issued anew until it has applied that
//! change, and then for as long as stopping takes. That time is measured from the moment at which
//! the node could begin: it starts anew when its daemon starts or was paused, and after a failed
//! request to its engine, which is retried later.

use std::collections::BTreeMap;

use jaco_policy::runtime::replica::core::RETRY;
use jaco_proto::v1::ReplicaDesired;
use jaco_state::State;

use super::{
    cluster::{Cluster, Machine},
    contacts::Contacts,
    engine::{Container, GRACE},
    jobs,
    network::NetworkFault,
    runtime::SWEEP,
    time::{SECOND, Time},
};

/// Bound for a replica actor that holds the row: it finishes the start under way, inspects, withdraws
/// the container from routing, and stops it.
const STOP_BOUND: Time = GRACE + 5 * SECOND;
/// Bound for a node that has just started: no actor holds the row, so the node first has to catch
/// up, which may take it a few attempts.
const CATCH_UP_BOUND: Time = STOP_BOUND + 10 * SECOND;
/// Bound for a container of an older row: containers of moved rows are stopped first.
const REPLACE_BOUND: Time = CATCH_UP_BOUND + STOP_BOUND;
/// Bound for a node in touch with the leader, regardless of what it has applied: the next sweep
/// finds containers without an actor.
const SWEEP_BOUND: Time = SWEEP + STOP_BOUND;

/// Reason why a container should not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OrphanReason {
    /// No row assigns the replica to this host.
    Gone,
    /// The row was issued again after the container was made.
    Superseded,
}

/// Containers that should not run and the time since when, by machine, run of its daemon, and
/// container.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// Judged by the state that the node itself has applied.
    by_applied: BTreeMap<(u64, u64, String), (OrphanReason, Time)>,
    /// Judged by the newest committed state, regardless of what the node has applied.
    by_committed: BTreeMap<(u64, u64, String), Time>,
    /// Time at which each machine was last out of touch with the leader.
    out_of_touch_at: BTreeMap<u64, Time>,
    pub(super) contacts: Contacts,
}

/// Reason why `container` should not run on `host` by `state`, if there is one.
pub(super) fn orphan_reason(
    state: &State,
    host: &str,
    container: &Container,
) -> Option<OrphanReason> {
    let Some(row) = state.replicas_desired.get(&container.replica) else {
        return Some(OrphanReason::Gone);
    };
    if row.host == host {
        let is_superseded = row.raft_index > container.raft_index;
        return (is_superseded && jobs::awaited(state, row).is_none())
            .then_some(OrphanReason::Superseded);
    }
    let serves = row.previous_host == host && !is_taken_over(state, row);
    (!serves).then_some(OrphanReason::Gone)
}

/// Whether the new host of a moved row runs the replica, or has finished it.
fn is_taken_over(state: &State, row: &ReplicaDesired) -> bool {
    state.replicas_observed.get(&row.id).is_some_and(|seen| {
        seen.has_arrived() && seen.host == row.host && seen.desired_raft_index >= row.raft_index
    })
}

impl Cluster {
    /// Updates the overstays of node `id` after a change of its containers or its state.
    pub(super) fn update_orphans(&mut self, id: u64) {
        let now = self.now;
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let by_applied = &mut self.orphans.by_applied;
        let known = take(by_applied, id);
        let Some(daemon) = machine.daemon.as_ref().filter(|_| !machine.removed) else {
            return;
        };
        for container in machine.engine.running() {
            let Some(why) = orphan_reason(&daemon.state, &machine.host, container) else {
                continue;
            };
            // It serves until the image of its successor is there.
            if why == OrphanReason::Superseded && daemon.runtime.pulls_ahead(&container.replica) {
                continue;
            }
            let key = (id, machine.run, container.id.clone());
            let since = known.get(&key).filter(|(known, _)| *known == why);
            by_applied.insert(key, (why, since.map_or(now, |(_, since)| *since)));
        }
    }

    /// Updates the overstays of every machine, and reports a container that has run too long.
    pub(super) fn check_orphans(&mut self) {
        let now = self.now;
        for id in self.machines.keys().copied().collect::<Vec<_>>() {
            self.update_orphans(id);
            let apart = self.machines.get(&id).is_some_and(|m| !self.in_touch(m));
            if apart {
                self.orphans.out_of_touch_at.insert(id, now);
            }
            self.update_committed_orphans(id);
        }
        let late = self
            .machines
            .values()
            .find_map(|machine| self.overdue_orphan(machine));
        if let Some(what) = late {
            self.oracle.violate("one container per replica", what);
        }
    }

    /// Like [`Cluster::update_orphans`], judged by the newest committed state.
    fn update_committed_orphans(&mut self, id: u64) {
        let now = self.now;
        let state = self.oracle.newest();
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let by_committed = &mut self.orphans.by_committed;
        let known = take(by_committed, id);
        for container in machine.engine.running() {
            if orphan_reason(state, &machine.host, container) == Some(OrphanReason::Gone) {
                // Run 0: restarts of the daemon do not restart this clock.
                let key = (id, 0, container.id.clone());
                let since = known.get(&key).copied().unwrap_or(now);
                by_committed.insert(key, since);
            }
        }
    }

    /// Describes the first container on `machine` that has run longer than its bound.
    fn overdue_orphan(&self, machine: &Machine) -> Option<String> {
        let (now, id) = (self.now, machine.id);
        let daemon = machine.daemon.as_ref().filter(|_| !machine.removed)?;
        if machine.paused_until > now {
            return None;
        }
        let refused = machine.engine.refused.map(|at| at + micros(RETRY));
        let able = machine.paused_until.max(refused.unwrap_or(0));
        let in_touch = able.max(self.orphans.out_of_touch_at.get(&id).copied().unwrap_or(0));
        let by_applied =
            of_machine(&self.orphans.by_applied, id).map(|((_, _, container), (why, since))| {
                let held = machine
                    .engine
                    .containers()
                    .find(|known| known.id == *container)
                    .is_some_and(|known| daemon.runtime.has_actor(&known.replica));
                let (from, bound) = match why {
                    OrphanReason::Gone if held => (able, STOP_BOUND),
                    OrphanReason::Gone => (in_touch, CATCH_UP_BOUND),
                    OrphanReason::Superseded => (in_touch, REPLACE_BOUND),
                };
                (container, *since, from, bound)
            });
        let by_committed = of_machine(&self.orphans.by_committed, id)
            .map(|((_, _, container), since)| (container, *since, in_touch, SWEEP_BOUND));
        let late = by_applied
            .chain(by_committed)
            .find(|(_, since, from, bound)| now > from.max(since) + bound);
        late.map(|(container, since, from, bound)| {
            let running = machine.engine.containers().find(|c| c.id == *container);
            let replica = running.map_or("", |running| running.replica.as_str());
            format!(
                "n{id} runs {container} of {replica} since {} ms, which no row wants there, and could have \
                 stopped it within {} s from {} ms on",
                since / 1_000,
                bound / SECOND,
                from / 1_000,
            )
        })
    }

    /// Node `id` reports itself ready: containers of rows that moved away before it confirmed its
    /// state must be gone from it. Later ones it stops like every node that is ready.
    pub(super) fn check_ready(&mut self, id: u64) {
        let run = self.machines.get(&id).map_or(0, |machine| machine.run);
        let confirmed = self.orphans.contacts.confirmed(id, run, self.now);
        let left = of_machine(&self.orphans.by_committed, id)
            .find(|(_, since)| **since < confirmed)
            .map(|((_, _, container), _)| container.clone());
        let Some(container) = left else {
            return;
        };
        let running = self.machines.get(&id).and_then(|machine| {
            let mut running = machine.engine.running();
            running.find(|known| known.id == container).cloned()
        });
        if let Some(running) = running {
            let what = format!("n{id} reports itself ready and still runs {running:?}");
            self.oracle.violate("ready when settled", what);
        }
    }

    /// Whether messages between the machine and the leader get through both ways, and the daemon
    /// follows that leader.
    fn in_touch(&self, machine: &Machine) -> bool {
        let Some(daemon) = &machine.daemon else {
            return false;
        };
        let (id, leader) = (machine.id, self.leader());
        let troubled = self
            .network
            .faults
            .values()
            .any(|network_fault| match network_fault {
                NetworkFault::Loss(_) | NetworkFault::Delay(_) => true,
                NetworkFault::Partition(_) | NetworkFault::OneWay(..) | NetworkFault::Twice(_) => {
                    false
                }
            });
        let standing_still = machine.paused_until > self.now;
        leader.is_some_and(|leader| {
            daemon.status.leader_id == Some(leader)
                && !self.network.is_cut(id, leader)
                && !self.network.is_cut(leader, id)
                && self
                    .machines
                    .get(&leader)
                    .is_some_and(|m| m.paused_until <= self.now)
        }) && !troubled
            && !standing_still
    }
}

/// The entries of machine `id`.
fn of_machine<T>(
    map: &BTreeMap<(u64, u64, String), T>,
    id: u64,
) -> impl Iterator<Item = (&(u64, u64, String), &T)> {
    map.range((id, 0, String::new())..(id + 1, 0, String::new()))
}

/// Removes and returns the entries of machine `id`.
fn take<T: Clone>(
    map: &mut BTreeMap<(u64, u64, String), T>,
    id: u64,
) -> BTreeMap<(u64, u64, String), T> {
    let taken: BTreeMap<_, _> = of_machine(map, id)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    map.retain(|(machine, _, _), _| *machine != id);
    taken
}

fn micros(span: std::time::Duration) -> Time {
    Time::try_from(span.as_micros()).unwrap_or(Time::MAX / 4)
}
