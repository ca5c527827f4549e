//! Decides when a replica that was given up, or that has finished with a failure, is started again.

use jaco_proto::v1;
use jaco_state::State;

use crate::scheduler::moves;

/// Whether replica `id` was exhausted, or had finished with another exit code than 0, before the
/// present content of `deployment` was applied, be it behind a previous host that serves on.
///
/// The order is that of the log: reports carry the clock of their node and applies that of the
/// leader, which cannot be compared. A re-issued row is not due again, because the report is about
/// the row before, and the next one comes after the apply.
pub(super) fn is_due(state: &State, deployment: &v1::Deployment, id: &str) -> bool {
    let row = state.replicas_desired.get(id);
    let seen = state.replicas_observed.get(id);
    let (Some(row), Some(seen)) = (row, seen) else {
        return false;
    };
    let failed = moves::finished(state, row).is_some_and(|exit_code| exit_code != 0);
    (failed || moves::is_exhausted(state, row))
        && seen.observed_raft_index < deployment.applied_raft_index
}
