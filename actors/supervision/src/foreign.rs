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
    gate::Gate,
    report::Control,
    spec::{self, Birth, Born},
    supervisor::exit_of,
    worker::{FINISHED, Failure, guarded},
};

type Spawn = dyn Fn(ActorCell) -> BoxFuture<'static, Result<ActorCell, SpawnErr>> + Send + Sync;

pub(crate) struct Nursery {
    gate: Gate,
    spawn: Arc<Spawn>,
}

impl Nursery {
    pub(crate) fn new(
        spawn: impl Fn(ActorCell) -> BoxFuture<'static, Result<ActorCell, SpawnErr>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            gate: Gate::new(),
            spawn: Arc::new(spawn),
        }
    }
}

impl spec::Nursery for Nursery {
    fn spawn(&self, birth: Birth) -> BoxFuture<'static, Result<Born, SpawnErr>> {
        let up = Arc::<AtomicBool>::default();
        let supervisor = birth.supervisor.clone();
        let shim = Shim {
            birth,
            gate: self.gate.clone(),
            spawn: Arc::clone(&self.spawn),
        };
        Box::pin(async move {
            let (actor, _) = Actor::spawn_linked(None, shim, Arc::clone(&up), supervisor).await?;
            Ok(Born {
                actor: actor.get_cell(),
                control: Arc::new(Controls { actor, up }),
            })
        })
    }

    fn gate(&self) -> &Gate {
        &self.gate
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
    birth: Birth,
    gate: Gate,
    spawn: Arc<Spawn>,
}

struct State {
    foreign: Option<ActorCell>,
    up: Arc<AtomicBool>,
}

impl Shim {
    fn is_mine(state: &State, actor: ActorId) -> bool {
        state
            .foreign
            .as_ref()
            .is_some_and(|foreign| foreign.get_id() == actor)
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
        Ok(State { foreign: None, up })
    }

    async fn post_start(
        &self,
        myself: ActorRef<Panic>,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let entered = self.gate.enter(self.birth.parent.clone()).await;
        let pass = entered.map_err(Failure::into_inner)?;
        let spawned = guarded(async { Ok((self.spawn)(myself.get_cell()).await?) }).await;
        let foreign = spawned.map_err(Failure::into_inner)?;
        state.foreign = Some(foreign.clone());
        // The guard is held until the actor itself has ended; a killed shim cannot wait for that.
        tokio::spawn(async move {
            // `wait` fails only on a timeout, and there is none.
            let _ = foreign.wait(None).await;
            drop(pass);
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
            (self.birth.report_up)(myself.get_id());
        }
        match exit_of(event) {
            Some((actor, exit)) if Self::is_mine(state, actor.get_id()) => {
                state.foreign = None;
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
        if let Some(foreign) = state.foreign.take() {
            foreign.stop(Some("stopped".to_owned()));
            // `wait` fails only on a timeout, and there is none; the supervisor kills a slow actor.
            let _ = foreign.wait(None).await;
        }
        Ok(())
    }
}
