//! Progress of replicas that move: the previous host serves until the new one does. Pure.

use jaco_proto::{
    replica_code::{
        DOCKER_ERROR, IMAGE_PULL_FAILED, ISOLATION_UNAVAILABLE, RESTART_EXHAUSTED,
        SECRET_DECRYPT_FAILED, SUBNET_POOL_EXHAUSTED,
    },
    v1,
};
use jaco_state::{State, fsm::MOVE_CODE};

/// Codes of a start that ended, or that may be repeated for any time.
const STOPPED: [&str; 6] = [
    RESTART_EXHAUSTED,
    IMAGE_PULL_FAILED,
    DOCKER_ERROR,
    SUBNET_POOL_EXHAUSTED,
    ISOLATION_UNAVAILABLE,
    SECRET_DECRYPT_FAILED,
];

/// Whether `row` runs, or has finished, on the host it is assigned to, so that no move is in progress.
#[must_use]
pub fn has_arrived(state: &State, row: &v1::ReplicaDesired) -> bool {
    let seen = current(state, row);
    seen.is_some_and(v1::ReplicaObserved::has_arrived)
}

/// Returns the exit code of `row` if it has finished on the host it is assigned to.
#[must_use]
pub fn finished(state: &State, row: &v1::ReplicaDesired) -> Option<i64> {
    current(state, row)?.finished()
}

/// Report of the host of `row` about this row, if there is one.
pub(crate) fn current<'a>(
    state: &'a State,
    row: &v1::ReplicaDesired,
) -> Option<&'a v1::ReplicaObserved> {
    let seen = state.replicas_observed.get(&row.id)?;
    let is_current = seen.host == row.host && seen.desired_raft_index >= row.raft_index;
    is_current.then_some(seen)
}

/// Whether `row` spent its restart budget on the host it is assigned to, also while its previous
/// host serves on.
#[must_use]
pub fn is_exhausted(state: &State, row: &v1::ReplicaDesired) -> bool {
    start_code(state, row) == Some(RESTART_EXHAUSTED)
}

/// Whether a replica that `host` serves until it runs elsewhere spent its restart budget there.
#[must_use]
pub fn any_given_up(state: &State, host: &str) -> bool {
    let rows = state.replicas_desired.values();
    rows.filter(|row| row.previous_host == host)
        .any(|row| is_exhausted(state, row))
}

/// Whether the start of `row` on its host has failed, and is not certain to end soon.
#[must_use]
pub fn is_stopped(state: &State, row: &v1::ReplicaDesired) -> bool {
    start_code(state, row).is_some_and(|code| STOPPED.contains(&code))
}

/// Code of the newest report of the host of `row` about this row, if there is one. While a former
/// container serves, on the previous host or on this one, its report holds it.
pub(crate) fn start_code<'a>(state: &'a State, row: &v1::ReplicaDesired) -> Option<&'a str> {
    match current(state, row) {
        Some(seen) => Some(seen.code.as_str()),
        None => {
            let seen = state.replicas_observed.get(&row.id)?;
            seen.details.get(MOVE_CODE).map(String::as_str)
        }
    }
}
