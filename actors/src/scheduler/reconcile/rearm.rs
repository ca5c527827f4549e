//! When a replica that gave up is tried again.

use std::collections::BTreeMap;

use jaco_proto::v1;
use jaco_raftnode::State;
use prost_types::Timestamp;

use crate::scheduler::restarts::{RESTART_EXHAUSTED, order};

/// Replicas that were tried again: for which apply, and which row had given up.
///
/// An observation carries its node's clock and an apply the leader's. Remembering what was done
/// keeps a node whose clock lags from being tried over and over for one apply; a leader that
/// has forgotten tries once more at most.
#[derive(Clone, Debug, Default)]
pub struct Rearmed(BTreeMap<String, (Timestamp, u64)>);

impl Rearmed {
    /// Whether `id` gave up before `deployment` was last applied and was not tried since.
    pub(super) fn is_due(&mut self, state: &State, deployment: &v1::Deployment, id: &str) -> bool {
        let row = state.replicas_desired.get(id);
        let seen = state.replicas_observed.get(id);
        let (Some(row), Some(seen)) = (row, seen) else {
            return false;
        };
        let gave_up = seen.state() == v1::ReplicaState::Failed && seen.code == RESTART_EXHAUSTED;
        // What answers an earlier row says nothing about the row that was issued since.
        if !gave_up || seen.desired_raft_index < row.raft_index {
            return false;
        }
        let Some(applied) = &deployment.updated_at else {
            return false;
        };
        let before = seen.last_health_at.as_ref().map(order);
        if before.is_some_and(|gave_up_at| gave_up_at >= order(applied)) {
            return false;
        }
        match self.0.get(id) {
            // The same row again: the proposal did not make it, so it is still due.
            Some((apply, index)) if apply == applied => *index == row.raft_index,
            Some(_) | None => {
                self.0.insert(id.to_owned(), (*applied, row.raft_index));
                true
            }
        }
    }

    /// Forgets replicas that `state` no longer wants.
    pub(super) fn retain(&mut self, state: &State) {
        self.0
            .retain(|id, _| state.replicas_desired.contains_key(id));
    }
}
