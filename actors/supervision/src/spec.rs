//! Specifications of supervisors and their children.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use ractor::{ActorCell, ActorId, SpawnErr};

use super::{
    core::{Plan, Rules},
    external,
    handle::Handle,
    instance_lock::{InstanceGuard, InstanceLock},
    report::{ChildReport, Control},
    restart_stats::RestartStats,
    supervisor::{self, ReservedSlot, SupervisorHandle},
    window::{Backoff, Intensity},
    worker::{self, Worker},
};

/// Default time in which a worker or an external actor must stop before it is killed.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Children that a supervisor restarts when one fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Only the failed child. Each child has its own restart intensity.
    OneForOne,
    /// The failed child and those after it, which share the supervisor's restart intensity.
    RestForOne,
    /// All children, which share the supervisor's restart intensity.
    OneForAll,
}

/// Ends of a child after which its supervisor restarts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restart {
    /// Every end.
    #[default]
    Permanent,
    /// Failures only.
    Transient,
    /// None; it is not restarted with its group either.
    Temporary,
}

/// Reaction to a child that failed more often than its restarts allow.
#[derive(Clone, Default)]
pub enum OnExhausted {
    /// The supervisor stops its other children and fails; its own supervisor handles that as a
    /// failure of a child.
    #[default]
    Escalate,
    /// The child stays down, its siblings keep running, and the callback is called.
    ///
    /// It runs inside the supervisor, so it must not block: it should only pass the report on.
    Notify(Arc<dyn Fn(&ChildReport) + Send + Sync>),
}

impl OnExhausted {
    /// Returns [`OnExhausted::Notify`] with `callback`.
    pub fn notify(callback: impl Fn(&ChildReport) + Send + Sync + 'static) -> Self {
        Self::Notify(Arc::new(callback))
    }
}

impl fmt::Debug for OnExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Escalate => "Escalate",
            Self::Notify(_) => "Notify",
        })
    }
}

/// Context in which an instance is spawned.
pub(crate) struct SpawnContext {
    pub(crate) path: Arc<str>,
    pub(crate) entry: Arc<super::report::Entry>,
    /// Actor that supervises the instance.
    pub(crate) supervisor: ActorCell,
    /// Handle of the supervisor, for the instance.
    pub(crate) handle: SupervisorHandle,
    pub(crate) parent: Option<Arc<InstanceGuard>>,
    /// Restart counters of the tree.
    pub(crate) restart_stats: Arc<RestartStats>,
    /// Reports to the supervisor that the instance is running.
    pub(crate) report_up: Box<dyn Fn(ActorId) + Send + Sync>,
}

/// Creates the instances of one child.
pub(crate) trait ChildFactory: Send + Sync {
    fn spawn(
        &self,
        spawn_context: SpawnContext,
    ) -> BoxFuture<'static, Result<SpawnedChild, SpawnErr>>;
    fn instance_lock(&self) -> &InstanceLock;
}

pub(crate) struct SpawnedChild {
    pub(crate) actor: ActorCell,
    pub(crate) control: Arc<dyn Control>,
}

/// Specification of a child: how to start, restart and stop it.
pub struct ChildSpec {
    pub(crate) key: String,
    pub(crate) kind: &'static str,
    pub(crate) restart: Restart,
    pub(crate) on_exhausted: OnExhausted,
    pub(crate) stop_timeout: Option<Duration>,
    pub(crate) ordered_stop: bool,
    pub(crate) factory: Arc<dyn ChildFactory>,
}

impl fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildSpec")
            .field("key", &self.key)
            .field("kind", &self.kind)
            .field("restart", &self.restart)
            .field("on_exhausted", &self.on_exhausted)
            .finish_non_exhaustive()
    }
}

impl ChildSpec {
    /// Returns the specification of a worker, and a handle that is valid for every instance. Each
    /// start gets a clone of `args`.
    pub fn worker<W: Worker>(key: impl Into<String>, args: W::Args) -> (Self, Handle<W::Msg>) {
        let factory = worker::ChildFactory::<W>::new(args);
        let handle = factory.handle();
        (
            Self::new(
                key.into(),
                W::KIND,
                Some(SHUTDOWN_TIMEOUT),
                Arc::new(factory),
            ),
            handle,
        )
    }

    /// Returns the specification of a supervisor, and its handle. Its stop has no timeout, because
    /// its children have their own.
    pub fn supervisor(key: impl Into<String>, spec: SupervisorSpec) -> (Self, SupervisorHandle) {
        let handle = spec.handle();
        let factory = supervisor::ChildFactory::new(spec);
        (
            Self::new(key.into(), supervisor::KIND, None, Arc::new(factory)),
            handle,
        )
    }

    /// Returns the specification of a ractor actor that is not a [`Worker`].
    ///
    /// `spawn` must spawn it linked to the given cell, and return its own cell. A stop of the actor
    /// is a normal end; an error, panic or kill is a failure.
    pub fn external<F, Fut>(key: impl Into<String>, kind: &'static str, spawn: F) -> Self
    where
        F: Fn(ActorCell) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ActorCell, SpawnErr>> + Send + 'static,
    {
        let factory = external::ChildFactory::new(move |cell| Box::pin(spawn(cell)));
        Self::new(key.into(), kind, Some(SHUTDOWN_TIMEOUT), Arc::new(factory))
    }

    fn new(
        key: String,
        kind: &'static str,
        stop_timeout: Option<Duration>,
        factory: Arc<dyn ChildFactory>,
    ) -> Self {
        let (restart, on_exhausted) = (Restart::default(), OnExhausted::default());
        Self {
            key,
            kind,
            restart,
            on_exhausted,
            stop_timeout,
            ordered_stop: false,
            factory,
        }
    }

    /// Sets after which ends the child is restarted; default [`Restart::Permanent`].
    #[must_use]
    pub fn restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }

    /// Sets the reaction to exhausted restarts; default [`OnExhausted::Escalate`].
    #[must_use]
    pub fn on_exhausted(mut self, on_exhausted: OnExhausted) -> Self {
        self.on_exhausted = on_exhausted;
        self
    }

    /// Sets the time after which a stop becomes a kill; default 5 seconds, and none for a
    /// supervisor.
    #[must_use]
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.stop_timeout = Some(timeout);
        self
    }

    /// Key of the child, unique among its siblings.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Stops it after all children that were added after it, although it is a dynamic child of a
    /// [`Strategy::OneForOne`] supervisor, whose others stop together.
    #[must_use]
    pub fn ordered_stop(mut self) -> Self {
        self.ordered_stop = true;
        self
    }

    pub(crate) fn plan(&self, dynamic: bool) -> Plan {
        Plan {
            key: self.key.clone(),
            restart: self.restart,
            notify: matches!(self.on_exhausted, OnExhausted::Notify(_)),
            stop_timeout: self.stop_timeout,
            dynamic,
            ordered_stop: self.ordered_stop,
        }
    }
}

/// Specification of a supervisor: its configuration and its static children, in start order.
#[derive(Debug)]
pub struct SupervisorSpec {
    pub(crate) rules: Rules,
    pub(crate) children: Vec<ChildSpec>,
    pub(crate) slot: ReservedSlot,
}

impl SupervisorSpec {
    /// Returns a supervisor without children, with 3 restarts in 60 seconds and the default
    /// backoff.
    #[must_use]
    pub fn new(strategy: Strategy) -> Self {
        let (intensity, backoff) = (Intensity::default(), Backoff::default());
        let rules = Rules {
            strategy,
            intensity,
            backoff,
        };
        Self {
            rules,
            children: Vec::new(),
            slot: ReservedSlot::new(),
        }
    }

    /// Sets the restart intensity: at most `restarts` within any window of `period`.
    #[must_use]
    pub fn intensity(mut self, restarts: usize, period: Duration) -> Self {
        self.rules.intensity = Intensity { restarts, period };
        self
    }

    /// Sets the delay of restarts.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.rules.backoff = backoff;
        self
    }

    /// Appends a child. A duplicate key is a programming error, which fails the start of the
    /// supervisor.
    #[must_use]
    pub fn child(mut self, child: ChildSpec) -> Self {
        self.children.push(child);
        self
    }

    /// Handle of the supervisor, for children that need it in their arguments.
    #[must_use]
    pub fn handle(&self) -> SupervisorHandle {
        self.slot.handle()
    }
}
