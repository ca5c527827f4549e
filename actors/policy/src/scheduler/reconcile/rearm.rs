//! Decides when a replica with an exhausted restart budget is started again.

use std::collections::BTreeMap;

use jaco_proto::{replica_code::RESTART_EXHAUSTED, v1};
use jaco_state::State;
use prost_types::Timestamp;

use crate::scheduler::restarts::sort_key;

/// Replicas that were re-armed, with the apply that caused it and the row that was exhausted.
///
/// Observations carry the clock of their node, applies that of the leader. This record keeps a node
/// with a lagging clock from being re-armed repeatedly for one apply; a leader without the record
/// re-arms at most once more.
#[derive(Clone, Debug, Default)]
pub struct Rearmed(BTreeMap<String, (Timestamp, u64)>);

impl Rearmed {
    /// Whether `id` was exhausted before `deployment` was last applied and was not re-armed since.
    pub(super) fn is_due(&mut self, state: &State, deployment: &v1::Deployment, id: &str) -> bool {
        let row = state.replicas_desired.get(id);
        let seen = state.replicas_observed.get(id);
        let (Some(row), Some(seen)) = (row, seen) else {
            return false;
        };
        let gave_up = seen.state() == v1::ReplicaState::Failed && seen.code == RESTART_EXHAUSTED;
        // An observation of an earlier row says nothing about the current row.
        if !gave_up || seen.desired_raft_index < row.raft_index {
            return false;
        }
        let Some(applied) = &deployment.updated_at else {
            return false;
        };
        let before = seen.last_health_at.as_ref().map(sort_key);
        if before.is_some_and(|gave_up_at| gave_up_at >= sort_key(applied)) {
            return false;
        }
        match self.0.get(id) {
            // The row is unchanged: the proposal was not committed, so re-arming is still due.
            Some((apply, index)) if apply == applied => *index == row.raft_index,
            Some(_) | None => {
                self.0.insert(id.to_owned(), (*applied, row.raft_index));
                true
            }
        }
    }

    /// Drops replicas that have no row in `state`.
    pub(super) fn retain(&mut self, state: &State) {
        self.0
            .retain(|id, _| state.replicas_desired.contains_key(id));
    }
}
