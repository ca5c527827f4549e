//! State shared by the actors of a node: configuration, and the membership once there is one.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jaco_engine::Engine;
use jaco_net::tls::CertSlot;
use jaco_proto::{
    Error, ErrorCode,
    secret::SecretString,
    v1::{self, command::Payload},
};
use jaco_raftnode::{
    Committed, Limits, Propose, ProposeError, RaftHandle, ReadError, State, Storage,
};
use jaco_supervision::{ActorInfo, CallError, Handle, KillError, KillMode, Tree};
use tokio::{
    sync::{OwnedMutexGuard, Semaphore, mpsc, watch},
    time::Instant as Deadline,
};
use tonic::{Response, metadata::MetadataValue};
use zeroize::Zeroize as _;

use super::{
    NodeConfig, NodeMsg, actor::OpenedNode, commit_lock::CommitLock, init::ClusterBootstrap,
    leader::LeaderLink, removed::removed, submit::Submitter,
};
use crate::{
    api::{
        Caller,
        admission::{self, Transport},
        backup,
        connection_limits::{self, ConnectionLimiter},
        rate_limits::{FailureLimiter, JoinLimiter},
    },
    clock::Clock,
    health::FailureDetector,
    membership::Membership,
    network::ipam::SharedAllocator,
    peer::{PeerTransport, Peers},
    runtime::Runtime,
    telemetry::Metrics,
};

/// Time limit of a commit, after which its outcome counts as unknown.
const COMMIT_BUDGET: Duration = Duration::from_secs(5);
/// Time limit of an init.
const INIT_BUDGET: Duration = Duration::from_secs(60);
/// Delay before retrying an init that died with its actor instance.
const INIT_RETRY: Duration = Duration::from_millis(50);

/// State that lives as long as the node, whether it is a member of a cluster or not.
pub struct NodeContext {
    /// Configuration the node was started with.
    pub config: NodeConfig,
    pub(super) tree: OnceLock<Arc<Tree>>,
    pub(super) lifecycle: OnceLock<Handle<NodeMsg>>,
    pub(super) running: OnceLock<Arc<MemberContext>>,
    /// Database and verticals opened from disk. Locked while a cluster is bootstrapped, joined or
    /// opened, since these touch the same files.
    pub(super) opened: Mutex<Option<OpenedNode>>,
    pub(super) setup_token: Mutex<Option<[u8; 32]>>,
    pub(super) certificate: Arc<CertSlot>,
    pub(super) tls: Arc<rustls::ServerConfig>,
    pub(super) failures: Mutex<FailureLimiter>,
    /// Metrics of this node.
    pub(super) metrics: Metrics,
    /// Whether the data directory holds a membership.
    pub(super) member: AtomicBool,
    /// Whether this node was removed from its cluster.
    pub(super) removed: watch::Sender<bool>,
    /// Name of this node in its cluster, or the name it will have there.
    pub(super) hostname: OnceLock<String>,
    /// Held while a cluster is bootstrapped or joined, so that only one attempt runs at a time.
    pub(super) membership_lock: Arc<tokio::sync::Mutex<()>>,
    /// Join attempts by client address.
    pub(super) join_attempts: Mutex<JoinLimiter>,
    /// Set once startup has read the data directory and opened the membership in it, if there is
    /// one.
    pub(super) startup_done: watch::Sender<bool>,
    /// Set when the node stops. Every task that serves a client holds a receiver and drops it once
    /// the client has its answer; [`Node::drain`](super::Node::drain) waits until all are dropped.
    pub(super) stopping: watch::Sender<bool>,
    /// As `stopping`, for in-process streams. The embedding program is the one that stops the node
    /// and may have stopped reading its streams, so a drain does not wait for these receivers.
    pub(super) stopping_in_process: watch::Sender<bool>,
    /// Connections of the API listeners; they outlive the listener actor that accepted them.
    pub(crate) limiter: Arc<Mutex<ConnectionLimiter>>,
    /// Permits for further concurrent backups.
    pub(crate) backups: Arc<Semaphore>,
    /// Channel for errors that a restart cannot fix.
    pub(super) fatal: mpsc::UnboundedSender<String>,
}

/// End of service for the clients of this node: it stops, or was removed from its cluster.
pub(crate) struct EndOfService {
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) removed: watch::Receiver<bool>,
}

impl EndOfService {
    /// Waits for the end and returns the error for the client.
    pub(crate) async fn wait(mut self) -> Error {
        tokio::select! {
            biased;
            Ok(_) = self.removed.wait_for(|&removed| removed) => removed(),
            // A receive error means that the node is already gone.
            _ = self.stopping.wait_for(|&stopping| stopping) => NodeContext::stopped(),
        }
    }
}

/// State of a node that is a member of a cluster.
pub struct MemberContext {
    /// Name of this node in the cluster.
    pub hostname: String,
    /// The replicated state.
    pub raft: RaftHandle,
    /// Id of the cluster.
    pub cluster_id: String,
    /// The container engine.
    pub engine: Arc<dyn Engine>,
    /// Access to this node's containers; set once the runtime vertical is assembled.
    pub(super) runtime: OnceLock<Runtime>,
    /// Allocator of network address blocks; set once the network vertical is assembled.
    pub(super) allocator: OnceLock<SharedAllocator>,
    pub(crate) storage: Arc<Storage>,
    /// The other members.
    pub peers: Peers,
    /// Routes calls to the current leader.
    pub(crate) leader: LeaderLink,
    /// Transport to the other members; `None` without a cluster address.
    pub network: Option<Arc<PeerTransport>>,
    /// Failure detector: heartbeats, the members in reach, and the fencing of this node.
    pub failure_detector: Arc<FailureDetector>,
    pub(super) limits: Limits,
    /// Source of command timestamps.
    pub clock: Clock,
    /// Serialises apply, rollback and delete, from validation to commit.
    pub(crate) apply_lock: CommitLock,
    /// Serialises joins, from the choice of a raft id to its commit.
    pub(crate) join_lock: CommitLock,
    /// Held while the drain mark of a member is set or cleared.
    pub(crate) drain_mark_lock: tokio::sync::Mutex<()>,
    /// Voter management, active on the leader.
    pub(super) membership: OnceLock<Membership>,
}

impl NodeContext {
    /// Creates the shared state of a node without a membership or actors.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn idle(
        config: NodeConfig,
        certificate: Arc<CertSlot>,
        tls: Arc<rustls::ServerConfig>,
    ) -> Arc<Self> {
        let (report, _) = mpsc::unbounded_channel();
        let metrics = Metrics::new("", config.clock.clone());
        Arc::new(Self::new(config, metrics, certificate, tls, report))
    }

    pub(super) fn new(
        config: NodeConfig,
        metrics: Metrics,
        certificate: Arc<CertSlot>,
        tls: Arc<rustls::ServerConfig>,
        fatal: mpsc::UnboundedSender<String>,
    ) -> Self {
        Self {
            config,
            metrics,
            tree: OnceLock::new(),
            lifecycle: OnceLock::new(),
            running: OnceLock::new(),
            opened: Mutex::default(),
            setup_token: Mutex::default(),
            certificate,
            tls,
            failures: Mutex::default(),
            member: AtomicBool::new(false),
            removed: watch::Sender::new(false),
            hostname: OnceLock::new(),
            membership_lock: Arc::default(),
            join_attempts: Mutex::default(),
            startup_done: watch::Sender::new(false),
            stopping: watch::Sender::new(false),
            stopping_in_process: watch::Sender::new(false),
            limiter: Arc::new(Mutex::new(ConnectionLimiter::new(
                connection_limits::ConnectionLimits::of_process(),
            ))),
            backups: Arc::new(Semaphore::new(backup::CONCURRENT)),
            fatal,
        }
    }

    /// Installs a membership that has neither files nor actors.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn become_member(
        &self,
        hostname: &str,
        raft: RaftHandle,
        storage: Arc<Storage>,
        peers: Peers,
    ) {
        let cluster_id = raft
            .state()
            .cluster
            .clone()
            .unwrap_or_default()
            .cluster_id
            .clone();
        let clock = self.config.clock.clone();
        let failure_detector = Arc::new(FailureDetector::new(
            hostname,
            raft.subscribe_status(),
            clock,
        ));
        self.running.get_or_init(|| {
            Arc::new(MemberContext {
                hostname: hostname.to_owned(),
                leader: LeaderLink::new(raft.clone(), peers.clone()),
                failure_detector,
                raft,
                cluster_id,
                engine: Arc::new(jaco_engine::docker::DockerEngine::new(
                    &self.config.docker_socket,
                )),
                runtime: OnceLock::new(),
                allocator: OnceLock::new(),
                storage,
                peers,
                network: None,
                limits: Limits::default(),
                clock: self.config.clock.clone(),
                apply_lock: CommitLock::default(),
                join_lock: CommitLock::default(),
                drain_mark_lock: tokio::sync::Mutex::default(),
                membership: OnceLock::new(),
            })
        });
        self.member.store(true, Ordering::Release);
    }

    /// Returns the membership, or the error that explains its absence.
    pub(crate) fn running(&self) -> Result<Arc<MemberContext>, Error> {
        self.try_running().ok_or_else(|| {
            if self.is_member() {
                Error::new(ErrorCode::StateUnavailable, "the node is opening its state")
            } else {
                admission::uninitialized()
            }
        })
    }

    /// Whether this node belongs to a cluster, even if it has not opened its state yet.
    pub(crate) fn is_member(&self) -> bool {
        self.member.load(Ordering::Acquire)
    }

    /// Whether this node was removed from its cluster.
    pub(crate) fn is_removed(&self) -> bool {
        *self.removed.borrow()
    }

    pub(crate) fn try_running(&self) -> Option<Arc<MemberContext>> {
        self.running.get().cloned()
    }

    pub(crate) fn state(&self) -> Option<Arc<State>> {
        self.running.get().map(|running| running.raft.state())
    }

    /// SHA-256 of the setup token while the node waits to be initialised.
    pub(crate) fn setup_token(&self) -> Option<[u8; 32]> {
        *self
            .setup_token
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tls_server_config(&self) -> Arc<rustls::ServerConfig> {
        self.tls.clone()
    }

    /// Records a failed token check and returns the delay of its answer.
    pub(crate) fn failed_token_check(&self, address: IpAddr, now: Instant) -> Duration {
        self.failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .failed(address, now)
    }

    /// Counts an attempt to join from `address`; the error is the time until the next attempt is
    /// allowed.
    pub(crate) fn join_attempt(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        self.join_attempts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .attempt(address, now)
    }

    /// Uncounts the last attempt from `address`: its token was valid.
    pub(crate) fn joined_from(&self, address: IpAddr) {
        self.join_attempts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .uncount(address);
    }

    /// Bootstraps a single-node cluster for the caller `asked_by`.
    pub(crate) async fn init(
        &self,
        name: String,
        asked_by: &str,
    ) -> Result<v1::ClusterInitResponse, Error> {
        let unavailable = |why| Error::new(ErrorCode::StateUnavailable, why);
        let Some(lifecycle) = self.lifecycle.get() else {
            return Err(unavailable("the node is starting; try again"));
        };
        let request = ClusterBootstrap::new(name, asked_by)?;
        let _one = self.begin_membership()?;
        let deadline = Deadline::now() + INIT_BUDGET;
        let mut stopping = self.stopping();
        loop {
            let left = deadline - Deadline::now();
            let call = lifecycle.call(left, |reply| NodeMsg::Init(request.clone(), reply));
            let answer = tokio::select! {
                answer = call => answer,
                _ = stopping.wait_for(|&stopping| stopping) => return Err(Self::stopped()),
            };
            match answer {
                Ok(result) => return result,
                // The request died with its actor instance. The retry names the same cluster, so
                // the next instance reports whether it was created.
                Err(CallError::Unavailable | CallError::NoReply) if !left.is_zero() => {
                    tokio::time::sleep(INIT_RETRY).await;
                }
                Err(CallError::Unavailable | CallError::NoReply | CallError::Timeout) => {
                    return Err(unavailable("the node did not answer in time"));
                }
            }
        }
    }

    /// Acquires the right to make this node a member; released on drop.
    pub(super) fn begin_membership(&self) -> Result<OwnedMutexGuard<()>, Error> {
        Arc::clone(&self.membership_lock)
            .try_lock_owned()
            .map_err(|_| {
                let message = "another init or join is under way";
                Error::new(ErrorCode::StateUnavailable, message)
            })
    }

    /// Waits for a bootstrap in progress, then drops verticals that were assembled but never
    /// started.
    pub(super) fn drop_unstarted(&self) {
        self.opened
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    /// Subscribes to the shutdown signal.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Subscribes a stream of `caller` to the shutdown signal of its transport.
    pub(crate) fn stopping_for(&self, caller: &Caller) -> watch::Receiver<bool> {
        match caller.transport {
            Transport::Process => self.stopping_in_process.subscribe(),
            Transport::Local | Transport::Api | Transport::Peer => self.stopping.subscribe(),
        }
    }

    /// Returns the end of service for streams of `caller`.
    pub(crate) fn end_of_service_for(&self, caller: &Caller) -> EndOfService {
        EndOfService {
            stopping: self.stopping_for(caller),
            removed: self.removed.subscribe(),
        }
    }

    /// Metrics of this node.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Error for clients of a stopping node.
    pub(crate) fn stopped() -> Error {
        Error::new(ErrorCode::RaftUnavailable, "the node is stopping")
    }

    /// The supervision tree, parents before children.
    #[must_use]
    pub fn actors(&self) -> Vec<ActorInfo> {
        self.tree
            .get()
            .map(|tree| tree.describe())
            .unwrap_or_default()
    }

    /// Kills one actor, if fault injection is enabled.
    pub(crate) fn kill_actor(&self, path: &str, mode: KillMode) -> Result<(), Error> {
        if !self.config.fault_injection {
            return Err(Error::new(
                ErrorCode::PrivilegeDenied,
                "fault injection is not enabled on this daemon",
            ));
        }
        let Some(tree) = self.tree.get() else {
            return Err(Error::new(
                ErrorCode::StateUnavailable,
                "the node is starting",
            ));
        };
        tree.kill(path, mode).map_err(|error: KillError| {
            Error::new(ErrorCode::ValidationFailed, error.to_string())
                .with("field", "path")
                .with("value", path)
        })
    }
}

impl MemberContext {
    /// Returns the local state after a linearizable read: it includes every write committed before
    /// the call.
    ///
    /// # Errors
    /// `no_leader`, `quorum_lost` or `raft_unavailable`.
    pub(crate) async fn confirmed(&self) -> Result<Arc<State>, Error> {
        self.raft.read_index().await.map_err(|error| match error {
            ReadError::NoLeader => self.leader.leaderless(),
            ReadError::Unavailable => Error::new(
                ErrorCode::RaftUnavailable,
                "the read could not be confirmed",
            ),
            ReadError::QuorumLost => self.leader.quorum_lost(),
        })
    }

    /// Raft id of this node.
    pub(crate) fn raft_id(&self) -> u64 {
        self.storage.raft_id()
    }

    /// Voter management, active on the leader.
    pub(crate) fn membership(&self) -> Result<&Membership, Error> {
        self.membership
            .get()
            .ok_or_else(|| Error::new(ErrorCode::StateUnavailable, "the node is starting"))
    }

    /// Access to this node's containers.
    pub(crate) fn runtime(&self) -> Result<&Runtime, Error> {
        self.runtime
            .get()
            .ok_or_else(|| Error::new(ErrorCode::LogsUnavailable, "the runtime is starting"))
    }

    /// Allocator of network address blocks, which allocates while this node leads.
    pub(crate) fn allocator(&self) -> Result<&SharedAllocator, Error> {
        self.allocator
            .get()
            .ok_or_else(|| Error::new(ErrorCode::IpamUnavailable, "the network is starting"))
    }

    /// Returns a proposer that works on any node: it forwards to the leader.
    pub(crate) fn submitter(&self) -> Submitter {
        Submitter::new(self.leader.clone())
    }

    /// Largest encoded command that raft accepts, in bytes.
    pub(crate) fn command_bytes(&self) -> usize {
        self.limits.command_bytes
    }

    /// Builds a command written by `identity`, stamped now.
    pub(crate) fn command(&self, identity: &str, payload: Payload) -> v1::Command {
        v1::Command {
            ts: Some(self.clock.timestamp()),
            identity: identity.to_owned(),
            payload: Some(payload),
            ..Default::default()
        }
    }

    /// Builds the response of a read, with the log index it reflects.
    pub(crate) fn read_response<T>(&self, state: &State, message: T) -> Response<T> {
        let mut response = Response::new(message);
        response.metadata_mut().insert(
            "jaco-applied-index",
            MetadataValue::from(state.applied_index),
        );
        response
    }
}

/// Proposes a command for a client and maps a failure to the client's error.
///
/// # Errors
/// The rejection's own code; `no_leader` or `raft_unavailable` if nothing was written;
/// `raft_apply_failed` with `outcome=unknown` if it may have been.
pub(crate) async fn propose(raft: &dyn Propose, command: v1::Command) -> Result<Committed, Error> {
    outcome(raft.propose(command)).await
}

pub(super) async fn outcome(
    proposal: impl Future<Output = Result<Committed, ProposeError>>,
) -> Result<Committed, Error> {
    match tokio::time::timeout(COMMIT_BUDGET, proposal).await {
        Ok(Ok(committed)) => Ok(committed),
        Ok(Err(ProposeError::Rejected(error))) => Err(error),
        Ok(Err(ProposeError::NoLeader)) => {
            Err(Error::new(ErrorCode::NoLeader, "this node does not lead"))
        }
        Ok(Err(error @ (ProposeError::Busy | ProposeError::Unavailable))) => {
            Err(Error::new(ErrorCode::RaftUnavailable, error.to_string()))
        }
        Ok(Err(ProposeError::Unknown(reason))) => Err(unknown_outcome(reason)),
        Err(_) => Err(unknown_outcome("no answer within 5 s".to_owned())),
    }
}

/// Error for a change that may or may not take effect.
pub(crate) fn unknown_outcome(reason: String) -> Error {
    Error::new(
        ErrorCode::RaftApplyFailed,
        "the commit's outcome is unknown",
    )
    .with("outcome", "unknown")
    .with("reason", reason)
}

/// Generates a secret: 32 random bytes as 64 lower-case hexadecimal digits.
///
/// # Errors
/// `rand_failed` if the system provides no randomness.
pub(crate) fn random_token() -> Result<SecretString, Error> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorCode::RandFailed, error.to_string()))?;
    // Allocated once, at its full length: growing it would leave copies of the secret behind.
    let text = hex::encode(bytes.as_slice());
    bytes.zeroize();
    Ok(SecretString::new(text))
}
