//! Inputs and effects of a replica's core.

use std::time::{Duration, Instant, SystemTime};

use jaco_engine::{EngineError, Found, Inspected};

use crate::runtime::replica::report::Report;

/// A point in time on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Monotonic clock, for all deadlines.
    pub instant: Instant,
    /// Wall clock, only for timestamps shown to operators.
    pub wall: SystemTime,
}

/// Assignment of one replica on this host, derived from the replicated state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// No row here: any container of the replica is stopped and removed.
    Gone,
    /// The row moved away; the container stays up until the new host reports it running.
    Kept {
        /// The service declares a health check.
        has_healthcheck: bool,
    },
    /// This host runs one container, created from this row.
    Own(DesiredReplica),
}

/// Row owned by this host, reduced to what the decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredReplica {
    /// Log index of the row; a different index requires a new container.
    pub raft_index: u64,
    /// Name of the deployment, for reports.
    pub deployment: String,
    /// Image to run, for reports.
    pub image: String,
    /// Pull the image before the first create.
    pub pull: bool,
    /// The service declares a health check.
    pub has_healthcheck: bool,
    /// Whether a start may begin.
    pub gate: StartGate,
}

/// Condition on which a start may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartGate {
    /// The start may begin.
    Open,
    /// A dependency or document is missing, and a change of the state will resolve it; nothing is
    /// published.
    Deferred(String),
    /// The node has not caught up with the cluster, and the replica may run elsewhere by now: only
    /// containers that ran here before continue, including their restarts.
    NotCaughtUp,
    /// The node cannot isolate deployments from each other.
    IsolationMissing,
}

/// Why a start could not be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    /// No address block is left for one of the networks.
    #[error("no address block is left for network `{network}`")]
    PoolExhausted {
        /// The network without a block.
        network: String,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(EngineError),
    /// Any other failure; a later attempt may succeed.
    #[error("{0}")]
    Retry(String),
}

/// Minimum interval between two [`Input::PullProgressed`].
pub const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Input of the core.
#[derive(Clone, Debug)]
pub enum Input {
    /// The state was read again.
    Assign(Assignment),
    /// The deadline of [`Core::poll_timeout`](super::Core::poll_timeout) passed.
    Timeout,
    /// The engine sent an event about a container of this replica.
    EngineEvent,
    /// More than one container carries the replica's label.
    DuplicateContainers,
    /// The engine's event stream came up or broke.
    Events(bool),
    /// Outcome of [`Effect::Lookup`].
    Found(u64, Result<Vec<Found>, EngineError>),
    /// Outcome of [`Effect::Prepare`].
    Prepared(u64, Result<(), PrepareError>),
    /// The pull of [`Effect::Pull`] progressed; sent at most once per [`PROGRESS_EVERY`].
    PullProgressed(u64),
    /// Outcome of [`Effect::Pull`].
    Pulled(u64, Result<(), EngineError>),
    /// Outcome of [`Effect::Launch`]: the container's id.
    Launched(u64, Result<String, EngineError>),
    /// Outcome of [`Effect::Start`].
    Started(u64, Result<(), EngineError>),
    /// Outcome of [`Effect::Inspect`].
    Inspected(u64, Result<Inspected, EngineError>),
    /// Outcome of [`Effect::Discard`].
    Discarded(u64, Result<(), EngineError>),
}

/// Effect for the driver to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// List the containers of this replica.
    Lookup(u64),
    /// Read the service, ensure its networks, build the create request.
    Prepare(u64),
    /// Pull the image, one attempt.
    Pull(u64),
    /// Create from the prepared request, connect and start; on failure remove the container.
    Launch(u64),
    /// Start a container that exists.
    Start(u64, String),
    /// Inspect a container.
    Inspect(u64, String),
    /// Stop each with its own signal and grace period, then remove it and its anonymous volumes.
    Discard(u64, Vec<String>),
    /// Cancel the effect in flight; only ever a prepare or a pull.
    Cancel,
    /// Publish the report to the cluster.
    Publish(Box<Report>),
    /// No container of this replica is left on this host.
    Finished,
}

/// Replicated facts about the replica when its actor starts.
#[derive(Clone, Debug, Default)]
pub struct Seed {
    /// Last report, if this host made it.
    pub report: Option<Report>,
    /// Consecutive failures so far.
    pub failures: u32,
}
