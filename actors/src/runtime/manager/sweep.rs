//! Sweep for containers of this cluster that no row on this host accounts for.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jaco_engine::{EngineError, Found};
use jaco_policy::{
    health::fencing::ContactEpoch,
    runtime::{
        assignment,
        sweep::{duplicates, orphans},
    },
};
use jaco_supervision::Context;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{Child, Msg, RETRY, ReplicaManager};
use crate::runtime::replica::{self, launch::discard};

impl ReplicaManager {
    pub(super) fn sweep(&mut self, ctx: &Context<Self>) {
        let deps = self.args.shared.deps.clone();
        let state = deps.raft.state();
        let Some(cluster) = state.cluster.clone() else {
            return;
        };
        let Some(contact) = deps.contact.now().filter(|_| !self.listing) else {
            return;
        };
        self.listing = true;
        self.leaving_at_listing = self.args.shared.leaving.all();
        ctx.spawn(async move { Msg::Listed(contact, deps.engine.list(&cluster.cluster_id).await) });
    }

    /// Handles a change of the contact. After catching up, containers of rows that moved away are
    /// stopped before any container is started.
    pub(super) fn contact_changed(&mut self, ctx: &Context<Self>, contact: Option<ContactEpoch>) {
        let shared = &self.args.shared;
        if contact.is_some() && shared.cleared_contact() == contact {
            return;
        }
        // A listing of an earlier contact does not count: containers of rows that moved meanwhile may
        // still run here.
        if shared.set_orphans_cleared(None) {
            if contact.is_none() {
                info!(
                    subsystem = "runtime/reconciler",
                    "not caught up with the cluster: container starts are held back"
                );
            }
            self.cast_to_all(|| replica::Msg::Reconcile);
        }
        ctx.send_to_self(Msg::Sweep);
    }

    /// Schedules another listing while containers without a row hold back starts.
    pub(super) fn schedule_sweep(&self, ctx: &Context<Self>, at_once: bool) {
        let delay = if at_once { Duration::ZERO } else { RETRY };
        let next = (!self.args.shared.orphans_cleared()).then(|| Instant::now() + delay);
        ctx.set_deadline(next, Msg::Sweep);
    }

    /// Allows starts once no container without a row is running here, as a listing of this contact
    /// shows. Stopped containers do not hold back starts: their removal may take long or need an
    /// operator.
    fn check_orphans_cleared(
        &mut self,
        ctx: &Context<Self>,
        contact: ContactEpoch,
        here: &BTreeSet<String>,
        found: &[Found],
    ) {
        let shared = &self.args.shared;
        if shared.orphans_cleared() {
            return;
        }
        let wanted = |replica: &str| here.contains(replica);
        let mut running = found
            .iter()
            .filter(|container| !container.status.has_stopped());
        // A child without an assignment may have been creating its container during the listing.
        let leaving = shared.leaving.all();
        let gone =
            |replica: &str| self.leaving_at_listing.contains(replica) && leaving.contains(replica);
        let clean = running.all(|container| container.replica_id.as_deref().is_none_or(wanted))
            && self.children.ids().all(|id| wanted(id) || gone(id));
        if !clean {
            return self.schedule_sweep(ctx, false);
        }
        shared.set_orphans_cleared(Some(contact));
        debug!(
            subsystem = "runtime/reconciler",
            "caught up with the cluster"
        );
        self.cast_to_all(|| replica::Msg::Reconcile);
    }

    /// Removes the files of replicas that have neither a row here, nor an actor, nor a container.
    fn sweep_files(&self, ctx: &Context<Self>, here: &BTreeSet<String>, found: &[Found]) {
        let mut keep = here.clone();
        keep.extend(self.children.ids().map(str::to_owned));
        keep.extend(found.iter().filter_map(|one| one.replica_id.clone()));
        let deps = self.args.shared.deps.clone();
        let files = deps.files.clone();
        ctx.spawn(async move {
            // A replica may arrive, and write its files, while others are removed.
            let keep = move |replica: &str| {
                keep.contains(replica)
                    || assignment::is_here(&deps.raft.state(), &deps.host, replica)
            };
            let swept = tokio::task::spawn_blocking(move || files.retain(keep)).await;
            if let Ok(Err(error)) = swept {
                warn!(subsystem = "runtime/reconciler", %error, "files of former replicas are not removed");
            }
            Msg::FilesSwept
        });
    }

    pub(super) fn listed(
        &mut self,
        ctx: &Context<Self>,
        listed: Result<Vec<Found>, EngineError>,
        contact: ContactEpoch,
    ) {
        self.listing = false;
        let deps = self.args.shared.deps.clone();
        if deps.contact.now() != Some(contact) {
            // The listing may be older than the state the node has caught up with.
            return ctx.send_to_self(Msg::Sweep);
        }
        let found = match listed {
            Ok(found) => {
                self.list_errors.clear();
                found
            }
            Err(error) => {
                if self.list_errors.is_new(&error) {
                    warn!(subsystem = "runtime/reconciler", %error, "containers not listed");
                }
                return self.schedule_sweep(ctx, false);
            }
        };
        // The listing completed before the state is read, so the state is never older than the
        // listing.
        let here = assignment::here(&deps.raft.state(), &deps.host);
        self.check_orphans_cleared(ctx, contact, &here, &found);
        let managed = |id: &str| {
            here.contains(id)
                || self
                    .children
                    .get(id)
                    .is_some_and(|child| *child == Child::Active)
        };
        self.sweep_files(ctx, &here, &found);
        for replica in duplicates(&found) {
            self.cast_to(replica, replica::Msg::DuplicateContainers);
        }
        for container in orphans(found, managed) {
            let Found {
                id: container,
                replica_id,
                ..
            } = container;
            if !self.removing_orphans.insert(container.clone()) {
                continue;
            }
            info!(subsystem = "runtime/reconciler", %container, "removing a container without a row");
            let shared = Arc::clone(&self.args.shared);
            ctx.spawn(async move {
                let replica_id = replica_id.unwrap_or_default();
                let result = discard(shared, replica_id, vec![container.clone()]).await;
                Msg::OrphanRemoved(container, result)
            });
        }
    }
}
