//! Reports about containers: which ones count, and what a move makes of them.

use std::collections::BTreeMap;

use jaco_proto::{
    Error,
    v1::{self, ReplicaState},
};
use prost_types::Timestamp;

use super::{Origin, Tx, reject, time};

/// How long a report of a running container is believed.
const FRESH_SECONDS: i64 = 10;
/// Code of a replica whose restart budget is spent.
const RESTART_EXHAUSTED: &str = "restart_exhausted";

/// Where the details of a moving replica say how the new host is doing.
const MOVE_STATE: &str = "move_state";
const MOVE_CODE: &str = "move_code";
const MOVE_REASON: &str = "move_reason";

/// Stores the report, or drops it if it is late or from a host that has no say.
///
/// A dropped report is no rejection: reports are sent in batches, and one late report must not
/// take the others with it.
pub(super) fn update(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::ReplicaObservedUpdate,
) -> Result<(), Error> {
    let report = reject::required("replica", command.replica.as_ref())?;
    match ReplicaState::try_from(report.state) {
        Ok(ReplicaState::Unspecified) | Err(_) => {
            return Err(reject::invalid("state", "not a replica state"));
        }
        Ok(_) => {}
    }
    let Some(desired) = tx.get::<v1::ReplicaDesired>(&report.id) else {
        return Ok(());
    };
    let current = tx.get::<v1::ReplicaObserved>(&report.id);
    match resolve(&desired, current.as_deref(), report, &origin.ts) {
        Some(observed) => tx.put_of(Some(desired.deployment.clone()), observed),
        None => Ok(()),
    }
}

/// Which of the two hosts of a moving replica speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaker {
    /// The host the replica belongs on.
    Owner,
    /// The host that keeps the old container until the new one runs.
    Previous,
}

fn speaker(desired: &v1::ReplicaDesired, host: &str) -> Option<Speaker> {
    if host == desired.host {
        Some(Speaker::Owner)
    } else if !host.is_empty() && host == desired.previous_host {
        Some(Speaker::Previous)
    } else {
        None
    }
}

/// The record that `report` leads to; `None` if it is dropped.
fn resolve(
    desired: &v1::ReplicaDesired,
    current: Option<&v1::ReplicaObserved>,
    report: &v1::ReplicaObserved,
    now: &Timestamp,
) -> Option<v1::ReplicaObserved> {
    let from = speaker(desired, &report.host)?;
    if from == Speaker::Owner && report.desired_raft_index < desired.raft_index {
        return None;
    }
    let Some(current) = current else {
        return Some(report.clone());
    };
    if is_exhausted(current)
        && !is_running(report)
        && report.desired_raft_index <= current.desired_raft_index
    {
        return None;
    }
    match (from, speaker(desired, &current.host)) {
        (Speaker::Owner, Some(Speaker::Previous)) => Some(
            if !is_running(report) && is_running(current) && is_fresh(current, now) {
                with_move(current.clone(), report)
            } else {
                report.clone()
            },
        ),
        (Speaker::Previous, Some(Speaker::Owner))
            if current.desired_raft_index >= desired.raft_index =>
        {
            // Once the new container has run the old host has no say, and before that only
            // a container that serves may stand in for it.
            (is_running(report) && !is_running(current)).then(|| with_move(report.clone(), current))
        }
        (Speaker::Previous, Some(Speaker::Previous)) if is_running(report) => {
            let mut report = report.clone();
            carry_move(&mut report.details, &current.details);
            Some(report)
        }
        (Speaker::Previous | Speaker::Owner, Some(Speaker::Owner | Speaker::Previous) | None) => {
            Some(report.clone())
        }
    }
}

fn is_running(observed: &v1::ReplicaObserved) -> bool {
    observed.state() == ReplicaState::Running
}

fn is_exhausted(observed: &v1::ReplicaObserved) -> bool {
    observed.state() == ReplicaState::Failed && observed.code == RESTART_EXHAUSTED
}

fn is_fresh(observed: &v1::ReplicaObserved, now: &Timestamp) -> bool {
    let age = time::nanos(Some(now)) - time::nanos(observed.last_health_at.as_ref());
    age < time::seconds(FRESH_SECONDS)
}

/// `serving`, with the progress of the new host in its details.
fn with_move(
    mut serving: v1::ReplicaObserved,
    moving: &v1::ReplicaObserved,
) -> v1::ReplicaObserved {
    let reason = moving.details.get("reason").unwrap_or(&moving.message);
    for (key, value) in [
        (MOVE_STATE, state_name(moving.state())),
        (MOVE_CODE, moving.code.as_str()),
        (MOVE_REASON, reason.as_str()),
    ] {
        if value.is_empty() {
            serving.details.remove(key);
        } else {
            serving.details.insert(key.to_owned(), value.to_owned());
        }
    }
    serving
}

fn carry_move(to: &mut BTreeMap<String, String>, from: &BTreeMap<String, String>) {
    for key in [MOVE_STATE, MOVE_CODE, MOVE_REASON] {
        if let Some(value) = from.get(key) {
            to.insert(key.to_owned(), value.clone());
        }
    }
}

fn state_name(state: ReplicaState) -> &'static str {
    match state {
        ReplicaState::Unspecified => "",
        ReplicaState::Pending => "pending",
        ReplicaState::Pulling => "pulling",
        ReplicaState::Running => "running",
        ReplicaState::Degraded => "degraded",
        ReplicaState::Updating => "updating",
        ReplicaState::Failed => "failed",
        ReplicaState::Stopped => "stopped",
    }
}
