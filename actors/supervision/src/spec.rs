//! What a tree is made of: specifications of children and supervisors.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use ractor::{ActorCell, ActorId, SpawnErr};

use super::{
    core::{Plan, Rules},
    foreign,
    gate::{Gate, Pass},
    handle::Handle,
    report::{ChildReport, Control},
    supervisor::{self, Birthplace, SupervisorHandle},
    tally::Tally,
    window::{Backoff, Intensity},
    worker::{self, Worker},
};

/// How long a worker or foreign actor may take to stop before it is killed, by default.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which children a supervisor restarts when one fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Only the failed child. Each child has restarts of its own.
    OneForOne,
    /// The failed child and those after it. The restarts are the supervisor's.
    RestForOne,
    /// All children. The restarts are the supervisor's.
    OneForAll,
}

/// Which ends of a child make its supervisor start it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restart {
    /// All of them.
    #[default]
    Permanent,
    /// Failures, but not a normal end.
    Transient,
    /// None. It does not come back in the restart of a group either.
    Temporary,
}

/// What happens when a child fails more often than its restarts allow.
#[derive(Clone, Default)]
pub enum OnExhausted {
    /// The supervisor stops its other children and fails itself, which its own supervisor
    /// takes as a failure.
    #[default]
    Escalate,
    /// The child stays down, its siblings go on, and this is called.
    ///
    /// It runs inside the supervisor, so it must only pass the report on.
    Notify(Arc<dyn Fn(&ChildReport) + Send + Sync>),
}

impl OnExhausted {
    /// [`OnExhausted::Notify`] with `callback`.
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

/// Everything an instance is told about where it comes into the world.
pub(crate) struct Birth {
    pub(crate) path: Arc<str>,
    pub(crate) entry: Arc<super::report::Entry>,
    /// The actor that supervises it.
    pub(crate) supervisor: ActorCell,
    /// The supervisor as the instance may talk to it.
    pub(crate) handle: SupervisorHandle,
    pub(crate) parent: Option<Arc<Pass>>,
    /// Where restarts within the tree are counted.
    pub(crate) tally: Arc<Tally>,
    /// Tells the supervisor that the instance is up.
    pub(crate) report_up: Box<dyn Fn(ActorId) + Send + Sync>,
}

/// A way to make instances of one child.
pub(crate) trait Nursery: Send + Sync {
    fn spawn(&self, birth: Birth) -> BoxFuture<'static, Result<Born, SpawnErr>>;
    fn gate(&self) -> &Gate;
}

pub(crate) struct Born {
    pub(crate) actor: ActorCell,
    pub(crate) control: Arc<dyn Control>,
}

/// How to start, restart and stop one child.
pub struct ChildSpec {
    pub(crate) key: String,
    pub(crate) kind: &'static str,
    pub(crate) restart: Restart,
    pub(crate) on_exhausted: OnExhausted,
    pub(crate) patience: Option<Duration>,
    pub(crate) nursery: Arc<dyn Nursery>,
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
    /// A worker, and the handle that reaches every instance of it. Each start gets a clone
    /// of `args`.
    pub fn worker<W: Worker>(key: impl Into<String>, args: W::Args) -> (Self, Handle<W::Msg>) {
        let nursery = worker::Nursery::<W>::new(args);
        let handle = nursery.handle();
        (
            Self::new(key.into(), W::KIND, Some(PATIENCE), Arc::new(nursery)),
            handle,
        )
    }

    /// A supervisor with children of its own; it has as long to stop as they need.
    pub fn supervisor(key: impl Into<String>, spec: SupervisorSpec) -> (Self, SupervisorHandle) {
        let handle = spec.handle();
        let nursery = supervisor::Nursery::new(spec);
        (
            Self::new(key.into(), supervisor::KIND, None, Arc::new(nursery)),
            handle,
        )
    }

    /// A ractor actor that is not a [`Worker`].
    ///
    /// `spawn` must spawn it linked to the cell it is given, and return its cell. It ends
    /// normally when it stops, and fails by error, panic or kill.
    pub fn foreign<F, Fut>(key: impl Into<String>, kind: &'static str, spawn: F) -> Self
    where
        F: Fn(ActorCell) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ActorCell, SpawnErr>> + Send + 'static,
    {
        let nursery = foreign::Nursery::new(move |cell| Box::pin(spawn(cell)));
        Self::new(key.into(), kind, Some(PATIENCE), Arc::new(nursery))
    }

    fn new(
        key: String,
        kind: &'static str,
        patience: Option<Duration>,
        nursery: Arc<dyn Nursery>,
    ) -> Self {
        let (restart, on_exhausted) = (Restart::default(), OnExhausted::default());
        Self {
            key,
            kind,
            restart,
            on_exhausted,
            patience,
            nursery,
        }
    }

    /// Sets which ends make it start again; [`Restart::Permanent`] unless set.
    #[must_use]
    pub fn restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }

    /// Sets what happens past the last restart; [`OnExhausted::Escalate`] unless set.
    #[must_use]
    pub fn on_exhausted(mut self, on_exhausted: OnExhausted) -> Self {
        self.on_exhausted = on_exhausted;
        self
    }

    /// Sets how long a stop may take before it becomes a kill; 5 seconds unless set, and for
    /// a supervisor as long as it takes.
    #[must_use]
    pub fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.patience = Some(timeout);
        self
    }

    /// The key it has among its siblings.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn plan(&self, dynamic: bool) -> Plan {
        Plan {
            key: self.key.clone(),
            restart: self.restart,
            notify: matches!(self.on_exhausted, OnExhausted::Notify(_)),
            patience: self.patience,
            dynamic,
        }
    }
}

/// A supervisor: its rules and its static children, in start order.
#[derive(Debug)]
pub struct SupervisorSpec {
    pub(crate) rules: Rules,
    pub(crate) children: Vec<ChildSpec>,
    pub(crate) place: Birthplace,
}

impl SupervisorSpec {
    /// A supervisor without children, with 3 restarts in 60 seconds and the default backoff.
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
            place: Birthplace::new(),
        }
    }

    /// Allows `restarts` within any stretch of `period`.
    #[must_use]
    pub fn intensity(mut self, restarts: usize, period: Duration) -> Self {
        self.rules.intensity = Intensity { restarts, period };
        self
    }

    /// Sets how long restarts wait.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.rules.backoff = backoff;
        self
    }

    /// Adds a child behind those already there. A key that is taken is a mistake in the
    /// program, which starting the supervisor reports as its failure.
    #[must_use]
    pub fn child(mut self, child: ChildSpec) -> Self {
        self.children.push(child);
        self
    }

    /// The handle of the supervisor, for children that need it in their arguments.
    #[must_use]
    pub fn handle(&self) -> SupervisorHandle {
        self.place.handle()
    }
}
