//! Orphan check: containers that run without a row for their host, and the time they are allowed.
//!
//! A replica runs on one node, and on two while it moves, when both know of the move. A node may
//! keep running a container whose row moved away or was issued anew until it has applied that
//! change, and then for as long as stopping takes. That time is measured from the moment at which
//! the node could begin: it starts anew when its daemon starts or was paused, and after a failed
//! request to its engine, which is retried later.

use std::collections::BTreeMap;

use jaco_actors::runtime::replica::core::RETRY;
use jaco_proto::v1::{ReplicaDesired, ReplicaState};
use jaco_state::State;

use super::{
    engine::{Container, GRACE},
    network::Trouble,
    runtime::SWEEP,
    time::{SECOND, Time},
    world::{Machine, World},
};

/// Bound for a replica actor that holds the row: it finishes the start under way, inspects, and
/// stops.
const LEAVE: Time = GRACE + 2 * SECOND;
/// Bound for a node that has just started: no actor holds the row, so the node first has to catch
/// up, which may take it a few attempts.
const RETURN: Time = LEAVE + 10 * SECOND;
/// Bound for a container of an older row: containers of moved rows are stopped first.
const REPLACE: Time = RETURN + LEAVE;
/// Bound for a node in touch with the leader, regardless of what it has applied: the next sweep
/// finds containers without an actor.
const OUTSTAY: Time = SWEEP + LEAVE;

/// Time for which a node relies on a confirmed state: a heartbeat counts for three intervals, and
/// this check runs every second.
const STALE: Time = 8 * SECOND;

/// Reason why a container should not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Excess {
    /// No row assigns the replica to this host.
    Gone,
    /// The row was issued again after the container was made.
    Superseded,
}

/// Containers that should not run and the time since when, by machine, run of its daemon, and
/// container.
#[derive(Debug, Default)]
pub(super) struct Overstays {
    /// Judged by the state that the node itself has applied.
    told: BTreeMap<(u64, u64, String), (Excess, Time)>,
    /// Judged by the newest committed state, regardless of what the node has applied.
    committed: BTreeMap<(u64, u64, String), Time>,
    /// Time at which each machine was last out of touch with the leader.
    apart: BTreeMap<u64, Time>,
}

/// Reason why `container` should not run on `host` by `state`, if there is one.
fn excess(state: &State, host: &str, container: &Container) -> Option<Excess> {
    let Some(row) = state.replicas_desired.get(&container.replica) else {
        return Some(Excess::Gone);
    };
    if row.host == host {
        return (row.raft_index > container.raft_index).then_some(Excess::Superseded);
    }
    let serves = row.previous_host == host && !is_taken_over(state, row);
    (!serves).then_some(Excess::Gone)
}

/// Whether the new host of a moved row runs the replica.
fn is_taken_over(state: &State, row: &ReplicaDesired) -> bool {
    state.replicas_observed.get(&row.id).is_some_and(|seen| {
        seen.state() == ReplicaState::Running
            && seen.host == row.host
            && seen.desired_raft_index >= row.raft_index
    })
}

impl World {
    /// Updates the overstays of node `id` after a change of its containers or its state.
    pub(super) fn look_at(&mut self, id: u64) {
        let now = self.now;
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let told = &mut self.overstays.told;
        let known = take(told, id);
        let Some(daemon) = machine.daemon.as_ref().filter(|_| !machine.removed) else {
            return;
        };
        for container in machine.engine.running() {
            let Some(why) = excess(&daemon.state, &machine.host, container) else {
                continue;
            };
            let key = (id, machine.run, container.id.clone());
            let since = known.get(&key).filter(|(known, _)| *known == why);
            told.insert(key, (why, since.map_or(now, |(_, since)| *since)));
        }
    }

    /// Updates the overstays of every machine, and reports a container that has run too long.
    pub(super) fn look_for_overstays(&mut self) {
        let now = self.now;
        for id in self.machines.keys().copied().collect::<Vec<_>>() {
            self.look_at(id);
            let apart = self.machines.get(&id).is_some_and(|m| !self.in_touch(m));
            if apart {
                self.overstays.apart.insert(id, now);
            }
            self.look_at_committed(id);
        }
        let late = self
            .machines
            .values()
            .find_map(|machine| self.overstayed(machine));
        if let Some(what) = late {
            self.oracle.violate("one container per replica", what);
        }
    }

    /// Like [`World::look_at`], judged by the newest committed state.
    fn look_at_committed(&mut self, id: u64) {
        let now = self.now;
        let state = self.oracle.newest();
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let committed = &mut self.overstays.committed;
        let known = take(committed, id);
        for container in machine.engine.running() {
            if excess(state, &machine.host, container) == Some(Excess::Gone) {
                // Run 0: restarts of the daemon do not restart this clock.
                let key = (id, 0, container.id.clone());
                let since = known.get(&key).copied().unwrap_or(now);
                committed.insert(key, since);
            }
        }
    }

    /// Describes the first container on `machine` that has run longer than its bound.
    fn overstayed(&self, machine: &Machine) -> Option<String> {
        let (now, id) = (self.now, machine.id);
        let daemon = machine.daemon.as_ref().filter(|_| !machine.removed)?;
        if machine.paused_until > now {
            return None;
        }
        let refused = machine.engine.refused.map(|at| at + micros(RETRY));
        let able = machine.paused_until.max(refused.unwrap_or(0));
        let in_touch = able.max(self.overstays.apart.get(&id).copied().unwrap_or(0));
        let told = mine(&self.overstays.told, id).map(|((_, _, container), (why, since))| {
            let held = machine
                .engine
                .containers()
                .find(|known| known.id == *container)
                .is_some_and(|known| daemon.runtime.holds(&known.replica));
            let (from, bound) = match why {
                Excess::Gone if held => (able, LEAVE),
                Excess::Gone => (in_touch, RETURN),
                Excess::Superseded => (in_touch, REPLACE),
            };
            (container, *since, from, bound)
        });
        let committed = mine(&self.overstays.committed, id)
            .map(|((_, _, container), since)| (container, *since, in_touch, OUTSTAY));
        let late = told
            .chain(committed)
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
    /// state must be gone from it.
    pub(super) fn says_ready(&mut self, id: u64) {
        let now = self.now;
        let left = mine(&self.overstays.committed, id)
            .find(|(_, since)| now - **since > STALE)
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
        let troubled = self.network.troubles.values().any(|trouble| match trouble {
            Trouble::Loss(_) | Trouble::Delay(_) => true,
            Trouble::Partition(_) | Trouble::OneWay(..) | Trouble::Twice(_) => false,
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
fn mine<T>(
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
    let taken: BTreeMap<_, _> = mine(map, id)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    map.retain(|(machine, _, _), _| *machine != id);
    taken
}

fn micros(span: std::time::Duration) -> Time {
    Time::try_from(span.as_micros()).unwrap_or(Time::MAX / 4)
}
