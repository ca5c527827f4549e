//! Reports about containers: precedence between the hosts of a moving replica.

use std::collections::BTreeMap;

use jaco_proto::{
    Error,
    replica_code::RESTART_EXHAUSTED,
    v1::{self, NodeStatus, ReplicaState},
};

use super::{Tx, reject};

/// Key in the details of a replica whose former container serves, on its previous host or on its own:
/// code of the newest report about the row in force; absent without one.
pub const MOVE_CODE: &str = "move_code";
/// State of that report.
const MOVE_STATE: &str = "move_state";
/// Reason of that report.
pub const MOVE_REASON: &str = "move_reason";
/// Number of its pulls that have failed.
pub const MOVE_ATTEMPT: &str = "move_attempt";
const MOVE_KEYS: [&str; 4] = [MOVE_STATE, MOVE_CODE, MOVE_REASON, MOVE_ATTEMPT];

/// Stores the report, or drops it if it is outdated or from a host that does not own the replica.
///
/// Dropping is not a rejection: while a replica moves, late reports are expected.
pub(super) fn update(tx: &mut Tx, command: &v1::ReplicaObservedUpdate) -> Result<(), Error> {
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
    let current = current.as_deref();
    let in_contact = current.is_some_and(|current| is_in_contact(tx, &current.host));
    // A node that was restarted may repeat details that it read from the state.
    let report = &without_move(report.clone());
    let Some(observed) = resolve(&desired, current, report, in_contact) else {
        return Ok(());
    };
    let from = host_role(&desired, &report.host);
    let observed = match current {
        // Its progress is that of the current record, and as old.
        Some(current) if from == Some(HostRole::Previous) && has_move(&observed) => {
            v1::ReplicaObserved {
                observed_raft_index: current.observed_raft_index,
                ..observed
            }
        }
        _ => with_index(tx, current, observed),
    };
    tx.put_of(Some(desired.deployment.clone()), observed)?;
    if from == Some(HostRole::Owner) && report.has_arrived() {
        return end_move(tx, &desired);
    }
    Ok(())
}

/// Releases the previous host of a replica that runs, or has finished, on its new one. Whatever becomes of the new
/// container, the old one is gone from here on.
fn end_move(tx: &mut Tx, desired: &v1::ReplicaDesired) -> Result<(), Error> {
    if desired.previous_host.is_empty() {
        return Ok(());
    }
    tx.put(v1::ReplicaDesired {
        previous_host: String::new(),
        ..desired.clone()
    })
}

/// Returns the record with the index of this entry, or of the entry that wrote the same record
/// before.
fn with_index(
    tx: &Tx,
    current: Option<&v1::ReplicaObserved>,
    observed: v1::ReplicaObserved,
) -> v1::ReplicaObserved {
    let at = |observed_raft_index| v1::ReplicaObserved {
        observed_raft_index,
        ..observed.clone()
    };
    current
        .map(|current| at(current.observed_raft_index))
        .filter(|same| current == Some(same))
        .unwrap_or_else(|| at(tx.index()))
}

/// Role of a reporting host for a replica.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostRole {
    /// The host the replica is assigned to.
    Owner,
    /// The previous host, which keeps the old container until the new one runs.
    Previous,
}

fn host_role(desired: &v1::ReplicaDesired, host: &str) -> Option<HostRole> {
    if host == desired.host {
        Some(HostRole::Owner)
    } else if !host.is_empty() && host == desired.previous_host {
        Some(HostRole::Previous)
    } else {
        None
    }
}

/// Whether the last report of `host` is still trusted. A report is written only when it changes, so
/// its age is no criterion; the status of its node is.
fn is_in_contact(tx: &Tx, host: &str) -> bool {
    let node = tx.get::<v1::Node>(&host.to_owned());
    node.is_some_and(|node| match node.status() {
        NodeStatus::Ready
        | NodeStatus::Joining
        | NodeStatus::IsolationUnavailable
        | NodeStatus::DrainTimeout => true,
        NodeStatus::Unhealthy | NodeStatus::Offline | NodeStatus::Unspecified => false,
    })
}

/// Drops what the observation of a replica says about an earlier row than `desired`: the progress of
/// its move, or all of it if its host is neither of the two any more.
pub(super) fn drop_outdated(tx: &mut Tx, desired: &v1::ReplicaDesired) -> Result<(), Error> {
    let Some(current) = tx.get::<v1::ReplicaObserved>(&desired.id) else {
        return Ok(());
    };
    let deployment = Some(desired.deployment.clone());
    if host_role(desired, &current.host).is_none() {
        tx.remove_of::<v1::ReplicaObserved>(deployment, &desired.id);
    } else if has_move(&current) {
        let kept = v1::ReplicaObserved {
            observed_raft_index: tx.index(),
            ..without_move(v1::ReplicaObserved::clone(&current))
        };
        tx.put_of(deployment, kept)?;
    }
    Ok(())
}

/// Whether the new host of the moving replica `desired` has spent its restart budget on this row.
pub(super) fn move_gave_up(tx: &Tx, desired: &v1::ReplicaDesired) -> bool {
    let current = tx.get::<v1::ReplicaObserved>(&desired.id);
    current.is_some_and(|current| match host_role(desired, &current.host) {
        Some(HostRole::Owner) => {
            is_exhausted(&current) && current.desired_raft_index >= desired.raft_index
        }
        Some(HostRole::Previous) => {
            let code = current.details.get(MOVE_CODE);
            code.is_some_and(|code| code == RESTART_EXHAUSTED)
        }
        None => false,
    })
}

/// Whether the host of `desired` has reported that this row runs, or has finished as it should.
pub(super) fn succeeded(tx: &Tx, desired: &v1::ReplicaDesired) -> bool {
    let current = tx.get::<v1::ReplicaObserved>(&desired.id);
    let current = current.filter(|current| {
        host_role(desired, &current.host) == Some(HostRole::Owner)
            && current.desired_raft_index >= desired.raft_index
    });
    current.is_some_and(|current| is_running(&current) || current.finished() == Some(0))
}

/// Returns the record that results from `report`; `None` if the report is dropped. `in_contact` is
/// whether the node of the current record is in contact.
fn resolve(
    desired: &v1::ReplicaDesired,
    current: Option<&v1::ReplicaObserved>,
    report: &v1::ReplicaObserved,
    in_contact: bool,
) -> Option<v1::ReplicaObserved> {
    let from = host_role(desired, &report.host)?;
    if from == HostRole::Owner && report.desired_raft_index < desired.raft_index {
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
    match (from, host_role(desired, &current.host)) {
        (HostRole::Owner, Some(HostRole::Previous)) => Some(
            if !report.has_arrived() && is_running(current) && in_contact {
                with_move(current.clone(), report)
            } else {
                report.clone()
            },
        ),
        (HostRole::Previous, Some(HostRole::Owner))
            if current.desired_raft_index >= desired.raft_index =>
        {
            // After the new container has started the old host's reports are dropped; before that
            // the old host's record replaces the new one's only while its container is running.
            (is_running(report) && !current.has_arrived())
                .then(|| with_move(report.clone(), current))
        }
        (HostRole::Previous, Some(HostRole::Previous)) if is_running(report) => {
            let mut report = report.clone();
            carry_move(&mut report.details, &current.details);
            Some(report)
        }
        // The container of the row before serves on its own host.
        (HostRole::Owner, Some(HostRole::Owner))
            if report.keeps_serving
                && is_running(current)
                && current.desired_raft_index < desired.raft_index =>
        {
            Some(with_move(current.clone(), report))
        }
        (
            HostRole::Previous | HostRole::Owner,
            Some(HostRole::Owner | HostRole::Previous) | None,
        ) => Some(v1::ReplicaObserved {
            keeps_serving: false,
            ..report.clone()
        }),
    }
}

fn is_running(observed: &v1::ReplicaObserved) -> bool {
    observed.state() == ReplicaState::Running
}

fn is_exhausted(observed: &v1::ReplicaObserved) -> bool {
    observed.state() == ReplicaState::Failed && observed.code == RESTART_EXHAUSTED
}

/// Returns `serving` with the progress on the new host in its details.
fn with_move(
    mut serving: v1::ReplicaObserved,
    moving: &v1::ReplicaObserved,
) -> v1::ReplicaObserved {
    let reason = moving.details.get("reason").unwrap_or(&moving.message);
    for (key, value) in [
        (MOVE_STATE, state_name(moving.state())),
        (MOVE_CODE, moving.code.as_str()),
        (MOVE_REASON, reason.as_str()),
        (
            MOVE_ATTEMPT,
            moving.details.get("attempt").map_or("", String::as_str),
        ),
    ] {
        if value.is_empty() {
            serving.details.remove(key);
        } else {
            serving.details.insert(key.to_owned(), value.to_owned());
        }
    }
    serving
}

fn has_move(observed: &v1::ReplicaObserved) -> bool {
    observed.details.contains_key(MOVE_STATE)
}

fn without_move(mut observed: v1::ReplicaObserved) -> v1::ReplicaObserved {
    for key in MOVE_KEYS {
        observed.details.remove(key);
    }
    observed
}

fn carry_move(to: &mut BTreeMap<String, String>, from: &BTreeMap<String, String>) {
    for key in MOVE_KEYS {
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
