//! What a replica's core is told, and what it asks for.

use std::time::{Duration, Instant, SystemTime};

use crate::runtime::{
    engine::{EngineError, Found, Inspected},
    replica::report::Report,
};

/// A point in time, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Monotonic: all deadlines.
    pub instant: Instant,
    /// Wall clock: only what people read.
    pub wall: SystemTime,
}

/// What the replicated state wants of this host for one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// Nothing: whatever is here is stopped and removed.
    Gone,
    /// The row moved away; the container stays up until the new host has one.
    Kept {
        /// The service declares a health check.
        checked: bool,
    },
    /// One container, made from this row.
    Own(Wanted),
}

/// A row this host owns, reduced to what the decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Log index of the row; another one means another container.
    pub raft_index: u64,
    /// Name of the deployment, for reports.
    pub deployment: String,
    /// Image to run, for reports.
    pub image: String,
    /// Ask the registry before the first create.
    pub pull: bool,
    /// The service declares a health check.
    pub checked: bool,
    /// Whether a start may begin.
    pub gate: Gate,
}

/// Whether a start may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// It may.
    Open,
    /// Something the cluster will tell about is missing; nothing is published.
    Deferred(String),
    /// The node has not caught up with the cluster, and the replica may run elsewhere by now: only
    /// what ran here before goes on, restarts included.
    Behind,
    /// The node cannot isolate tenants.
    Isolated,
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
    /// The engine does not answer.
    #[error(transparent)]
    Engine(EngineError),
    /// Anything that another attempt may find different.
    #[error("{0}")]
    Retry(String),
}

/// Signs of progress closer to each other than this are told as one.
pub const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// The state was read again.
    Assign(Assignment),
    /// The deadline of [`Core::poll_timeout`](super::Core::poll_timeout) passed.
    Timeout,
    /// The engine told something about a container of this replica.
    Hint,
    /// More than one container carries the replica's label.
    Crowded,
    /// The engine's event stream came up or broke.
    Events(bool),
    /// Outcome of [`Effect::Lookup`].
    Found(u64, Result<Vec<Found>, EngineError>),
    /// Outcome of [`Effect::Prepare`].
    Prepared(u64, Result<(), PrepareError>),
    /// The pull of [`Effect::Pull`] moves; said at least once in [`PROGRESS_EVERY`] while it does.
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

/// Something the shell must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// List the containers of this replica.
    Lookup(u64),
    /// Read the service, ensure its networks, build the create request.
    Prepare(u64),
    /// Ask the registry for the image, once.
    Pull(u64),
    /// Create from the prepared request, connect, start; on failure remove what was made.
    Launch(u64),
    /// Start a container that exists.
    Start(u64, String),
    /// Look at a container.
    Inspect(u64, String),
    /// Stop each by its own signal and grace, then remove it with its anonymous volumes.
    Discard(u64, Vec<String>),
    /// Drop the effect in flight; only ever a prepare or a pull.
    Cancel,
    /// Tell the cluster.
    Publish(Box<Report>),
    /// Nothing of this replica is left on this host.
    Finished,
}

/// What the cluster knew about the replica when its actor started.
#[derive(Clone, Debug, Default)]
pub struct Seed {
    /// Last report of this host, if it is this host's.
    pub report: Option<Report>,
    /// Failures in a row so far.
    pub failures: u32,
}
