//! The ractor actor of a supervisor, which carries out the actions of the core.

use std::{
    collections::{BTreeMap, HashMap},
    panic::AssertUnwindSafe,
    sync::Arc,
};

use futures::future::BoxFuture;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};
use tokio::{task::AbortHandle, time::Instant};

use super::{
    core::{Action, ChildId, Core, Exit, Phase, Refusal, Rules, UnknownKey},
    handle::Reply,
    instance_lock::{InstanceGuard, InstanceLock},
    report::{ActorState, ChildReport, Control, Entry, lock},
    spec::{self, ChildSpec, OnExhausted, SpawnContext, SpawnedChild, SupervisorSpec},
    worker::{FINISHED, Failure},
};

mod handle;

use handle::ChildSlot;
pub(crate) use handle::ReservedSlot;
pub use handle::{ChildError, StartChildError, SupervisorHandle};

/// Actor kind of supervisors.
pub(crate) const KIND: &str = "Supervisor";

struct Template {
    rules: Rules,
    children: Vec<Arc<ChildSpec>>,
    slot: Arc<ChildSlot>,
}

pub(crate) struct ChildFactory(Arc<Template>);

impl ChildFactory {
    pub(crate) fn new(spec: SupervisorSpec) -> Self {
        let SupervisorSpec {
            rules,
            children,
            slot,
        } = spec;
        let children = children.into_iter().map(Arc::new).collect();
        Self(Arc::new(Template {
            rules,
            children,
            slot: slot.0,
        }))
    }
}

impl spec::ChildFactory for ChildFactory {
    fn spawn(
        &self,
        spawn_context: SpawnContext,
    ) -> BoxFuture<'static, Result<SpawnedChild, SpawnErr>> {
        let template = Arc::clone(&self.0);
        let supervisor = spawn_context.supervisor.clone();
        Box::pin(async move {
            let init_args = (template, spawn_context);
            let (actor, _) = Actor::spawn_linked(None, Supervisor, init_args, supervisor).await?;
            Ok(SpawnedChild {
                actor: actor.get_cell(),
                control: Arc::new(Controls(actor)),
            })
        })
    }

    fn instance_lock(&self) -> &InstanceLock {
        &self.0.slot.instance_lock
    }
}

struct Controls(ActorRef<Msg>);

impl Control for Controls {
    fn stop(&self) {
        // An error means that the supervisor has already ended.
        let _ = self.0.send_message(Msg::Shutdown);
    }

    fn kill(&self) {
        self.0.kill();
    }

    fn panic(&self) -> bool {
        self.0.send_message(Msg::Panic).is_ok()
    }

    fn mailbox_depth(&self) -> usize {
        0
    }
}

pub(crate) enum Msg {
    ChildUp(ActorId),
    /// The instance, its tasks and everything below it have ended.
    ChildGone(ChildId, Exit),
    Timer,
    StartChild(Box<ChildSpec>, Reply<Result<(), StartChildError>>),
    StopChild(String, Reply<Result<(), ChildError>>),
    Restart(String, Reply<Result<(), ChildError>>),
    Shutdown,
    Panic,
}

/// The ractor actor; its state is a [`Stage`].
struct Supervisor;

enum Stage {
    Starting(Option<(Arc<Template>, SpawnContext)>),
    Running(Box<State>),
}

struct Child {
    spec: Arc<ChildSpec>,
    entry: Arc<Entry>,
    control: Option<Arc<dyn Control>>,
    started: bool,
    /// Replies to send once the child is removed.
    stop_waiters: Vec<Reply<Result<(), ChildError>>>,
}

struct State {
    core: Core,
    children: BTreeMap<ChildId, Child>,
    instances: HashMap<ActorId, ChildId>,
    timer: Option<AbortOnDrop>,
    spawn_context: SpawnContext,
    published: Published,
    instance_guard: Arc<InstanceGuard>,
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Address of the running instance in its [`ChildSlot`], reset on drop.
struct Published(Arc<ChildSlot>);

impl Drop for Published {
    fn drop(&mut self) {
        self.0.actor.send_replace(None);
        self.0.start_done.send_replace(false);
    }
}

impl Actor for Supervisor {
    type Msg = Msg;
    type State = Stage;
    type Arguments = (Arc<Template>, SpawnContext);

    async fn pre_start(
        &self,
        _myself: ActorRef<Msg>,
        init_args: Self::Arguments,
    ) -> Result<Stage, ActorProcessingErr> {
        Ok(Stage::Starting(Some(init_args)))
    }

    async fn post_start(
        &self,
        myself: ActorRef<Msg>,
        stage: &mut Stage,
    ) -> Result<(), ActorProcessingErr> {
        let Stage::Starting(init_args) = stage else {
            return Ok(());
        };
        let Some((template, spawn_context)) = init_args.take() else {
            return Ok(());
        };
        let mut state = State::new(&template, spawn_context, &myself).await?;
        state.core.handle_start(now());
        state.run_actions(&myself).await?;
        *stage = Stage::Running(Box::new(state));
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        msg: Msg,
        stage: &mut Stage,
    ) -> Result<(), ActorProcessingErr> {
        let Stage::Running(state) = stage else {
            return Ok(());
        };
        match msg {
            Msg::ChildUp(actor) => {
                if let Some(id) = state.instances.get(&actor) {
                    state.core.handle_started(now(), *id);
                }
            }
            Msg::ChildGone(id, exit) => state.core.handle_ended(now(), id, exit),
            Msg::Timer => state.core.handle_timeout(now()),
            Msg::StartChild(spec, reply) => {
                let (key, plan) = (spec.key.clone(), spec.plan(true));
                let added = match state.core.handle_add(now(), plan) {
                    Ok(id) => {
                        state.insert(id, Arc::new(*spec));
                        Ok(())
                    }
                    Err(Refusal::Taken) => Err(StartChildError::AlreadyExists(key)),
                    Err(Refusal::Closing) => Err(StartChildError::Unavailable),
                };
                reply.send(added);
            }
            Msg::StopChild(key, reply) => match state.core.handle_remove(now(), &key) {
                Ok(id) => {
                    if let Some(child) = state.children.get_mut(&id) {
                        child.stop_waiters.push(reply);
                    }
                }
                Err(UnknownKey) => reply.send(Err(ChildError::Unknown(key))),
            },
            Msg::Restart(key, reply) => {
                let restarted = state.core.handle_restart(now(), &key);
                reply.send(restarted.map_err(|UnknownKey| ChildError::Unknown(key)));
            }
            Msg::Shutdown => state.core.handle_shutdown(now()),
            Msg::Panic => panic!("injected fault"),
        }
        state.run_actions(&myself).await
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Msg>,
        event: SupervisionEvent,
        stage: &mut Stage,
    ) -> Result<(), ActorProcessingErr> {
        let Stage::Running(state) = stage else {
            return Ok(());
        };
        let Some((actor, exit)) = exit_of(event) else {
            return Ok(());
        };
        let Some(id) = state.instances.remove(&actor.get_id()) else {
            return Ok(());
        };
        state.handle_exit(id, exit, &myself);
        state.run_actions(&myself).await
    }
}

impl State {
    async fn new(
        template: &Template,
        spawn_context: SpawnContext,
        myself: &ActorRef<Msg>,
    ) -> Result<Self, ActorProcessingErr> {
        let slot = &template.slot;
        let acquired = slot
            .instance_lock
            .acquire(spawn_context.parent.clone())
            .await;
        let instance_guard = acquired.map_err(Failure::into_inner)?;
        *lock(&slot.entry) = Some(Arc::clone(&spawn_context.entry));
        let published = Published(Arc::clone(slot));
        slot.actor.send_replace(Some(myself.clone()));
        let mut state = Self {
            core: Core::new(template.rules),
            children: BTreeMap::new(),
            instances: HashMap::new(),
            timer: None,
            spawn_context,
            published,
            instance_guard,
        };
        for spec in &template.children {
            let Ok(id) = state.core.handle_add(now(), spec.plan(false)) else {
                return Err(format!("two children are called {}", spec.key).into());
            };
            state.insert(id, Arc::clone(spec));
        }
        Ok(state)
    }

    fn insert(&mut self, id: ChildId, spec: Arc<ChildSpec>) {
        let path = format!("{}/{}", self.spawn_context.path, spec.key);
        let entry = Entry::new(path.into(), spec.kind);
        self.children.insert(
            id,
            Child {
                spec,
                entry,
                control: None,
                started: false,
                stop_waiters: Vec::new(),
            },
        );
    }

    /// Carries out the actions of the core, then publishes the state of the children and sets the
    /// timer.
    async fn run_actions(&mut self, myself: &ActorRef<Msg>) -> Result<(), ActorProcessingErr> {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Start(id) => self.start(id, myself).await,
                Action::Stop(id) => self.control(id, |control| control.stop()),
                Action::Kill(id) => self.control(id, |control| control.kill()),
                Action::Exhausted(id) => self.report_exhausted(id),
                Action::Removed(id) => {
                    if let Some(child) = self.children.remove(&id) {
                        for reply in child.stop_waiters {
                            reply.send(Ok(()));
                        }
                    }
                }
                Action::StartDone => {
                    self.published.0.start_done.send_replace(true);
                    (self.spawn_context.report_up)(myself.get_id());
                }
                Action::Close(None) => myself.stop(Some(FINISHED.to_owned())),
                Action::Close(Some(reason)) => {
                    self.show();
                    return Err(reason.into());
                }
            }
        }
        self.show();
        self.arm(myself);
        Ok(())
    }

    async fn start(&mut self, id: ChildId, myself: &ActorRef<Msg>) {
        let Some(child) = self.children.get_mut(&id) else {
            return;
        };
        let restart_stats = &self.spawn_context.restart_stats;
        if std::mem::replace(&mut child.started, true) {
            restart_stats.restarted(child.spec.kind);
        } else {
            restart_stats.first(child.spec.kind);
        }
        let up = myself.clone();
        let spawn_context = SpawnContext {
            path: Arc::clone(&child.entry.path),
            entry: Arc::clone(&child.entry),
            supervisor: myself.get_cell(),
            handle: SupervisorHandle(Arc::clone(&self.published.0)),
            parent: Some(Arc::clone(&self.instance_guard)),
            restart_stats: Arc::clone(restart_stats),
            report_up: Box::new(move |actor| {
                // An error means that the supervisor has ended.
                let _ = up.send_message(Msg::ChildUp(actor));
            }),
        };
        match child.spec.factory.spawn(spawn_context).await {
            Ok(SpawnedChild { actor, control }) => {
                self.instances.insert(actor.get_id(), id);
                child.control = Some(control);
            }
            Err(error) => {
                let exit = Exit::Failed(error.to_string());
                self.log_failure(id, &exit);
                let _ = myself.send_message(Msg::ChildGone(id, exit));
            }
        }
    }

    /// Handles the exit of an instance. Notifies the core only once nothing of the instance is
    /// left, which may be later than the exit.
    fn handle_exit(&mut self, id: ChildId, exit: Exit, myself: &ActorRef<Msg>) {
        self.log_failure(id, &exit);
        let Some(child) = self.children.get_mut(&id) else {
            return;
        };
        child.control = None;
        child.entry.clear_below();
        let instance_lock = child.spec.factory.instance_lock().clone();
        if instance_lock.is_free() {
            self.core.handle_ended(now(), id, exit);
            return;
        }
        let myself = myself.clone();
        tokio::spawn(async move {
            instance_lock.released().await;
            // An error means that the supervisor has ended.
            let _ = myself.send_message(Msg::ChildGone(id, exit));
        });
    }

    fn control(&self, id: ChildId, order: impl FnOnce(&dyn Control)) {
        if let Some(control) = self
            .children
            .get(&id)
            .and_then(|child| child.control.as_ref())
        {
            order(&**control);
        }
    }

    fn report_exhausted(&self, id: ChildId) {
        let (Some(child), Some(view)) = (self.children.get(&id), self.core.child(id)) else {
            return;
        };
        self.spawn_context.restart_stats.exhausted(child.spec.kind);
        tracing::error!(
            subsystem = "actor",
            actor = %child.entry.path,
            kind = child.spec.kind,
            restarts = self.restarts(id),
            cause = view.last_failure.as_deref().unwrap_or_default(),
            "actor used up its restarts"
        );
        let OnExhausted::Notify(callback) = &child.spec.on_exhausted else {
            return;
        };
        let report = ChildReport {
            key: child.spec.key.clone(),
            path: child.entry.path.to_string(),
            kind: child.spec.kind,
            last_failure: view.last_failure.clone().unwrap_or_default(),
        };
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| callback(&report)));
        if outcome.is_err() {
            tracing::error!(subsystem = "actor", actor = %child.entry.path, "exhaustion callback panicked");
        }
    }

    fn log_failure(&self, id: ChildId, exit: &Exit) {
        let (Some(child), Exit::Failed(cause)) = (self.children.get(&id), exit) else {
            return;
        };
        tracing::warn!(
            subsystem = "actor",
            actor = %child.entry.path,
            kind = child.spec.kind,
            restarts = self.restarts(id),
            cause,
            "actor failed"
        );
    }

    /// Restarts of a child that currently count against its limit.
    fn restarts(&self, id: ChildId) -> usize {
        let intensity = self.core.rules().intensity;
        let view = self.core.child(id);
        view.map_or(0, |view| view.window.count(intensity, now()))
    }

    /// Updates the entries of all children.
    fn show(&self) {
        let intensity = self.core.rules().intensity;
        for view in self.core.children() {
            let Some(child) = self.children.get(&view.id) else {
                continue;
            };
            let mut status = child.entry.status();
            status.state = match view.phase {
                // The instance has exited, but its tasks or children are still there.
                Phase::Starting | Phase::Running if child.control.is_none() => ActorState::Stopped,
                Phase::Pending if self.core.awaits_round(view.id) => ActorState::Backoff,
                Phase::Pending | Phase::Starting => ActorState::Starting,
                Phase::Running => ActorState::Running,
                Phase::Backoff { .. } => ActorState::Backoff,
                Phase::Stopping { .. } | Phase::Down => ActorState::Stopped,
                Phase::Exhausted => ActorState::Exhausted,
            };
            status.window.clone_from(&view.window);
            status.intensity = intensity;
            status.up_since = view.up_since;
            status.last_failure.clone_from(&view.last_failure);
            status.control.clone_from(&child.control);
        }
        let entries = self.children.values().map(|child| Arc::clone(&child.entry));
        self.spawn_context.entry.set_children(entries.collect());
    }

    fn arm(&mut self, myself: &ActorRef<Msg>) {
        let Some(at) = self.core.poll_timeout() else {
            self.timer = None;
            return;
        };
        let myself = myself.clone();
        let timer = tokio::spawn(async move {
            tokio::time::sleep_until(Instant::from_std(at)).await;
            // An error means that the supervisor has ended.
            let _ = myself.send_message(Msg::Timer);
        });
        self.timer = Some(AbortOnDrop(timer.abort_handle()));
    }
}

/// Exit of an instance, if `event` reports one. Drops the state of the instance here, so that no
/// successor starts before.
pub(crate) fn exit_of(event: SupervisionEvent) -> Option<(ActorCell, Exit)> {
    match event {
        SupervisionEvent::ActorFailed(actor, error) => {
            Some((actor, Exit::Failed(error.to_string())))
        }
        SupervisionEvent::ActorTerminated(actor, state, reason) => {
            let dropped = std::panic::catch_unwind(AssertUnwindSafe(|| drop(state)));
            let exit = match reason.as_deref() {
                _ if dropped.is_err() => Exit::Failed("panicked while dropped".to_owned()),
                // Reasons of ractor for a kill, and for a task that the runtime cancelled.
                Some(reason @ ("killed" | "actor_task_cancelled")) => {
                    Exit::Failed(reason.to_owned())
                }
                Some(_) | None => Exit::Finished,
            };
            Some((actor, exit))
        }
        SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => None,
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}
