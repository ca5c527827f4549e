//! Driver of a replica's core: runs its actions and reports their outcomes to it.

use std::{collections::BTreeSet, future::Future, sync::Arc};

use jaco_engine::{EngineError, Found, Inspected, NetworkNamespace};
use jaco_policy::runtime::{
    assignment,
    replica::{
        core::{
            Action, Assignment, Core, Now, PostStartError, PrepareError, Seed, StartError,
            StartGate,
        },
        report::{Report, code},
    },
};
use jaco_proto::v1::ReplicaState;
use jaco_supervision::{Context, Failure, Handle, TaskHandle, Worker};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    launch::{self, Launch, Permit},
    readiness,
};
use crate::{
    log_dedup::LogDedup,
    runtime::{RuntimeContext, manager, publisher},
};

/// Arguments of a [`ReplicaActor`].
#[derive(Clone)]
pub struct Args {
    pub(crate) id: String,
    pub(crate) shared: Arc<RuntimeContext>,
    pub(crate) reports: Handle<publisher::Msg>,
    pub(crate) manager: Handle<manager::Msg>,
}

/// Messages of a [`ReplicaActor`].
#[derive(Debug)]
pub enum Msg {
    /// Relevant state may have changed: recompute the assignment.
    Reconcile,
    /// Thirty seconds passed: republish a report that the state lacks.
    Tick,
    /// The engine sent an event about the container.
    EngineEvent,
    /// More than one container carries the replica's label.
    DuplicateContainers,
    /// The engine's event stream connected or broke.
    EventsUp(bool),
    /// The core's deadline passed.
    Timeout,
    /// Outcome of an action.
    Done(Outcome),
}

/// Result of a task of the actor; opaque to other modules.
#[derive(Debug)]
pub struct Outcome(OutcomeKind);

/// Outcome of the action with this generation.
#[derive(Debug)]
enum OutcomeKind {
    Found(u64, Result<Vec<Found>, EngineError>),
    Prepared(u64, Result<Box<Launch>, PrepareError>),
    PullProgressed(u64),
    Pulled(u64, Result<(), EngineError>),
    Launched(u64, Result<String, StartError>),
    Started(u64, Result<(), StartError>),
    /// The last are the ports that accepted a connection.
    Inspected(u64, Result<Inspected, EngineError>, BTreeSet<u16>),
    Discarded(u64, Result<(), EngineError>),
    PostStarted(u64, Result<(), PostStartError>),
    Withdrawn(u64),
}

/// Drives one replica of this host towards its assignment.
pub struct ReplicaActor {
    args: Args,
    core: Core,
    state: ReplicaState,
    /// Input of the next create.
    launch: Option<Launch>,
    action_in_flight: Option<TaskHandle>,
    deferred: Option<String>,
    prepare_errors: LogDedup,
}

impl Worker for ReplicaActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "ReplicaActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        let state = args.shared.deps.raft.state();
        let host = &args.shared.deps.host;
        // Set again once this instance has listed the containers.
        args.shared.leaving.set(&args.id, false);
        let observed = state.replicas_observed.get(&args.id);
        let seed = Seed {
            report: observed
                .filter(|row| row.host == *host)
                // A report about this actor's own crashes does not describe the container.
                .filter(|row| {
                    row.details
                        .get("cause")
                        .is_none_or(|cause| cause != "actor")
                })
                .map(|row| Report::from(row.as_ref())),
            failures: state
                .restart_counters
                .get(&args.id)
                .and_then(|counter| u32::try_from(counter.consecutive_failures).ok())
                .unwrap_or(0),
        };
        let this = Self {
            core: Core::new(host.clone(), seed, args.shared.events_up()),
            state: observed.map_or(ReplicaState::Unspecified, |row| row.state()),
            args,
            launch: None,
            action_in_flight: None,
            deferred: None,
            prepare_errors: LogDedup::default(),
        };
        ctx.send_to_self(Msg::Reconcile);
        Ok(this)
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        let now = Now {
            instant: Instant::now().into_std(),
            wall: self.args.shared.deps.clock.now(),
        };
        match msg {
            Msg::Reconcile => match self.assignment() {
                Some(assignment) => self.core.handle_assignment(assignment),
                None => return Ok(()),
            },
            Msg::Tick => {
                self.republish();
                return Ok(());
            }
            Msg::EngineEvent => self.core.handle_engine_event(),
            Msg::DuplicateContainers => self.core.handle_duplicates(),
            Msg::EventsUp(up) => self.core.handle_event_stream(now, up),
            Msg::Timeout => {
                self.refresh(ctx);
                self.core.handle_timeout(now);
            }
            Msg::Done(Outcome(outcome)) => self.handle_outcome(ctx, now, outcome),
        }
        self.drive(ctx);
        let shared = &self.args.shared;
        shared.leaving.set(&self.args.id, self.core.is_leaving());
        self.log_deferral();
        let deadline = self.core.poll_timeout().map(Instant::from_std);
        ctx.set_deadline(deadline, Msg::Timeout);
        Ok(())
    }
}

impl ReplicaActor {
    fn drive(&mut self, ctx: &Context<Self>) {
        while let Some(action) = self.core.poll_action() {
            self.run(ctx, action);
        }
    }

    /// Reports the assignment of this moment to the core, before an event on which the core may
    /// decide a start. The notice of a change may still wait in the mailbox, of lost contact after a
    /// pause even elsewhere, and changes of dependencies are only delivered while a start is
    /// deferred.
    fn refresh(&mut self, ctx: &Context<Self>) {
        if let Some(assignment) = self.assignment() {
            self.core.handle_assignment(assignment);
            self.drive(ctx);
        }
    }

    fn handle_outcome(&mut self, ctx: &Context<Self>, now: Now, outcome: OutcomeKind) {
        match &outcome {
            OutcomeKind::PullProgressed(_)
            | OutcomeKind::Inspected(..)
            | OutcomeKind::PostStarted(..) => {}
            OutcomeKind::Found(..)
            | OutcomeKind::Prepared(..)
            | OutcomeKind::Pulled(..)
            | OutcomeKind::Launched(..)
            | OutcomeKind::Started(..)
            | OutcomeKind::Withdrawn(_)
            | OutcomeKind::Discarded(..) => self.refresh(ctx),
        }
        match outcome {
            OutcomeKind::Found(generation, result) => {
                self.core.handle_found(now, generation, result);
            }
            OutcomeKind::Prepared(generation, result) => {
                let result = result.map(|launch| self.launch = Some(*launch));
                match &result {
                    Ok(()) => {
                        self.prepare_errors.clear();
                    }
                    Err(error) if self.prepare_errors.is_new(error) => {
                        info!(subsystem = "runtime/health", replica_id = %self.args.id, %error, "start not prepared yet");
                    }
                    Err(_) => {}
                }
                self.core.handle_prepared(now, generation, result);
            }
            OutcomeKind::PullProgressed(generation) => {
                self.core.handle_pull_progress(now, generation);
            }
            OutcomeKind::Pulled(generation, result) => {
                self.core.handle_pulled(now, generation, result);
            }
            OutcomeKind::Launched(generation, result) => {
                self.core.handle_launched(now, generation, result);
            }
            OutcomeKind::Started(generation, result) => {
                self.core.handle_started(now, generation, result);
            }
            OutcomeKind::Inspected(generation, result, accepted) => {
                if let Ok(seen) = &result {
                    let borrows = seen.namespace != NetworkNamespace::Own;
                    self.args.shared.borrowers.set(&self.args.id, borrows);
                }
                let is_seen = result.is_ok();
                self.core
                    .handle_inspected(now, generation, result, accepted);
                if is_seen {
                    self.show();
                }
            }
            OutcomeKind::Discarded(generation, result) => {
                self.core.handle_discarded(now, generation, result);
            }
            OutcomeKind::PostStarted(generation, result) => {
                self.core.handle_post_started(now, generation, result);
            }
            OutcomeKind::Withdrawn(generation) => self.core.handle_withdrawn(generation),
        }
    }

    /// Computes the assignment; `None` while there is no cluster, as an empty state does not mean
    /// that the row is gone.
    fn assignment(&self) -> Option<Assignment> {
        let shared = &self.args.shared;
        // Mark before reading the state: the manager notifies marked replicas of later changes, so
        // none is missed.
        shared.deferred.set(&self.args.id, true);
        let assignment = shared.assignment(&self.args.id)?;
        let deferred = matches!(
            &assignment,
            Assignment::Own(wanted) if matches!(wanted.gate, StartGate::Deferred(_))
        );
        shared.deferred.set(&self.args.id, deferred);
        Some(assignment)
    }

    fn run(&mut self, ctx: &Context<Self>, action: Action) {
        let shared = &self.args.shared;
        let (engine, id) = (Arc::clone(&shared.deps.engine), self.args.id.clone());
        match action {
            Action::Lookup(generation) => {
                let cluster = shared.deps.raft.state().cluster.clone();
                let cluster = cluster
                    .map(|meta| meta.cluster_id.clone())
                    .unwrap_or_default();
                self.spawn_action(ctx, async move {
                    OutcomeKind::Found(generation, engine.find(&cluster, &id).await)
                });
            }
            Action::Prepare(generation) => {
                let task = launch::prepare(Arc::clone(shared), id);
                self.spawn_action(ctx, async move {
                    let prepared = task.await.map(Box::new);
                    OutcomeKind::Prepared(generation, prepared)
                });
            }
            Action::Pull(generation) => {
                let Some(launch) = self.launch.clone() else {
                    return;
                };
                let this = ctx.handle();
                let progressed = move || {
                    let progressed = OutcomeKind::PullProgressed(generation);
                    // If the cast fails, this instance is stopping and does not need the progress.
                    let _ = this.cast(Msg::Done(Outcome(progressed)));
                };
                let task = launch::pull(Arc::clone(shared), launch, progressed);
                self.spawn_action(
                    ctx,
                    async move { OutcomeKind::Pulled(generation, task.await) },
                );
            }
            Action::Launch(generation, condition) => {
                let Some(launch) = self.launch.take() else {
                    return;
                };
                // Kept for a second attempt after the pull of a missing image.
                self.launch = Some(launch.clone());
                let task = launch::launch(Permit::new(shared, &id, condition), launch);
                self.spawn_action(
                    ctx,
                    async move { OutcomeKind::Launched(generation, task.await) },
                );
            }
            Action::Start(generation, container, condition) => {
                let permit = Permit::new(shared, &id, condition);
                self.spawn_action(ctx, async move {
                    let started = launch::start(&permit, &container).await;
                    OutcomeKind::Started(generation, started)
                });
            }
            Action::Inspect(generation, container, ports) => self.spawn_action(ctx, async move {
                let seen = engine.inspect(&container).await;
                let accepted = match &seen {
                    Ok(seen) => readiness::accepting(seen, &ports).await,
                    Err(_) => BTreeSet::new(),
                };
                OutcomeKind::Inspected(generation, seen, accepted)
            }),
            Action::PostStart(generation, container) => {
                let task = launch::post_start(Arc::clone(shared), id, container);
                self.spawn_action(ctx, async move {
                    OutcomeKind::PostStarted(generation, task.await)
                });
            }
            Action::Withdraw(generation) => {
                let task = withdrawn(Arc::clone(shared), id);
                self.spawn_action(ctx, async move {
                    task.await;
                    OutcomeKind::Withdrawn(generation)
                });
            }
            Action::Discard(generation, containers) => {
                let task = launch::discard(Arc::clone(shared), id, containers);
                self.spawn_action(ctx, async move {
                    OutcomeKind::Discarded(generation, task.await)
                });
            }
            Action::Cancel => {
                if let Some(task) = self.action_in_flight.take() {
                    task.abort();
                }
            }
            Action::Publish(report) => self.publish(&report),
            Action::Finished => {
                let _ = self.args.manager.cast(manager::Msg::Finished(id));
            }
        }
    }

    fn spawn_action(
        &mut self,
        ctx: &Context<Self>,
        task: impl Future<Output = OutcomeKind> + Send + 'static,
    ) {
        self.action_in_flight = Some(ctx.spawn(async move { Msg::Done(Outcome(task.await)) }));
    }

    /// Shows this host the last report after the first inspection, which may leave it unchanged.
    fn show(&self) {
        let (deps, id) = (&self.args.shared.deps, &self.args.id);
        let is_shown = deps.reports.borrow().get(id).is_some();
        if let (false, Some(report)) = (is_shown, self.core.last_report()) {
            let row = report.observed(id, &deps.host, deps.clock.timestamp());
            deps.reports.send_modify(|reports| reports.insert(row));
        }
    }

    fn publish(&mut self, report: &Report) {
        if report.state != self.state && !report.keeps_serving {
            info!(subsystem = "runtime/health",
                replica_id = %self.args.id,
                from = self.state.as_str_name(),
                to = report.state.as_str_name(),
                code = %report.code,
                "replica state changed"
            );
            self.state = report.state;
        }
        if report.code == code::IMAGE_PULL_FAILED {
            warn!(subsystem = "runtime/health", replica_id = %self.args.id, reason = %report.message, "image not pulled");
        }
        let deps = &self.args.shared.deps;
        let row = report.observed(&self.args.id, &deps.host, deps.clock.timestamp());
        // The firewall needs the addresses of the container that serves.
        if !report.keeps_serving {
            deps.reports
                .send_modify(|reports| reports.insert(row.clone()));
        }
        // A restarting publisher loses it; the next tick publishes it again.
        let _ = self
            .args
            .reports
            .cast(publisher::Msg::Report(Box::new(row)));
    }

    /// Republishes the last report if the state's observation differs from it or is missing.
    fn republish(&mut self) {
        let shared = &self.args.shared;
        let (state, host) = (shared.deps.raft.state(), &shared.deps.host);
        let row = state.replicas_desired.get(&self.args.id);
        let (Some(row), Some(report)) = (row, self.core.last_report().cloned()) else {
            return;
        };
        let known = state.replicas_observed.get(&self.args.id);
        let is_unreplicated = if row.host == *host {
            let replicated =
                known.is_some_and(|seen| Report::from(seen.as_ref()).is_equivalent_to(&report));
            !replicated && report.raft_index >= row.raft_index
        } else {
            // This host serves until the new host's container runs. The observation holds the new
            // host's progress, so the reports differ; once the new host runs, this host stays
            // silent.
            let not_taken_over = known.is_none_or(|seen| !seen.has_arrived());
            row.previous_host == *host && report.state == ReplicaState::Running && not_taken_over
        };
        if is_unreplicated {
            self.publish(&report);
        }
    }

    fn log_deferral(&mut self) {
        let deferred = self.core.deferred();
        if deferred != self.deferred.as_deref() {
            self.deferred = deferred.map(str::to_owned);
            if let Some(reason) = &self.deferred {
                info!(subsystem = "runtime/health", replica_id = %self.args.id, %reason, "start deferred");
            }
        }
    }
}

/// Waits until every ready node has applied that no container of a replica serves on this host;
/// may take for ever.
async fn withdrawn(shared: Arc<RuntimeContext>, id: String) {
    let deps = &shared.deps;
    let mut states = deps.raft.follow();
    let not_routed = states.wait_for(|state| !assignment::is_routed(state, &deps.host, &id));
    let Ok(index) = not_routed.await.map(|state| state.applied_index) else {
        return std::future::pending().await;
    };
    deps.routing.reached(index).await;
}
