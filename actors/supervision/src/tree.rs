//! Public interface of a tree.

use std::{collections::BTreeMap, fmt, sync::Arc};

use ractor::{Actor, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};
use tokio::{sync::watch, time::Instant};

use super::{
    core::Exit,
    report::{ActorInfo, ActorState, Control, Entry},
    restart_stats::{KindRestarts, RestartStats},
    spec::{ChildFactory as _, SpawnContext, SupervisorSpec},
    supervisor::{self, SupervisorHandle, exit_of},
};

/// Kind of injected failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillMode {
    /// Ends the actor at its next await point, with everything below it.
    Kill,
    /// Makes the actor panic once it has handled its mailbox up to here.
    Panic,
}

/// Reason an actor could not be made to fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KillError {
    /// No actor has this path.
    #[error("there is no actor {0}")]
    Unknown(String),
    /// The actor has no running instance.
    #[error("{0} is not running")]
    NotRunning(String),
}

/// The tree could not be started.
#[derive(Debug, thiserror::Error)]
#[error("failed to start the root supervisor")]
pub struct StartTreeError(#[source] SpawnErr);

/// The root supervisor failed: nothing of the tree is running any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tree gave up: {reason}")]
pub struct GaveUp {
    /// Failure of the root supervisor.
    pub reason: String,
}

/// Handle of a running tree; clones refer to the same tree, and dropping them leaves it running.
#[derive(Clone)]
pub struct Tree {
    handle: SupervisorHandle,
    entry: Arc<Entry>,
    restart_stats: Arc<RestartStats>,
    control: Arc<dyn Control>,
    outcome: watch::Receiver<Option<Result<(), GaveUp>>>,
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree")
            .field("root", &self.entry.path)
            .finish_non_exhaustive()
    }
}

impl Tree {
    /// Starts a tree with a root at path `root_key`; returns before its children have started.
    ///
    /// # Errors
    /// [`StartTreeError`] if the runtime is shutting down. Children that fail to start are
    /// restarted; if they keep failing, [`Tree::join`] reports it.
    pub async fn start(
        root_key: impl Into<String>,
        spec: SupervisorSpec,
    ) -> Result<Self, StartTreeError> {
        let handle = spec.handle();
        let entry = Entry::new(root_key.into().into(), supervisor::KIND);
        let (outcome, ended) = watch::channel(None);
        let monitor = RootMonitor {
            entry: Arc::clone(&entry),
            outcome,
        };
        let (monitor, _) = Actor::spawn(None, monitor, ())
            .await
            .map_err(StartTreeError)?;
        let (root, restart_stats) = (Arc::clone(&entry), Arc::<RestartStats>::default());
        let spawn_context = SpawnContext {
            path: Arc::clone(&entry.path),
            entry: Arc::clone(&entry),
            supervisor: monitor.get_cell(),
            handle: handle.clone(),
            parent: None,
            restart_stats: Arc::clone(&restart_stats),
            report_up: Box::new(move |_| {
                let mut status = root.status();
                status.state = ActorState::Running;
                status.up_since = Some(Instant::now().into_std());
            }),
        };
        let spawned = supervisor::ChildFactory::new(spec)
            .spawn(spawn_context)
            .await
            .map_err(StartTreeError)?;
        entry.status().control = Some(Arc::clone(&spawned.control));
        Ok(Self {
            handle,
            entry,
            restart_stats,
            control: spawned.control,
            outcome: ended,
        })
    }

    /// Handle of the root supervisor.
    #[must_use]
    pub fn root(&self) -> SupervisorHandle {
        self.handle.clone()
    }

    /// Describes all actors of the tree, parents first, siblings in start order.
    #[must_use]
    pub fn describe(&self) -> Vec<ActorInfo> {
        self.entry.describe()
    }

    /// Restart counts by kind of actor since the start of the tree, for every kind that ever
    /// started.
    #[must_use]
    pub fn restart_stats(&self) -> BTreeMap<&'static str, KindRestarts> {
        self.restart_stats.counts()
    }

    /// Makes the actor at `path` fail, to demonstrate or test the reaction of its supervisor.
    ///
    /// # Errors
    /// [`KillError`] if no actor is running at that path.
    pub fn kill(&self, path: &str, mode: KillMode) -> Result<(), KillError> {
        let entry = self
            .entry
            .find(path)
            .ok_or_else(|| KillError::Unknown(path.to_owned()))?;
        let control = entry.status().control.clone();
        let control = control.ok_or_else(|| KillError::NotRunning(path.to_owned()))?;
        match mode {
            KillMode::Kill => control.kill(),
            KillMode::Panic if !control.panic() => {
                return Err(KillError::NotRunning(path.to_owned()));
            }
            KillMode::Panic => {}
        }
        Ok(())
    }

    /// Stops all actors in reverse start order and waits for their end.
    pub async fn stop(&self) {
        self.control.stop();
        // The outcome is available from `join`.
        let _ = self.join().await;
    }

    /// Waits until the tree has ended.
    ///
    /// # Errors
    /// [`GaveUp`] unless it ended by [`Tree::stop`].
    pub async fn join(&self) -> Result<(), GaveUp> {
        let mut outcome = self.outcome.clone();
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Ok(())),
            Err(_) => Err(GaveUp {
                reason: "the runtime shut down".to_owned(),
            }),
        }
    }
}

/// Ractor actor that supervises the root supervisor and publishes its end.
struct RootMonitor {
    entry: Arc<Entry>,
    outcome: watch::Sender<Option<Result<(), GaveUp>>>,
}

impl Actor for RootMonitor {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _myself: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<()>,
        event: SupervisionEvent,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let Some((_, exit)) = exit_of(event) else {
            return Ok(());
        };
        let mut status = self.entry.status();
        status.state = ActorState::Stopped;
        status.up_since = None;
        status.control = None;
        let outcome = match exit {
            Exit::Finished => Ok(()),
            Exit::Failed(reason) => {
                status.last_failure = Some(reason.clone());
                Err(GaveUp { reason })
            }
        };
        drop(status);
        self.entry.clear_below();
        self.outcome.send_replace(Some(outcome));
        myself.stop(None);
        Ok(())
    }
}
