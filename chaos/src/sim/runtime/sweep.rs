//! The sweep for containers without a row, and the return of a node that was out of touch.

use std::sync::Arc;

use jaco_engine::EngineError;
use jaco_policy::{
    health::fencing::ContactEpoch,
    runtime::{
        assignment,
        sweep::{duplicates, orphans},
    },
};

use super::{EngineRequest, Goal, SWEEP};
use crate::sim::{
    cluster::{Cluster, Local},
    engine::{Answer, Request},
    mutation::Mutation,
    time::{SECOND, Time},
};

impl Cluster {
    /// The runtime's thirty-second tick: sweeps, dispatches, and republishes reports.
    pub(in crate::sim) fn runtime_tick(&mut self, id: u64) {
        self.schedule_local(id, SWEEP, Local::Sweep);
        self.sweep(id);
        self.observe_networks(id);
        self.survey(id);
        self.reconcile(id);
        self.republish(id);
    }

    /// Handles a possible change of whether the node is caught up.
    pub(in crate::sim) fn caught_up_changed(&mut self, id: u64) {
        let contact = self.contact(id);
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let runtime = &mut daemon.runtime;
        if std::mem::replace(&mut runtime.contact, contact) == contact {
            return;
        }
        let lost = runtime.cleared != contact && runtime.cleared.take().is_some();
        let current = contact.is_some();
        self.note(&[31, id, u64::from(current)], || {
            format!("n{id} has caught up: {current}")
        });
        if lost {
            self.reconcile(id);
        }
        self.sweep(id);
    }

    pub(super) fn sweep(&mut self, id: u64) {
        let Some(contact) = self.contact(id) else {
            return;
        };
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let runtime = &mut daemon.runtime;
        if runtime.listing || daemon.state.cluster.is_none() {
            return;
        }
        runtime.listing = true;
        self.ask_engine(
            id,
            EngineRequest {
                replica: String::new(),
                instance: 0,
                call: Request::List,
                goal: Goal::Sweep(contact),
                rest: Vec::new(),
                outcome: None,
            },
        );
    }

    pub(super) fn schedule_sweep(&mut self, id: u64, after: Time) {
        let contact = self.contact(id);
        if let Some(daemon) = self.daemon(id)
            && !daemon.runtime.orphans_cleared(contact)
        {
            self.schedule_local(id, after, Local::SweepAgain);
        }
    }

    pub(in crate::sim) fn sweep_again(&mut self, id: u64) {
        let contact = self.contact(id);
        if self
            .daemon(id)
            .is_some_and(|d| !d.runtime.orphans_cleared(contact))
        {
            self.sweep(id);
        }
    }

    pub(super) fn listed(
        &mut self,
        id: u64,
        contact: ContactEpoch,
        outcome: Result<Answer, EngineError>,
    ) {
        let keeps = self.has(Mutation::KeepMovedContainers);
        let present = self.contact(id);
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let host = machine.host.clone();
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let state = Arc::clone(&daemon.state);
        let runtime = &mut daemon.runtime;
        runtime.listing = false;
        if present != Some(contact) {
            return self.sweep(id);
        }
        let Ok(Answer::Found(found)) = outcome else {
            return self.schedule_sweep(id, SECOND);
        };
        let here = assignment::here(&state, &host);
        let mut settles = false;
        if !runtime.orphans_cleared(present) {
            let wanted = |replica: &String| here.contains(replica);
            let clean = found.iter().flat_map(|f| &f.replica_id).all(wanted)
                && runtime.replicas.keys().all(wanted);
            settles = clean || keeps;
            runtime.cleared = present.filter(|_| settles);
        }
        let surplus: Vec<String> = duplicates(&found).into_iter().map(str::to_owned).collect();
        let managed =
            |replica: &str| here.contains(replica) || runtime.replicas.contains_key(replica);
        let mut orphans = orphans(found, managed);
        orphans.retain(|orphan| !keeps && runtime.reclaiming.insert(orphan.id.clone()));
        if settles {
            self.reconcile(id);
        } else {
            self.schedule_sweep(id, SECOND);
        }
        for replica in surplus {
            self.drive_replica(id, &replica, |core, _| core.handle_duplicates());
        }
        for orphan in orphans {
            self.ask_engine(
                id,
                EngineRequest {
                    replica: orphan.replica_id.unwrap_or_default(),
                    instance: 0,
                    call: Request::Stop(orphan.id.clone()),
                    goal: Goal::Reclaim,
                    rest: vec![Request::Remove(orphan.id)],
                    outcome: None,
                },
            );
        }
    }

    pub(super) fn reclaimed(&mut self, id: u64, request: &EngineRequest, done: bool) {
        if let Some(daemon) = self.daemon(id)
            && let Request::Stop(container) | Request::Remove(container) = &request.call
        {
            daemon.runtime.reclaiming.remove(container);
        }
        self.schedule_sweep(id, if done { 0 } else { SECOND });
    }
}
