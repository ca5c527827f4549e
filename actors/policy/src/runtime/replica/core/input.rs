//! Parameters of the events that a replica's core handles.

use std::time::{Duration, Instant, SystemTime};

use jaco_engine::EngineError;
use jaco_proto::manifest::compose::Restart;

use crate::runtime::replica::{readiness::Readiness, report::Report};

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
        /// Evidence that it is ready.
        readiness: Readiness,
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
    /// Evidence that a container is ready.
    pub readiness: Readiness,
    /// Treatment of a container that has ended.
    pub restart: Restart,
    /// The service has commands to run after each start.
    pub has_post_start: bool,
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
    /// This host cannot open a secret: it lacks the secrets key, or has another one.
    #[error("secret `{name}` cannot be opened: {reason}")]
    SecretClosed {
        /// Key of the secret in the document.
        name: String,
        /// Why it cannot.
        reason: String,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(EngineError),
    /// Any other failure; a later attempt may succeed.
    #[error("{0}")]
    Retry(String),
}

/// Why a container was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The condition of the start no longer held, so the engine was not asked.
    #[error("the condition of the start no longer holds")]
    Revoked,
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Why the commands of `post_start` did not all succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostStartError {
    /// A command failed.
    #[error("post_start command {command} failed: {reason}")]
    Failed {
        /// Its position, from 1.
        command: usize,
        /// Why it did.
        reason: String,
    },
    /// The engine does not respond.
    #[error(transparent)]
    Engine(EngineError),
}

/// Minimum interval between two calls of
/// [`Core::handle_pull_progress`](super::Core::handle_pull_progress).
pub const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Replicated facts about the replica when its actor starts.
#[derive(Clone, Debug, Default)]
pub struct Seed {
    /// Last report, if this host made it.
    pub report: Option<Report>,
    /// Consecutive failures so far.
    pub failures: u32,
}
