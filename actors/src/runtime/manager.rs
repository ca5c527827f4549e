//! Keeps one replica actor per row of this host, and sweeps containers without a row.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jaco_engine::{EngineError, Event, Found};
use jaco_policy::{
    health::fencing::ContactEpoch,
    network::firewall::local::LocalReports,
    runtime::{
        assignment,
        replica::{
            core::RESTARTS,
            report::{Report, code},
        },
        state_diff::StateDiff,
    },
};
use jaco_proto::v1::ReplicaState;
use jaco_state::State;
use jaco_supervision::{
    ActorState, ChildDone, ChildEvent, ChildSpec, Context, Failure, Handle, KeyedChildren, Worker,
};
use tracing::{error, info, warn};

use super::{
    RuntimeContext, publisher,
    replica::{self, ReplicaActor},
};
use crate::log_dedup::LogDedup;

mod notify;
mod sweep;

/// Interval of sweeps and of the reconciliation of every replica.
const TICK: Duration = Duration::from_secs(30);
/// Delay before retrying to start a child, or to list containers while starts are held back.
const RETRY: Duration = Duration::from_secs(1);

/// Arguments of a [`ReplicaManager`].
#[derive(Clone)]
pub struct Args {
    pub(crate) shared: Arc<RuntimeContext>,
    pub(crate) reports: Handle<publisher::Msg>,
}

/// Messages of the [`ReplicaManager`].
#[derive(Debug)]
pub enum Msg {
    /// The replicated state changed.
    StateChanged(Arc<State>),
    /// The tick interval elapsed.
    Tick,
    /// The node caught up with the cluster in this contact, or fell behind.
    ContactChanged(Option<ContactEpoch>),
    /// List containers and remove those without a row.
    Sweep,
    /// Outcome of a listing, with the contact in which it began.
    Listed(ContactEpoch, Result<Vec<Found>, EngineError>),
    /// Outcome of removing a container without a row.
    OrphanRemoved(String, Result<(), EngineError>),
    /// Files of former replicas were removed.
    FilesSwept,
    /// An engine event arrived.
    Engine(Event),
    /// The engine's event stream came up or broke.
    EventsUp(bool),
    /// Networks were repaired, so containers may have other addresses.
    NetworksRepaired,
    /// No container of a replica is left on this host.
    Finished(String),
    /// A request about a replica actor has ended, or the actor exhausted its restarts.
    ReplicaDone(ChildDone),
    /// The delay of a replica actor whose start was refused has passed.
    RetryStart(String),
}

/// State of a replica's actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Child {
    Active,
    /// Stopped for good, until the row is newer than this log index.
    Exhausted(u64),
}

/// Follows the state and keeps one [`ReplicaActor`] per replica with an assignment on this host.
pub struct ReplicaManager {
    args: Args,
    children: KeyedChildren<Self, Child>,
    /// Replicas whose actors are not started before [`Msg::RetryStart`].
    refused: BTreeSet<String>,
    seen: Arc<State>,
    removing_orphans: BTreeSet<String>,
    listing: bool,
    /// Replicas that were leaving when the listing began.
    leaving_at_listing: BTreeSet<String>,
    list_errors: LogDedup,
    removal_errors: LogDedup,
}

impl Worker for ReplicaManager {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "ReplicaManager";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let deps = args.shared.deps.clone();
        let state = deps.raft.follow();
        let seen = state.borrow().clone();
        let mut this = Self {
            args,
            children: KeyedChildren::new("replica:", Msg::ReplicaDone).report_exhausted(),
            refused: BTreeSet::new(),
            seen,
            removing_orphans: BTreeSet::new(),
            list_errors: LogDedup::default(),
            removal_errors: LogDedup::default(),
            listing: false,
            leaving_at_listing: BTreeSet::new(),
        };
        this.adopt_children(ctx);
        this.sync(ctx);
        this.cast_to_all(|| replica::Msg::Reconcile);
        let up = this.args.shared.events_up();
        this.cast_to_all(|| replica::Msg::EventsUp(up));
        this.cast_to_all(|| replica::Msg::EngineEvent);
        ctx.watch(state, Msg::StateChanged);
        ctx.send_after(TICK, Msg::Tick);
        let mut contact = deps.contact.changes();
        contact.mark_changed();
        ctx.watch(contact, Msg::ContactChanged);
        ctx.watch(deps.networks.repairs(), |_| Msg::NetworksRepaired);
        Ok(this)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::StateChanged(newest) => self.state_changed(ctx, newest),
            Msg::Tick => {
                ctx.send_after(TICK, Msg::Tick);
                ctx.send_to_self(Msg::Sweep);
                self.sync(ctx);
                self.cast_to_all(|| replica::Msg::Reconcile);
                self.cast_to_all(|| replica::Msg::Tick);
            }
            Msg::ContactChanged(contact) => self.contact_changed(ctx, contact),
            Msg::Sweep => self.sweep(ctx),
            Msg::Listed(contact, listed) => self.listed(ctx, listed, contact),
            Msg::FilesSwept => {}
            Msg::OrphanRemoved(container, result) => {
                self.removing_orphans.remove(&container);
                self.schedule_sweep(ctx, result.is_ok());
                match result {
                    Ok(()) => {
                        self.removal_errors.clear();
                    }
                    Err(error) if self.removal_errors.is_new(format!("{container} {error}")) => {
                        warn!(subsystem = "runtime/reconciler", %container, %error, "container not reclaimed");
                    }
                    Err(_) => {}
                }
            }
            Msg::Engine(event) => {
                self.cast_to(&event.replica_id, replica::Msg::EngineEvent);
                self.cast_to_borrowers(&event.replica_id);
            }
            Msg::NetworksRepaired => self.cast_to_all(|| replica::Msg::EngineEvent),
            Msg::EventsUp(up) => self.cast_to_all(|| replica::Msg::EventsUp(up)),
            Msg::Finished(id) => self.finished(ctx, id),
            Msg::ReplicaDone(done) => {
                if let Some(event) = self.children.handle_done(ctx, done) {
                    self.child_changed(ctx, event);
                }
            }
            Msg::RetryStart(id) => {
                self.refused.remove(&id);
                self.reconcile_missing(ctx, &id);
            }
        }
        Ok(())
    }
}

impl ReplicaManager {
    /// Adopts the children that an earlier instance of this actor started.
    fn adopt_children(&mut self, ctx: &Context<Self>) {
        let shared = Arc::clone(&self.args.shared);
        let mut replica_handles = shared.replica_handles();
        let mut failed = Vec::new();
        self.children.adopt(ctx, |id, info| {
            let child = if info.state == ActorState::Exhausted {
                failed.push((id.to_owned(), info.last_failure.clone().unwrap_or_default()));
                Child::Exhausted(reported_index(&shared.deps.raft.state(), id))
            } else {
                Child::Active
            };
            replica_handles.contains_key(id).then_some(child)
        });
        replica_handles
            .retain(|id, _| self.children.get(id).is_some() || self.children.is_stopping(id));
        drop(replica_handles);
        for (id, reason) in failed {
            self.publish_exhausted(&id, &reason);
        }
    }

    /// Handles a change of the set of replica actors.
    fn child_changed(&mut self, ctx: &Context<Self>, event: ChildEvent) {
        match event {
            ChildEvent::Started(id) => self.cast_to(&id, replica::Msg::Reconcile),
            ChildEvent::NotStarted(id, error) => {
                warn!(subsystem = "runtime/reconciler", replica_id = %id, %error, "replica actor not started");
                self.forget_child(&id);
                self.refused.insert(id.clone());
                ctx.send_after(RETRY, Msg::RetryStart(id));
            }
            ChildEvent::Stopped(id) => {
                self.forget_child(&id);
                self.reconcile_missing(ctx, &id);
                self.schedule_sweep(ctx, true);
            }
            ChildEvent::Exhausted(id, reason) => self.exhausted(&id, &reason),
        }
    }

    /// Reconciles a replica that has no actor at the moment.
    fn reconcile_missing(&mut self, ctx: &Context<Self>, id: &str) {
        let state = self.args.shared.deps.raft.state();
        if state.cluster.is_some() {
            self.reconcile_replica(ctx, &state, id);
        }
    }

    /// Notifies only replicas the change can affect; notifying all would recompute every assignment
    /// on every observation of any replica in the cluster.
    fn state_changed(&mut self, ctx: &Context<Self>, state: Arc<State>) {
        let seen = std::mem::replace(&mut self.seen, Arc::clone(&state));
        let shared = Arc::clone(&self.args.shared);
        let StateDiff {
            all_replicas,
            mut replicas,
            documents,
            dependencies_changed,
        } = StateDiff::between(&seen, &state, &shared.deps.host);
        if all_replicas {
            self.sync(ctx);
            return self.cast_to_all(|| replica::Msg::Reconcile);
        }
        if state.cluster.is_none() {
            return;
        }
        let of = |deployments: &BTreeSet<String>, id: &String| {
            let row = state.replicas_desired.get(id);
            row.is_some_and(|row| deployments.contains(&row.deployment))
        };
        if !documents.is_empty() {
            shared
                .documents
                .retain(|name| state.deployments.contains_key(name));
            let children = self.children.ids().map(str::to_owned);
            replicas.extend(children.filter(|id| of(&documents, id)));
        }
        if !dependencies_changed.is_empty() {
            let deferred = shared.deferred.all().into_iter();
            replicas.extend(deferred.filter(|id| of(&dependencies_changed, id)));
        }
        for id in replicas {
            self.reconcile_replica(ctx, &state, &id);
            self.cast_to(&id, replica::Msg::Reconcile);
        }
    }

    /// Reconciles every replica that has an assignment or an actor here.
    fn sync(&mut self, ctx: &Context<Self>) {
        let shared = Arc::clone(&self.args.shared);
        let state = shared.deps.raft.state();
        if state.cluster.is_none() {
            return;
        }
        shared
            .documents
            .retain(|name| state.deployments.contains_key(name));
        let mut replicas = assignment::here(&state, &shared.deps.host);
        replicas.extend(self.children.ids().map(str::to_owned));
        for id in replicas {
            self.reconcile_replica(ctx, &state, &id);
        }
    }

    /// Starts the actor of a replica if it is missing and restarts an exhausted one if its row is
    /// newer. An actor without an assignment removes its container and then reports
    /// [`Msg::Finished`].
    fn reconcile_replica(&mut self, ctx: &Context<Self>, state: &State, id: &str) {
        let here = assignment::is_here(state, &self.args.shared.deps.host, id);
        match self.children.get(id).copied() {
            // The handle and the marks of an actor that is being stopped are still its own.
            None if here && !self.children.is_stopping(id) && !self.refused.contains(id) => {
                self.start_child(ctx, id);
            }
            Some(Child::Exhausted(index)) if here => {
                let row = state.replicas_desired.get(id);
                if row.is_some_and(|row| row.raft_index > index) {
                    info!(subsystem = "runtime/reconciler", replica_id = %id, "replica actor re-armed by a new row");
                    self.set_child(id, Child::Active);
                    self.children.restart(ctx, id);
                }
            }
            // An exhausted actor cannot remove its container; the sweep does.
            Some(Child::Exhausted(_)) => {
                self.children.stop(ctx, id);
                ctx.send_to_self(Msg::Sweep);
            }
            None | Some(Child::Active) => {}
        }
    }

    fn start_child(&mut self, ctx: &Context<Self>, id: &str) {
        let args = replica::actor::Args {
            id: id.to_owned(),
            shared: Arc::clone(&self.args.shared),
            reports: self.args.reports.clone(),
            manager: ctx.handle(),
        };
        let (spec, handle) = ChildSpec::worker::<ReplicaActor>(self.children.key(id), args);
        self.children.start(ctx, id, spec, Child::Active);
        self.args
            .shared
            .replica_handles()
            .insert(id.to_owned(), handle);
    }

    fn finished(&mut self, ctx: &Context<Self>, id: String) {
        let deps = &self.args.shared.deps;
        if assignment::is_here(&deps.raft.state(), &deps.host, &id) {
            self.cast_to(&id, replica::Msg::Reconcile);
        } else if self.children.get(&id) == Some(&Child::Active) {
            self.children.stop(ctx, &id);
        }
    }

    fn exhausted(&mut self, id: &str, reason: &str) {
        error!(subsystem = "runtime/reconciler", replica_id = %id, %reason, "replica actor exhausted its restarts");
        let state = self.args.shared.deps.raft.state();
        let index = state
            .replicas_desired
            .get(id)
            .map_or(0, |row| row.raft_index);
        self.set_child(id, Child::Exhausted(index));
        self.publish_exhausted(id, reason);
    }

    fn set_child(&mut self, id: &str, child: Child) {
        if let Some(known) = self.children.get_mut(id) {
            *known = child;
        }
    }

    fn publish_exhausted(&self, id: &str, reason: &str) {
        let deps = &self.args.shared.deps;
        let state = deps.raft.state();
        let Some(row) = state.replicas_desired.get(id) else {
            return;
        };
        let container = state.replicas_observed.get(id);
        let container = container.map_or("", |seen| seen.container_id.as_str());
        let report = Report::new(ReplicaState::Failed, row.raft_index)
            .because(
                code::RESTART_EXHAUSTED,
                format!("its actor failed: {reason}"),
            )
            .with("consecutive_failures", RESTARTS + 1)
            .with("cause", "actor")
            .of(container);
        let row = report.observed(id, &deps.host, deps.clock.timestamp());
        let _ = self
            .args
            .reports
            .cast(publisher::Msg::Report(Box::new(row)));
    }

    /// Drops what the actors of the runtime share about an actor that is gone.
    fn forget_child(&self, id: &str) {
        let shared = &self.args.shared;
        shared.replica_handles().remove(id);
        shared.deferred.set(id, false);
        shared.leaving.set(id, false);
        shared.borrowers.set(id, false);
        let forget = |reports: &mut LocalReports| reports.remove(id);
        shared.deps.reports.send_if_modified(forget);
    }
}

/// Log index of the row that an exhausted child was last reported for.
fn reported_index(state: &State, id: &str) -> u64 {
    let reported = state
        .replicas_observed
        .get(id)
        .filter(|seen| seen.code == code::RESTART_EXHAUSTED)
        .map(|seen| seen.desired_raft_index);
    let row = state.replicas_desired.get(id).map(|row| row.raft_index);
    reported.or(row).unwrap_or(0)
}
