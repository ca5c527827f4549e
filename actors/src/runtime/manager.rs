//! Keeps one replica actor per row of this host, and sweeps containers without a row.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jaco_engine::{EngineError, Event, Found};
use jaco_policy::runtime::{
    assignment,
    replica::{
        core::RESTARTS,
        report::{Report, code},
    },
    state_diff::StateDiff,
};
use jaco_proto::v1::ReplicaState;
use jaco_state::State;
use jaco_supervision::{ActorState, ChildSpec, Context, Failure, Handle, OnExhausted, Worker};
use tracing::{error, info, warn};

use super::{
    RuntimeContext, publisher,
    replica::{self, ReplicaActor},
};
use crate::log_dedup::LogDedup;

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
    /// The node caught up with the cluster (`true`) or fell behind.
    CaughtUp(bool),
    /// List containers and remove those without a row.
    Sweep,
    /// Outcome of a listing, with the catch-up epoch in which it began.
    Listed(u64, Result<Vec<Found>, EngineError>),
    /// Outcome of removing a container without a row.
    OrphanRemoved(String, Result<(), EngineError>),
    /// An engine event arrived.
    Engine(Event),
    /// The engine's event stream came up or broke.
    EventsUp(bool),
    /// No container of a replica is left on this host.
    Finished(String),
    /// A replica actor has exhausted its restart limit.
    Exhausted {
        /// Id of the replica.
        id: String,
        /// Reason of its last crash.
        reason: String,
    },
    /// Outcome of starting a child.
    Started(String, bool),
    /// A child was stopped and removed from its supervisor.
    Stopped(String),
}

/// State of a replica's actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Child {
    Active,
    Stopping,
    /// Stopped for good, until the row is newer than this log index.
    Exhausted(u64),
}

/// Follows the state and keeps one [`ReplicaActor`] per replica with an assignment on this host.
pub struct ReplicaManager {
    args: Args,
    children: BTreeMap<String, Child>,
    seen: Arc<State>,
    removing_orphans: BTreeSet<String>,
    listing: bool,
    /// Replicas that were leaving when the listing began.
    leaving_at_listing: BTreeSet<String>,
    /// Catch-up epoch: counts the changes of `caught_up`.
    epoch: u64,
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
            children: BTreeMap::new(),
            seen,
            removing_orphans: BTreeSet::new(),
            list_errors: LogDedup::default(),
            removal_errors: LogDedup::default(),
            listing: false,
            leaving_at_listing: BTreeSet::new(),
            epoch: 0,
        };
        this.adopt_children(ctx);
        this.sync(ctx);
        this.cast_to_all(|| replica::Msg::Reconcile);
        let up = this.args.shared.events_up();
        this.cast_to_all(|| replica::Msg::EventsUp(up));
        this.cast_to_all(|| replica::Msg::EngineEvent);
        ctx.watch(state, Msg::StateChanged);
        ctx.send_after(TICK, Msg::Tick);
        let mut caught_up = deps.caught_up.clone();
        caught_up.mark_changed();
        ctx.watch(caught_up, Msg::CaughtUp);
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
            Msg::CaughtUp(caught_up) => self.caught_up(ctx, caught_up),
            Msg::Sweep => self.sweep(ctx),
            Msg::Listed(epoch, listed) => {
                self.listed(ctx, listed, epoch);
            }
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
            Msg::Engine(event) => self.cast_to(&event.replica_id, replica::Msg::EngineEvent),
            Msg::EventsUp(up) => self.cast_to_all(|| replica::Msg::EventsUp(up)),
            Msg::Finished(id) => self.finished(ctx, id),
            Msg::Exhausted { id, reason } => self.exhausted(&id, &reason),
            Msg::Started(id, true) => self.cast_to(&id, replica::Msg::Reconcile),
            Msg::Started(id, false) => {
                self.remove_child(&id);
                self.stop_child(ctx, id);
            }
            Msg::Stopped(id) => {
                self.remove_child(&id);
                let state = self.args.shared.deps.raft.state();
                if state.cluster.is_some() {
                    self.reconcile_replica(ctx, &state, &id);
                }
                self.schedule_sweep(ctx, true);
            }
        }
        Ok(())
    }
}

impl ReplicaManager {
    /// Adopts the children that an earlier instance of this actor started.
    fn adopt_children(&mut self, ctx: &Context<Self>) {
        let parent_path = ctx
            .path()
            .rsplit_once('/')
            .map_or("", |(parent_path, _)| parent_path);
        let prefix = format!("{parent_path}/{}", key(""));
        let mut unmanaged = Vec::new();
        let mut failed = Vec::new();
        {
            let mut replica_handles = self.args.shared.replica_handles();
            for info in ctx.supervisor().describe() {
                let Some(id) = info.path.strip_prefix(&prefix).map(str::to_owned) else {
                    continue;
                };
                // The earlier instance was stopping this child, and the outcome is lost with that
                // instance: stop it again.
                let ending = info.state == ActorState::Stopped;
                if ending || !replica_handles.contains_key(&id) {
                    unmanaged.push(id.clone());
                }
                let child = match info.state {
                    ActorState::Exhausted => {
                        failed.push((id.clone(), info.last_failure.unwrap_or_default()));
                        Child::Exhausted(self.reported_index(&id))
                    }
                    ActorState::Starting
                    | ActorState::Running
                    | ActorState::Backoff
                    | ActorState::Stopped => Child::Active,
                };
                self.children.insert(id, child);
            }
            replica_handles.retain(|id, _| self.children.contains_key(id));
        }
        for (id, reason) in failed {
            self.publish_exhausted(&id, &reason);
        }
        for id in unmanaged {
            self.stop_child(ctx, id);
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
            let children = self.children.keys().filter(|id| of(&documents, id));
            replicas.extend(children.cloned());
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
        replicas.extend(self.children.keys().cloned());
        for id in replicas {
            self.reconcile_replica(ctx, &state, &id);
        }
    }

    /// Starts the actor of a replica if it is missing and restarts an exhausted one if its row is
    /// newer. An actor without an assignment removes its container and then reports
    /// [`Msg::Finished`].
    fn reconcile_replica(&mut self, ctx: &Context<Self>, state: &State, id: &str) {
        let here = assignment::is_here(state, &self.args.shared.deps.host, id);
        match self.children.get(id) {
            None if here => self.start_child(ctx, id),
            Some(Child::Exhausted(index)) if here => {
                let row = state.replicas_desired.get(id);
                if row.is_some_and(|row| row.raft_index > *index) {
                    self.restart_child(ctx, id.to_owned());
                }
            }
            // An exhausted actor cannot remove its container; the sweep does.
            Some(Child::Exhausted(_)) => {
                self.stop_child(ctx, id.to_owned());
                ctx.send_to_self(Msg::Sweep);
            }
            None | Some(Child::Active | Child::Stopping) => {}
        }
    }

    fn start_child(&mut self, ctx: &Context<Self>, id: &str) {
        let args = replica::actor::Args {
            id: id.to_owned(),
            shared: Arc::clone(&self.args.shared),
            reports: self.args.reports.clone(),
            manager: ctx.handle(),
        };
        let (spec, handle) = ChildSpec::worker::<ReplicaActor>(key(id), args);
        let (manager, replica) = (ctx.handle(), id.to_owned());
        let spec = spec.on_exhausted(OnExhausted::notify(move |report| {
            // If the cast fails, the next instance reads the exhaustion from `describe` in
            // `adopt_children`.
            let _ = manager.cast(Msg::Exhausted {
                id: replica.clone(),
                reason: report.last_failure.clone(),
            });
        }));
        self.children.insert(id.to_owned(), Child::Active);
        self.args
            .shared
            .replica_handles()
            .insert(id.to_owned(), handle);
        let (supervisor, id) = (ctx.supervisor(), id.to_owned());
        ctx.spawn(async move {
            let started = supervisor.start_child(spec).await;
            if let Err(error) = &started {
                warn!(subsystem = "runtime/reconciler", replica_id = %id, %error, "replica actor not started");
                tokio::time::sleep(RETRY).await;
            }
            Msg::Started(id, started.is_ok())
        });
    }

    fn restart_child(&mut self, ctx: &Context<Self>, id: String) {
        info!(subsystem = "runtime/reconciler", replica_id = %id, "replica actor re-armed by a new row");
        self.children.insert(id.clone(), Child::Active);
        let supervisor = ctx.supervisor();
        ctx.spawn(async move {
            let revived = supervisor.restart_child(&key(&id)).await;
            Msg::Started(id, revived.is_ok())
        });
    }

    fn stop_child(&mut self, ctx: &Context<Self>, id: String) {
        self.children.insert(id.clone(), Child::Stopping);
        let supervisor = ctx.supervisor();
        ctx.spawn(async move {
            // A child that the supervisor does not have counts as stopped.
            let _ = supervisor.stop_child(&key(&id)).await;
            Msg::Stopped(id)
        });
    }

    fn finished(&mut self, ctx: &Context<Self>, id: String) {
        let deps = &self.args.shared.deps;
        if assignment::is_here(&deps.raft.state(), &deps.host, &id) {
            self.cast_to(&id, replica::Msg::Reconcile);
        } else if self.children.get(&id) == Some(&Child::Active) {
            self.stop_child(ctx, id);
        }
    }

    fn exhausted(&mut self, id: &str, reason: &str) {
        error!(subsystem = "runtime/reconciler", replica_id = %id, %reason, "replica actor exhausted its restarts");
        let state = self.args.shared.deps.raft.state();
        let index = state
            .replicas_desired
            .get(id)
            .map_or(0, |row| row.raft_index);
        self.children.insert(id.to_owned(), Child::Exhausted(index));
        self.publish_exhausted(id, reason);
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

    /// Log index of the row that an exhausted child was last reported for.
    fn reported_index(&self, id: &str) -> u64 {
        let state = self.args.shared.deps.raft.state();
        let reported = state
            .replicas_observed
            .get(id)
            .filter(|seen| seen.code == code::RESTART_EXHAUSTED)
            .map(|seen| seen.desired_raft_index);
        let row = state.replicas_desired.get(id).map(|row| row.raft_index);
        reported.or(row).unwrap_or(0)
    }

    fn remove_child(&mut self, id: &str) {
        self.children.remove(id);
        let shared = &self.args.shared;
        shared.replica_handles().remove(id);
        shared.deferred.set(id, false);
        shared.leaving.set(id, false);
    }

    fn cast_to(&self, id: &str, msg: replica::Msg) {
        if let Some(handle) = self.args.shared.replica_handles().get(id) {
            // A restarting actor reads everything again in `start`.
            let _ = handle.cast(msg);
        }
    }

    fn cast_to_all(&self, msg: impl Fn() -> replica::Msg) {
        for handle in self.args.shared.replica_handles().values() {
            let _ = handle.cast(msg());
        }
    }
}

fn key(id: &str) -> String {
    format!("replica:{id}")
}
