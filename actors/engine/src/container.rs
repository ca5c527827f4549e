//! The port to the containers of an engine.

use std::{collections::BTreeMap, fmt, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use jaco_proto::manifest::compose::Hook;

use crate::{
    Credential, EngineError,
    spec::{ContainerSpec, EndpointConfig},
};

/// Lifecycle state of a container as the engine reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Its process is running.
    Running,
    /// Its process has ended.
    Exited,
    /// The engine failed to remove or stop it.
    Dead,
    /// It was created but never started.
    Created,
    /// Any other or transitional state: paused, restarting, removing.
    Other,
}

impl Status {
    /// Whether none of its processes is running and none will start by itself.
    #[must_use]
    pub fn has_stopped(self) -> bool {
        match self {
            Self::Exited | Self::Dead | Self::Created => true,
            Self::Running | Self::Other => false,
        }
    }
}

/// Result of the engine's health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// No result yet.
    Starting,
    /// Passing.
    Healthy,
    /// Failing.
    Unhealthy,
}

/// Entry of a container listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Engine id.
    pub id: String,
    /// Replica it belongs to, according to its label.
    pub replica_id: Option<String>,
    /// Log index of the row it was created from; `None` when missing or unparsable.
    pub raft_index: Option<u64>,
    /// Whether its process runs.
    pub status: Status,
}

/// Details of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// Engine id.
    pub id: String,
    /// `None` when the engine sent no state object.
    pub status: Option<Status>,
    /// Time of its last start as the engine writes it; empty if it never started.
    pub started_at: String,
    /// Last exit code.
    pub exit_code: i64,
    /// Killed by the kernel for exceeding its memory limit.
    pub oom_killed: bool,
    /// Result of the health check, if there is one.
    pub health: Option<Health>,
    /// Whose network namespace it uses.
    pub namespace: NetworkNamespace,
    /// Address by engine network name, of the container whose network namespace it uses; networks
    /// without an address are omitted.
    pub addresses: BTreeMap<String, String>,
}

/// Whose network namespace a container uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NetworkNamespace {
    /// One of its own, or none.
    #[default]
    Own,
    /// That of another container, with this engine id, which runs.
    Lent(String),
    /// That of another container, which has ended and took its attachments along.
    Lost,
}

/// Kind of a container event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It was started.
    Start,
    /// Its process ended.
    Die,
    /// The kernel killed a process of it.
    Oom,
    /// The result of its health check changed.
    Health,
    /// It was removed.
    Destroy,
}

/// One message of the engine's event stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Container it concerns.
    pub container_id: String,
    /// Replica the container belongs to.
    pub replica_id: String,
    /// Kind of the event.
    pub kind: EventKind,
}

/// Selects the output of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogRequest {
    /// Unix seconds of the oldest line; 0 for all.
    pub since: i64,
    /// Keep following after the newest line.
    pub follow: bool,
}

/// Stream of a container's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogStream {
    /// Standard output; also a terminal's only stream.
    Stdout,
    /// Standard error.
    Stderr,
}

impl LogStream {
    /// Name of the stream in a log line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

impl fmt::Display for LogStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Piece of output as framed by the engine; not necessarily a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFrame {
    /// Stream it was written to.
    pub stream: LogStream,
    /// The bytes; each message is prefixed with the engine's timestamp.
    pub bytes: Bytes,
}

/// End of a command run in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandExit {
    /// Exit code.
    pub code: i64,
    /// End of its output, without control characters.
    pub output: String,
}

impl fmt::Display for CommandExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {}", self.code)?;
        match self.output.as_str() {
            "" => Ok(()),
            output => write!(f, " ({output})"),
        }
    }
}

/// Client of a container engine.
///
/// Calls are idempotent where the engine allows it: stopping or removing a container that does not
/// exist succeeds.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Checks that the engine responds.
    async fn ping(&self) -> Result<(), EngineError>;

    /// Lists the containers of one replica in any state.
    async fn find(&self, cluster_id: &str, replica_id: &str) -> Result<Vec<Found>, EngineError>;

    /// Lists all containers of a cluster.
    async fn list(&self, cluster_id: &str) -> Result<Vec<Found>, EngineError>;

    /// Inspects one container.
    async fn inspect(&self, container: &str) -> Result<Inspected, EngineError>;

    /// Pulls an image from its registry, for `platform` or else for the engine's own.
    ///
    /// Yields an item for every progress message. The image is present if the stream ends without
    /// an error; dropping the stream cancels the pull.
    fn pull(
        &self,
        image: &str,
        platform: Option<&str>,
        auth: Option<&Credential>,
    ) -> BoxStream<'static, Result<(), EngineError>>;

    /// Waits until one more create or start request may be in flight; the caller holds the slot
    /// during the request. It is no part of the request, because the wait may be long: a caller
    /// checks what the start depends on after it.
    async fn start_slot(&self) -> StartSlot {
        StartSlot::default()
    }

    /// Creates a container and returns its id.
    async fn create(&self, name: &str, spec: &ContainerSpec) -> Result<String, EngineError>;

    /// Attaches a container to another network.
    async fn connect(
        &self,
        network: &str,
        container: &str,
        config: &EndpointConfig,
    ) -> Result<(), EngineError>;

    /// Starts a container.
    async fn start(&self, container: &str) -> Result<(), EngineError>;

    /// Runs a command in a running container until it ends.
    async fn run(&self, container: &str, command: &Hook) -> Result<CommandExit, EngineError>;

    /// Runs the commands that a container has for the time before its stop signal, for at most its
    /// grace period together; none in one that does not run. Returns what failed.
    async fn pre_stop(&self, container: &str) -> Result<Vec<String>, EngineError>;

    /// Sends the container's stop signal and kills it after its grace period.
    async fn stop(&self, container: &str) -> Result<(), EngineError>;

    /// Sends a signal.
    async fn kill(&self, container: &str, signal: &str) -> Result<(), EngineError>;

    /// Removes a container and its anonymous volumes, even if it is running.
    async fn remove(&self, container: &str) -> Result<(), EngineError>;

    /// Streams events of a cluster's containers; ends or fails with the connection.
    fn events(&self, cluster_id: &str) -> BoxStream<'static, Result<Event, EngineError>>;

    /// Streams the output of a container, with timestamps.
    fn logs(
        &self,
        container: &str,
        request: LogRequest,
    ) -> BoxStream<'static, Result<LogFrame, EngineError>>;
}

/// Permission for one create or start request, until it is dropped.
///
/// The default one is not limited.
#[derive(Default)]
pub struct StartSlot {
    _until_dropped: Option<Box<dyn Send + Sync>>,
}

impl StartSlot {
    /// A slot that holds `permit` until it is dropped.
    #[must_use]
    pub fn new(permit: impl Send + Sync + 'static) -> Self {
        Self {
            _until_dropped: Some(Box::new(permit)),
        }
    }
}

impl fmt::Debug for StartSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartSlot").finish_non_exhaustive()
    }
}

/// Stop grace period of a container that configures none.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);
