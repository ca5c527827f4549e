//! Desired replicas.

use jaco_proto::{Error, v1};

use super::{Tx, files, observation, reject};

/// Stores the replica under the index of this entry, which makes its owner recreate the container.
pub(super) fn upsert(tx: &mut Tx, command: &v1::ReplicaDesiredUpsert) -> Result<(), Error> {
    let replica = reject::required("replica", command.replica.as_ref())?.clone();
    for (field, name) in [
        ("deployment", &replica.deployment),
        ("service", &replica.service),
    ] {
        if name.is_empty() {
            return Err(reject::invalid(field, "empty"));
        }
    }
    issue(tx, replica)
}

fn issue(tx: &mut Tx, mut replica: v1::ReplicaDesired) -> Result<(), Error> {
    replica.raft_index = tx.index();
    observation::drop_outdated(tx, &replica)?;
    let before = tx.get::<v1::ReplicaDesired>(&replica.id);
    tx.put(replica)?;
    if let Some(before) = before {
        files::sweep_after(tx, &before);
    }
    Ok(())
}

/// Issues again, with a full restart budget, the moves away from `host` that were given up.
pub(super) fn retry_moves(tx: &mut Tx, host: &str) -> Result<(), Error> {
    let rows = tx.state().replicas_desired.values();
    let given_up = rows
        .filter(|row| row.previous_host == host && observation::move_gave_up(tx, row))
        .map(|row| v1::ReplicaDesired::clone(row))
        .collect();
    retry(tx, given_up)
}

/// Issues the replicas of a service that do not run again, with a full restart budget.
pub(super) fn retry_down(tx: &mut Tx, deployment: &str, service: &str) -> Result<(), Error> {
    let rows = tx.state().replicas_desired.values();
    let down = rows
        .filter(|row| row.deployment == deployment && row.service == service)
        .filter(|row| !observation::succeeded(tx, row))
        .map(|row| v1::ReplicaDesired::clone(row))
        .collect();
    retry(tx, down)
}

fn retry(tx: &mut Tx, replicas: Vec<v1::ReplicaDesired>) -> Result<(), Error> {
    for replica in replicas {
        let deployment = Some(replica.deployment.clone());
        tx.remove_of::<v1::RestartCounter>(deployment, &replica.id);
        issue(tx, replica)?;
    }
    Ok(())
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
    files::sweep_after(tx, &replica);
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
