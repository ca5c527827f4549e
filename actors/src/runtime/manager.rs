//! Keeps one replica actor per row of this host, and sweeps containers without a row.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jaco_engine::{EngineError, Event, Found};
use jaco_proto::v1::ReplicaState;
use jaco_state::State;
use jaco_supervision::{
    ActorState, ChildSpec, Context, Failure, Handle, OnExhausted, TaskHandle, Worker,
};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::{
    Shared, assignment, publisher,
    replica::{
        self, ReplicaActor,
        core::RESTARTS,
        report::{Report, code},
    },
};
use crate::repeat::Repeats;

mod news;
mod sweep;

use news::News;

/// Interval of sweeps and of the reconciliation of every replica.
const TICK: Duration = Duration::from_secs(30);
/// Delay before retrying to start a child, or to list containers while starts are held back.
const RETRY: Duration = Duration::from_secs(1);

/// Arguments of a [`ReplicaManager`].
#[derive(Clone)]
pub struct Args {
    pub(crate) shared: Arc<Shared>,
    pub(crate) reports: Handle<publisher::Msg>,
}

/// Messages of the [`ReplicaManager`].
#[derive(Debug)]
pub enum Msg {
    /// The replicated state changed.
    StateChanged(watch::Receiver<Arc<State>>),
    /// The tick interval elapsed.
    Tick,
    /// The node caught up with the cluster or fell behind.
    CaughtUp(watch::Receiver<bool>),
    /// List containers and remove those without a row.
    Sweep,
    /// Outcome of a listing, with the catch-up epoch in which it began.
    Listed(u64, Result<Vec<Found>, EngineError>),
    /// Outcome of removing a container without a row.
    Reclaimed(String, Result<(), EngineError>),
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
    Up,
    Stopping,
    /// Stopped for good, until the row is newer than this log index.
    Exhausted(u64),
}

/// Follows the state and keeps one [`ReplicaActor`] per replica with an assignment on this host.
pub struct ReplicaManager {
    args: Args,
    children: BTreeMap<String, Child>,
    seen: Arc<State>,
    reclaiming: BTreeSet<String>,
    listing: bool,
    /// Replicas that were leaving when the listing began.
    left: BTreeSet<String>,
    /// Catch-up epoch: counts the changes of `caught_up`.
    stretch: u64,
    /// Next sweep while containers without a row hold back starts.
    again: Option<TaskHandle>,
    unlisted: Repeats,
    unreclaimed: Repeats,
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
            reclaiming: BTreeSet::new(),
            unlisted: Repeats::default(),
            unreclaimed: Repeats::default(),
            listing: false,
            left: BTreeSet::new(),
            stretch: 0,
            again: None,
        };
        this.recall(ctx);
        this.sync(ctx);
        this.everyone(|| replica::Msg::Dispatch);
        let up = this.args.shared.events_up();
        this.everyone(|| replica::Msg::EventsUp(up));
        this.everyone(|| replica::Msg::Hint);
        follow(ctx, state);
        ctx.send_after(TICK, Msg::Tick);
        ctx.send_to_self(Msg::CaughtUp(deps.caught_up.clone()));
        Ok(this)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::StateChanged(mut state) => {
                let newest = state.borrow_and_update().clone();
                follow(ctx, state);
                self.state_changed(ctx, newest);
            }
            Msg::Tick => {
                ctx.send_after(TICK, Msg::Tick);
                ctx.send_to_self(Msg::Sweep);
                self.sync(ctx);
                self.everyone(|| replica::Msg::Dispatch);
                self.everyone(|| replica::Msg::Tick);
            }
            Msg::CaughtUp(caught_up) => self.caught_up(ctx, caught_up),
            Msg::Sweep => self.sweep(ctx),
            Msg::Listed(stretch, listed) => {
                self.listed(ctx, listed, stretch);
            }
            Msg::Reclaimed(container, result) => {
                self.reclaiming.remove(&container);
                self.look_again(ctx, result.is_ok());
                match result {
                    Ok(()) => {
                        self.unreclaimed.clear();
                    }
                    Err(error) if self.unreclaimed.is_news(format!("{container} {error}")) => {
                        warn!(subsystem = "runtime/reconciler", %container, %error, "container not reclaimed");
                    }
                    Err(_) => {}
                }
            }
            Msg::Engine(event) => self.tell(&event.replica_id, replica::Msg::Hint),
            Msg::EventsUp(up) => self.everyone(|| replica::Msg::EventsUp(up)),
            Msg::Finished(id) => self.finished(ctx, id),
            Msg::Exhausted { id, reason } => self.exhausted(&id, &reason),
            Msg::Started(id, true) => self.tell(&id, replica::Msg::Dispatch),
            Msg::Started(id, false) => {
                self.forget(&id);
                self.stop_child(ctx, id);
            }
            Msg::Stopped(id) => {
                self.forget(&id);
                let state = self.args.shared.deps.raft.state();
                if state.cluster.is_some() {
                    self.tend(ctx, &state, &id);
                }
                self.look_again(ctx, true);
            }
        }
        Ok(())
    }
}

impl ReplicaManager {
    /// Adopts the children that an earlier instance of this actor started.
    fn recall(&mut self, ctx: &Context<Self>) {
        let family = ctx.path().rsplit_once('/').map_or("", |(family, _)| family);
        let prefix = format!("{family}/{}", key(""));
        let mut strangers = Vec::new();
        let mut failed = Vec::new();
        {
            let mut roster = self.args.shared.roster();
            for info in ctx.supervisor().describe() {
                let Some(id) = info.path.strip_prefix(&prefix).map(str::to_owned) else {
                    continue;
                };
                // The earlier instance was stopping this child, and the outcome is lost with that
                // instance: stop it again.
                let ending = info.state == ActorState::Stopped;
                if ending || !roster.contains_key(&id) {
                    strangers.push(id.clone());
                }
                let child = match info.state {
                    ActorState::Exhausted => {
                        failed.push((id.clone(), info.last_failure.unwrap_or_default()));
                        Child::Exhausted(self.reported_index(&id))
                    }
                    ActorState::Starting
                    | ActorState::Running
                    | ActorState::Backoff
                    | ActorState::Stopped => Child::Up,
                };
                self.children.insert(id, child);
            }
            roster.retain(|id, _| self.children.contains_key(id));
        }
        for (id, reason) in failed {
            self.publish_exhausted(&id, &reason);
        }
        for id in strangers {
            self.stop_child(ctx, id);
        }
    }

    /// Notifies only replicas the change can affect; notifying all would recompute every assignment
    /// on every observation of any replica in the cluster.
    fn state_changed(&mut self, ctx: &Context<Self>, state: Arc<State>) {
        let seen = std::mem::replace(&mut self.seen, Arc::clone(&state));
        let shared = Arc::clone(&self.args.shared);
        let News {
            everyone,
            mut replicas,
            documents,
            awaited,
        } = News::between(&seen, &state, &shared.deps.host);
        if everyone {
            self.sync(ctx);
            return self.everyone(|| replica::Msg::Dispatch);
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
        if !awaited.is_empty() {
            let deferred = shared.deferred.all().into_iter();
            replicas.extend(deferred.filter(|id| of(&awaited, id)));
        }
        for id in replicas {
            self.tend(ctx, &state, &id);
            self.tell(&id, replica::Msg::Dispatch);
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
            self.tend(ctx, &state, &id);
        }
    }

    /// Starts the actor of a replica if it is missing and restarts an exhausted one if its row is
    /// newer. An actor without an assignment removes its container and then reports
    /// [`Msg::Finished`].
    fn tend(&mut self, ctx: &Context<Self>, state: &State, id: &str) {
        let here = assignment::is_here(state, &self.args.shared.deps.host, id);
        match self.children.get(id) {
            None if here => self.start_child(ctx, id),
            Some(Child::Exhausted(index)) if here => {
                let row = state.replicas_desired.get(id);
                if row.is_some_and(|row| row.raft_index > *index) {
                    self.revive_child(ctx, id.to_owned());
                }
            }
            // An exhausted actor cannot remove its container; the sweep does.
            Some(Child::Exhausted(_)) => {
                self.stop_child(ctx, id.to_owned());
                ctx.send_to_self(Msg::Sweep);
            }
            None | Some(Child::Up | Child::Stopping) => {}
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
            // `recall`.
            let _ = manager.cast(Msg::Exhausted {
                id: replica.clone(),
                reason: report.last_failure.clone(),
            });
        }));
        self.children.insert(id.to_owned(), Child::Up);
        self.args.shared.roster().insert(id.to_owned(), handle);
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

    fn revive_child(&mut self, ctx: &Context<Self>, id: String) {
        info!(subsystem = "runtime/reconciler", replica_id = %id, "replica actor re-armed by a new row");
        self.children.insert(id.clone(), Child::Up);
        let supervisor = ctx.supervisor();
        ctx.spawn(async move {
            let revived = supervisor.revive_child(&key(&id)).await;
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
            self.tell(&id, replica::Msg::Dispatch);
        } else if self.children.get(&id) == Some(&Child::Up) {
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

    fn forget(&mut self, id: &str) {
        self.children.remove(id);
        let shared = &self.args.shared;
        shared.roster().remove(id);
        shared.deferred.set(id, false);
        shared.leaving.set(id, false);
    }

    fn tell(&self, id: &str, msg: replica::Msg) {
        if let Some(handle) = self.args.shared.roster().get(id) {
            // A restarting actor reads everything again in `start`.
            let _ = handle.cast(msg);
        }
    }

    fn everyone(&self, msg: impl Fn() -> replica::Msg) {
        for handle in self.args.shared.roster().values() {
            let _ = handle.cast(msg());
        }
    }
}

/// Sends [`Msg::StateChanged`] at the next change of the state, once.
fn follow(ctx: &Context<ReplicaManager>, mut state: watch::Receiver<Arc<State>>) {
    ctx.spawn(async move {
        if state.changed().await.is_err() {
            // The state's sender is dropped: this node is shutting down.
            std::future::pending::<()>().await;
        }
        Msg::StateChanged(state)
    });
}

fn key(id: &str) -> String {
    format!("replica:{id}")
}
