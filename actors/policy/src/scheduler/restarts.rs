//! Accounting of container failures on the leader.
//!
//! A host restarts its containers by itself; the replicated counter is what its budget resumes
//! from. Each failure must be counted once, although leaders change, proposals are lost and a
//! failure may be reported several times.
//!
//! The counter therefore records what it has counted: the timestamp of an increment is the time of
//! the counted report. Both times come from the clock of the replica's node, so clocks of different
//! nodes are never compared. Two kinds of reports count as already counted: a report that is not
//! newer than the counter, and a report of a container that began to run before the last increment
//! (a failure ends its run, so that failure was counted). A
//! second report of a container that never ran meets neither condition; [`Counted`] recognizes it.
//! A new leader has an empty [`Counted`] and counts such a report at most once more.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use jaco_proto::{
    replica_code::{DOCKER_ERROR, IMAGE_PULL_FAILED, RESTART_EXHAUSTED, SUBNET_POOL_EXHAUSTED},
    v1::{self, ReplicaState, command::Payload, restart_counter_update::Action as WireAction},
};
use jaco_state::State;
use prost_types::Timestamp;

use crate::runtime::replica;

/// Failures that the container did not cause or that are retried elsewhere.
const NOT_COUNTED: [&str; 4] = [
    RESTART_EXHAUSTED,
    SUBNET_POOL_EXHAUSTED,
    DOCKER_ERROR,
    IMAGE_PULL_FAILED,
];

/// Time for which this leader must have seen a container run until its failures are forgotten.
pub const STABLE_AFTER: Duration = replica::core::STABLE_AFTER;

/// Change of one restart counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Replica of the counter.
    pub replica_id: String,
    /// Change to make.
    pub action: Action,
}

/// Operation on a restart counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Counts one failure, reported at this time.
    Increment(Timestamp),
    /// The container has been running for a while: removes the counter.
    Reset,
}

impl Change {
    /// Splits into the command's timestamp, if the change determines it, and its payload.
    pub(super) fn into_parts(self) -> (Option<Timestamp>, Payload) {
        let (ts, action) = match self.action {
            Action::Increment(failed_at) => (Some(failed_at), WireAction::Increment),
            Action::Reset => (None, WireAction::Reset),
        };
        let update = v1::RestartCounterUpdate {
            replica_id: self.replica_id,
            action: action.into(),
        };
        (ts, Payload::RestartCounterUpdate(update))
    }
}

/// Failures already counted, and containers whose counter is about to be reset, by replica; the
/// caller keeps it between passes.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    failures: BTreeMap<String, Instance>,
    /// Since when this leader has seen a container run that has a counter.
    running: BTreeMap<String, (Instance, Instant)>,
}

impl Counted {
    /// Time at which a counter is to be reset, if nothing happens until then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let since = self.running.values().map(|(_, since)| *since);
        Some(since.min()? + STABLE_AFTER)
    }

    /// Whether this run of a container has been seen for [`STABLE_AFTER`].
    fn is_stable(&mut self, now: Instant, id: &str, seen: &v1::ReplicaObserved) -> bool {
        let instance = Instance::of(seen);
        let entry = self.running.entry(id.to_owned());
        let (known, since) = entry.or_insert_with(|| (instance.clone(), now));
        if *known != instance {
            (*known, *since) = (instance, now);
        }
        *since + STABLE_AFTER <= now
    }
}

/// One run of a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Instance {
    container_id: String,
    started_at: Option<Timestamp>,
    row: u64,
}

impl Instance {
    /// Run that a report is about.
    #[must_use]
    pub fn of(seen: &v1::ReplicaObserved) -> Self {
        Self {
            container_id: seen.container_id.clone(),
            started_at: seen.started_at,
            row: seen.desired_raft_index,
        }
    }
}

/// Returns the changes for counters of `state` that do not match the reports of the replicas.
///
/// A failure is marked as counted only once the state shows its increment, so a lost proposal is
/// repeated and a committed one is not.
pub fn counter_changes(state: &State, counted: &mut Counted, now: Instant) -> Vec<Change> {
    counted.failures.retain(|id, _| {
        let seen = state.replicas_observed.get(id);
        seen.is_some_and(|seen| is_failure(seen))
    });
    counted.running.retain(|id, _| {
        let seen = state.replicas_observed.get(id);
        let runs = seen.is_some_and(|seen| seen.state() == ReplicaState::Running);
        runs && state.restart_counters.contains_key(id)
    });
    let mut changes = Vec::new();
    for (id, seen) in &state.replicas_observed {
        // Skip reports for earlier rows: a new row resets the whole budget.
        let row = state.replicas_desired.get(id);
        if row.is_none_or(|row| seen.desired_raft_index < row.raft_index) {
            continue;
        }
        let counter = state.restart_counters.get(id);
        let action = if seen.state() == ReplicaState::Running {
            let resets = counter.is_some() && counted.is_stable(now, id, seen);
            resets.then_some(Action::Reset)
        } else if is_failure(seen) && !is_counted(seen, counter.map(AsRef::as_ref), id, counted) {
            // Without a time, a report could not later be recognized as counted.
            seen.last_health_at.map(Action::Increment)
        } else {
            None
        };
        changes.extend(action.map(|action| Change {
            replica_id: id.clone(),
            action,
        }));
    }
    changes
}

fn is_failure(seen: &v1::ReplicaObserved) -> bool {
    match seen.state() {
        ReplicaState::Degraded => true,
        ReplicaState::Failed => !NOT_COUNTED.contains(&seen.code.as_str()),
        ReplicaState::Unspecified
        | ReplicaState::Pending
        | ReplicaState::Pulling
        | ReplicaState::Running
        | ReplicaState::Updating
        | ReplicaState::Stopped => false,
    }
}

fn is_counted(
    seen: &v1::ReplicaObserved,
    counter: Option<&v1::RestartCounter>,
    id: &str,
    counted: &mut Counted,
) -> bool {
    let instance = Instance::of(seen);
    if counted.failures.get(id) == Some(&instance) {
        return true;
    }
    let last = counter.and_then(|counter| counter.last_attempt_at);
    let covered = last.is_some_and(|last| {
        let not_newer = |time: &Timestamp| sort_key(time) <= sort_key(&last);
        seen.last_health_at.as_ref().is_some_and(not_newer)
            || seen.started_at.as_ref().is_some_and(not_newer)
    });
    if covered {
        counted.failures.insert(id.to_owned(), instance);
    }
    covered
}

/// Sort key of a timestamp; also correct for nanoseconds that are not normalized.
fn sort_key(time: &Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos)
}

#[cfg(test)]
mod tests;
