//! Messages to the replica actors.

use super::ReplicaManager;
use crate::runtime::replica;

impl ReplicaManager {
    pub(super) fn cast_to(&self, id: &str, msg: replica::Msg) {
        if let Some(handle) = self.args.shared.replica_handles().get(id) {
            // A restarting actor reads everything again in `start`.
            let _ = handle.cast(msg);
        }
    }

    /// Notifies replicas of the same deployment that share another's network namespace of an event
    /// about a possible lender.
    pub(super) fn cast_to_borrowers(&self, lender: &str) {
        let shared = &self.args.shared;
        let borrowers = shared.borrowers.all();
        if borrowers.is_empty() {
            return;
        }
        let state = shared.deps.raft.state();
        let deployment = |id: &str| {
            let row = state.replicas_desired.get(id);
            row.map(|row| row.deployment.clone())
        };
        // The row of a removed lender may be gone.
        let of = deployment(lender);
        for id in borrowers.iter().filter(|id| *id != lender) {
            if of.is_none() || deployment(id) == of {
                self.cast_to(id, replica::Msg::EngineEvent);
            }
        }
    }

    pub(super) fn cast_to_all(&self, msg: impl Fn() -> replica::Msg) {
        for handle in self.args.shared.replica_handles().values() {
            let _ = handle.cast(msg());
        }
    }
}
