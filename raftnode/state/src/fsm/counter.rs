//! Counters: replica indexes, which never repeat, and consecutive failures.

use jaco_proto::{
    Error,
    v1::{self, restart_counter_update::Action},
};

use super::{Origin, Tx, reject};

/// Increments the replica counter; the first value of a service is 1.
pub(super) fn next_replica(
    tx: &mut Tx,
    command: &v1::ReplicaCounterIncrement,
) -> Result<(), Error> {
    if command.service.is_empty() {
        return Err(reject::invalid("service", "empty"));
    }
    let key = (command.deployment.clone(), command.service.clone());
    let last = tx
        .get::<v1::ReplicaCounter>(&key)
        .map_or(0, |counter| counter.next_index);
    tx.put(v1::ReplicaCounter {
        deployment: key.0,
        service: key.1,
        next_index: last.saturating_add(1),
    })
}

/// Increments or resets the failure counter of a replica.
///
/// A failure of a replica that is no longer desired is not counted: nothing would remove the
/// counter, and a later replica with the same id would inherit it.
pub(super) fn update_restarts(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::RestartCounterUpdate,
) -> Result<(), Error> {
    let id = &command.replica_id;
    let deployment = tx
        .get::<v1::ReplicaDesired>(id)
        .map(|replica| replica.deployment.clone());
    match Action::try_from(command.action) {
        Ok(Action::Increment) if deployment.is_some() => {
            let failures = tx
                .get::<v1::RestartCounter>(id)
                .map_or(0, |counter| counter.consecutive_failures);
            tx.put_of(
                deployment,
                v1::RestartCounter {
                    replica_id: id.clone(),
                    consecutive_failures: failures.saturating_add(1),
                    last_attempt_at: Some(origin.ts),
                },
            )
        }
        Ok(Action::Increment) => Ok(()),
        Ok(Action::Reset) => {
            tx.remove_of::<v1::RestartCounter>(deployment, id);
            Ok(())
        }
        Ok(Action::Unspecified) | Err(_) => Err(reject::invalid("action", "not a counter action")),
    }
}
