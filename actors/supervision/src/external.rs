//! Ractor actors that are not workers, as children of a supervisor.
//!
//! A shim actor stands between such an actor and the supervisor: the start of the actor can be
//! interrupted by a kill of the shim, and the shim ends when and how the actor ends.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures::future::BoxFuture;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};

use super::{
    core::Exit,
    instance_lock::InstanceLock,
    report::Control,
    spec::{self, SpawnContext, SpawnedChild},
    supervisor::exit_of,
    worker::{FINISHED, Failure, guarded},
};

type Spawn = dyn Fn(ActorCell) -> BoxFuture<'static, Result<ActorCell, SpawnErr>> + Send + Sync;

pub(crate) struct ChildFactory {
    instance_lock: InstanceLock,
    spawn: Arc<Spawn>,
}

impl ChildFactory {
    pub(crate) fn new(
        spawn: impl Fn(ActorCell) -> BoxFuture<'static, Result<ActorCell, SpawnErr>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            instance_lock: InstanceLock::new(),
            spawn: Arc::new(spawn),
        }
    }
}

impl spec::ChildFactory for ChildFactory {
    fn spawn(
        &self,
        spawn_context: SpawnContext,
    ) -> BoxFuture<'static, Result<SpawnedChild, SpawnErr>> {
        let up = Arc::<AtomicBool>::default();
        let supervisor = spawn_context.supervisor.clone();
        let shim = Shim {
            spawn_context,
            instance_lock: self.instance_lock.clone(),
            spawn: Arc::clone(&self.spawn),
        };
        Box::pin(async move {
            let (actor, _) = Actor::spawn_linked(None, shim, Arc::clone(&up), supervisor).await?;
            Ok(SpawnedChild {
                actor: actor.get_cell(),
                control: Arc::new(Controls { actor, up }),
            })
        })
    }

    fn instance_lock(&self) -> &InstanceLock {
        &self.instance_lock
    }
}

struct Controls {
    actor: ActorRef<Panic>,
    up: Arc<AtomicBool>,
}

impl Control for Controls {
    fn stop(&self) {
        if self.up.load(Ordering::Acquire) {
            self.actor.stop(Some("stopped".to_owned()));
        } else {
            self.actor.kill();
        }
    }

    fn kill(&self) {
        self.actor.kill();
    }

    fn panic(&self) -> bool {
        self.actor.send_message(Panic).is_ok()
    }

    fn mailbox_depth(&self) -> usize {
        0
    }
}

/// Fault injection: the shim panics, which kills its actor.
struct Panic;

struct Shim {
    spawn_context: SpawnContext,
    instance_lock: InstanceLock,
    spawn: Arc<Spawn>,
}

struct State {
    external: Option<ActorCell>,
    up: Arc<AtomicBool>,
}

impl Shim {
    fn is_mine(state: &State, actor: ActorId) -> bool {
        state
            .external
            .as_ref()
            .is_some_and(|external| external.get_id() == actor)
    }
}

impl Actor for Shim {
    type Msg = Panic;
    type State = State;
    type Arguments = Arc<AtomicBool>;

    async fn pre_start(
        &self,
        _myself: ActorRef<Panic>,
        up: Arc<AtomicBool>,
    ) -> Result<State, ActorProcessingErr> {
        Ok(State { external: None, up })
    }

    async fn post_start(
        &self,
        myself: ActorRef<Panic>,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let acquired = self
            .instance_lock
            .acquire(self.spawn_context.parent.clone())
            .await;
        let instance_guard = acquired.map_err(Failure::into_inner)?;
        let spawned = guarded(async { Ok((self.spawn)(myself.get_cell()).await?) }).await;
        let external = spawned.map_err(Failure::into_inner)?;
        state.external = Some(external.clone());
        // The guard is held until the actor itself has ended; a killed shim cannot wait for that.
        tokio::spawn(async move {
            // `wait` fails only on a timeout, and there is none.
            let _ = external.wait(None).await;
            drop(instance_guard);
        });
        Ok(())
    }

    async fn handle(
        &self,
        _myself: ActorRef<Panic>,
        Panic: Panic,
        _state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        guarded(async { panic!("injected fault") })
            .await
            .map_err(Failure::into_inner)
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Panic>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorStarted(actor) = &event
            && Self::is_mine(state, actor.get_id())
        {
            state.up.store(true, Ordering::Release);
            (self.spawn_context.report_up)(myself.get_id());
        }
        match exit_of(event) {
            Some((actor, exit)) if Self::is_mine(state, actor.get_id()) => {
                state.external = None;
                match exit {
                    Exit::Finished => myself.stop(Some(FINISHED.to_owned())),
                    Exit::Failed(reason) => return Err(reason.into()),
                }
            }
            Some(_) | None => {}
        }
        Ok(())
    }

    async fn post_stop(
        &self,
        _myself: ActorRef<Panic>,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        if let Some(external) = state.external.take() {
            external.stop(Some("stopped".to_owned()));
            // `wait` fails only on a timeout, and there is none; the supervisor kills a slow actor.
            let _ = external.wait(None).await;
        }
        Ok(())
    }
}
