//! The leader's account of container failures.
//!
//! The host restarts its containers by itself; the counter in the state is what it resumes its
//! budget from. It must count each failure once, although leaders change, proposals are lost
//! and one failure may be reported several times.
//!
//! So the counter itself says what it has counted: an increment carries, as its time, the time
//! of the report it counts. Both times come from the clock of the replica's node, so no two
//! clocks are ever compared. A report that is not newer than its counter is counted, and so is
//! one of a container that ran before the counter was last raised (running removes the counter,
//! hence it failed since, and that failure is the one counted). What neither covers, a second
//! report of a container that never ran, is kept apart by the memory of counted failures; a new
//! leader without it counts such a report once more at worst.

use std::collections::BTreeMap;

use jaco_proto::v1::{
    self, ReplicaState, command::Payload, restart_counter_update::Action as WireAction,
};
use jaco_raftnode::State;
use prost_types::Timestamp;

/// Code of a replica that is not restarted any more.
pub const RESTART_EXHAUSTED: &str = "restart_exhausted";

/// Failures that are no container's fault, or that are retried elsewhere.
const NOT_COUNTED: [&str; 4] = [
    RESTART_EXHAUSTED,
    "subnet_pool_exhausted",
    "docker_error",
    "image_pull_failed",
];

/// A change of one restart counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Whose counter.
    pub replica_id: String,
    /// What happens to it.
    pub action: Action,
}

/// What happens to a restart counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// One failure more, reported at this time.
    Increment(Timestamp),
    /// The container runs: the counter goes.
    Reset,
}

impl Change {
    /// The command's time, if the change has one of its own, and its payload.
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

/// Failures known to be counted, by replica; kept by the caller between passes.
#[derive(Clone, Debug, Default)]
pub struct Counted(BTreeMap<String, Instance>);

/// One run of one container.
#[derive(Clone, Debug, PartialEq)]
struct Instance {
    container_id: String,
    started_at: Option<Timestamp>,
    row: u64,
}

impl Instance {
    fn of(seen: &v1::ReplicaObserved) -> Self {
        Self {
            container_id: seen.container_id.clone(),
            started_at: seen.started_at,
            row: seen.desired_raft_index,
        }
    }
}

/// Finds the counters of `state` that do not match what the replicas report.
///
/// Nothing is marked as counted here, only once the state shows it: a lost proposal is made
/// again, a committed one is not.
pub fn account(state: &State, counted: &mut Counted) -> Vec<Change> {
    counted.0.retain(|id, _| {
        let seen = state.replicas_observed.get(id);
        seen.is_some_and(|seen| is_failure(seen))
    });
    let mut changes = Vec::new();
    for (id, seen) in &state.replicas_observed {
        // A report about an earlier row is history: issuing a row restores the whole budget.
        let row = state.replicas_desired.get(id);
        if row.is_none_or(|row| seen.desired_raft_index < row.raft_index) {
            continue;
        }
        let counter = state.restart_counters.get(id);
        let action = if seen.state() == ReplicaState::Running {
            counter.map(|_| Action::Reset)
        } else if is_failure(seen) && !is_counted(seen, counter.map(AsRef::as_ref), id, counted) {
            // A report without a time could not be told from a counted one later.
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
    if counted.0.get(id) == Some(&instance) {
        return true;
    }
    let last = counter.and_then(|counter| counter.last_attempt_at);
    let covered = last.is_some_and(|last| {
        let not_newer = |time: &Timestamp| order(time) <= order(&last);
        seen.last_health_at.as_ref().is_some_and(not_newer)
            || seen.started_at.as_ref().is_some_and(not_newer)
    });
    if covered {
        counted.0.insert(id.to_owned(), instance);
    }
    covered
}

/// A timestamp as a sortable value; also right when nanoseconds are not normalised.
pub(super) fn order(time: &Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos)
}

#[cfg(test)]
mod tests;
