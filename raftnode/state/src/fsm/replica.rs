//! Desired replicas and rollout plans.

use jaco_proto::{Error, v1};

use super::{Tx, observation, reject};

/// Stores the replica under the index of this entry, which makes its owner recreate the container.
pub(super) fn upsert(tx: &mut Tx, command: &v1::ReplicaDesiredUpsert) -> Result<(), Error> {
    let mut replica = reject::required("replica", command.replica.as_ref())?.clone();
    for (field, name) in [
        ("deployment", &replica.deployment),
        ("service", &replica.service),
    ] {
        if name.is_empty() {
            return Err(reject::invalid(field, "empty"));
        }
    }
    replica.raft_index = tx.index();
    observation::drop_reassigned(tx, &replica);
    tx.put(replica)
}

/// Removes the replica with its observation and its failure counter.
pub(super) fn remove(tx: &mut Tx, id: &str) {
    let id = &id.to_owned();
    let Some(replica) = tx.get::<v1::ReplicaDesired>(id) else {
        return;
    };
    // Observations do not name their deployment, and the row that does is removed here.
    let deployment = Some(replica.deployment.clone());
    tx.remove::<v1::ReplicaDesired>(id);
    tx.remove_of::<v1::ReplicaObserved>(deployment.clone(), id);
    tx.remove_of::<v1::RestartCounter>(deployment, id);
}

/// Removes every replica of the deployment.
pub(super) fn remove_all_of(tx: &mut Tx, deployment: &str) {
    let ids: Vec<String> = tx
        .state()
        .replicas_desired
        .values()
        .filter(|replica| replica.deployment == deployment)
        .map(|replica| replica.id.clone())
        .collect();
    for id in &ids {
        remove(tx, id);
    }
}

pub(super) fn update_plan(tx: &mut Tx, command: &v1::RolloutPlanUpdate) -> Result<(), Error> {
    let plan = reject::required("plan", command.plan.as_ref())?;
    if plan.service.is_empty() {
        return Err(reject::invalid("service", "empty"));
    }
    tx.put(plan.clone())
}
