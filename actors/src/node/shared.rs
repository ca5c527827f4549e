//! What the parts of a node share: configuration, and the cluster once there is one.

use std::{
    fmt::Write as _,
    net::IpAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

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
    NodeConfig, NodeMsg, actor::Opened, init::Founding, leader::LeaderLink, removed::removed,
    submit::Submitter, turn::Turn,
};
use crate::{
    api::{
        Caller,
        admission::{self, Transport},
        backup,
        gate::{self, Gate},
        limits::{FailureLimiter, JoinLimiter},
    },
    clock::Clock,
    health::Heart,
    membership::Membership,
    network::ipam::SharedAllocator,
    peer::{Network, Peers},
    runtime::{
        Runtime,
        engine::{DockerEngine, Engine},
    },
    telemetry::Metrics,
};

/// Longest time a commit may take before its outcome counts as unknown.
const COMMIT_BUDGET: Duration = Duration::from_secs(5);
/// Longest time an init may take.
const INIT_BUDGET: Duration = Duration::from_secs(60);
/// Wait before an actor that died over an init is asked again.
const INIT_RETRY: Duration = Duration::from_millis(50);

/// What lives as long as the node, member of a cluster or not.
pub struct Shared {
    /// What the node was started with.
    pub config: NodeConfig,
    pub(super) tree: OnceLock<Arc<Tree>>,
    pub(super) lifecycle: OnceLock<Handle<NodeMsg>>,
    pub(super) running: OnceLock<Arc<Running>>,
    /// What was opened from disk; held while a cluster is founded or opened, since these touch
    /// the same files.
    pub(super) opened: Mutex<Option<Opened>>,
    pub(super) setup_token: Mutex<Option<[u8; 32]>>,
    pub(super) certificate: Arc<CertSlot>,
    pub(super) tls: Arc<rustls::ServerConfig>,
    pub(super) failures: Mutex<FailureLimiter>,
    /// What this node counts.
    pub(super) metrics: Metrics,
    /// Whether the disk says that this node belongs to a cluster.
    pub(super) member: AtomicBool,
    /// Whether this node was removed from its cluster.
    pub(super) removed: watch::Sender<bool>,
    /// Name this node has, or will have in its cluster.
    pub(super) hostname: OnceLock<String>,
    /// Held while a cluster is founded or joined.
    pub(super) founding: Arc<tokio::sync::Mutex<()>>,
    /// Failed joins by address.
    pub(super) join_attempts: Mutex<JoinLimiter>,
    /// Set once the disk was looked at, and what it says was done.
    pub(super) settled: watch::Sender<bool>,
    /// Set when the node stops. Whoever serves a client holds a receiver, and drops it once the
    /// client knows.
    pub(super) stopping: watch::Sender<bool>,
    /// The same for streams that the program around the node reads, or forgot to: it is the one
    /// that stops the node, so nobody waits for it.
    pub(super) stopping_here: watch::Sender<bool>,
    /// The connections of the API listener, whichever instance of it let them in.
    pub(crate) gate: Arc<Mutex<Gate>>,
    /// Backups that may still begin.
    pub(crate) backups: Arc<Semaphore>,
    /// Where something that no restart can mend is reported.
    pub(super) fatal: mpsc::UnboundedSender<String>,
}

/// The end of this node, as far as its clients go: it stops, or it is removed from its cluster.
pub(crate) struct Ending {
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) removed: watch::Receiver<bool>,
}

impl Ending {
    /// Returns at that end with what a client is told.
    pub(crate) async fn reached(mut self) -> Error {
        tokio::select! {
            biased;
            Ok(_) = self.removed.wait_for(|&removed| removed) => removed(),
            // An error is a node that is gone already.
            _ = self.stopping.wait_for(|&stopping| stopping) => Shared::stopped(),
        }
    }
}

/// What exists once the node is a member.
pub struct Running {
    /// Name of this node in the cluster.
    pub hostname: String,
    /// The replicated state.
    pub raft: RaftHandle,
    /// Id of the cluster.
    pub cluster_id: String,
    /// The container engine.
    pub engine: Arc<dyn Engine>,
    /// The containers of this node, once the runtime was assembled.
    pub(super) runtime: OnceLock<Runtime>,
    /// What gives networks their blocks, once the network was assembled.
    pub(super) allocator: OnceLock<SharedAllocator>,
    pub(crate) storage: Arc<Storage>,
    /// The other members.
    pub peers: Peers,
    /// The way to whoever leads.
    pub(crate) leader: LeaderLink,
    /// The ways to them, if this node has any.
    pub network: Option<Arc<Network>>,
    /// Who is alive, and what this node says of that.
    pub heart: Arc<Heart>,
    pub(super) limits: Limits,
    /// Source of command timestamps.
    pub clock: Clock,
    /// Held by the one apply, rollback or delete that may validate and commit.
    pub(crate) applies: Turn,
    /// Held by the one join that may choose a raft id and commit.
    pub(crate) joins: Turn,
    /// Held by whoever sets or clears the drain mark of a member.
    pub(crate) marks: tokio::sync::Mutex<()>,
    /// Who votes, on the leader.
    pub(super) membership: OnceLock<Membership>,
}

impl Shared {
    /// The shared part of a node that has no membership and no actors yet.
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
            founding: Arc::default(),
            join_attempts: Mutex::default(),
            settled: watch::Sender::new(false),
            stopping: watch::Sender::new(false),
            stopping_here: watch::Sender::new(false),
            gate: Arc::new(Mutex::new(Gate::new(gate::Limits::of_process()))),
            backups: Arc::new(Semaphore::new(backup::CONCURRENT)),
            fatal,
        }
    }

    /// Puts a membership in place that has neither files nor actors.
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
        let heart = Arc::new(Heart::new(hostname, raft.subscribe_status(), clock));
        self.running.get_or_init(|| {
            Arc::new(Running {
                hostname: hostname.to_owned(),
                leader: LeaderLink::new(raft.clone(), peers.clone()),
                heart,
                raft,
                cluster_id,
                engine: Arc::new(DockerEngine::new(&self.config.docker_socket)),
                runtime: OnceLock::new(),
                allocator: OnceLock::new(),
                storage,
                peers,
                network: None,
                limits: Limits::default(),
                clock: self.config.clock.clone(),
                applies: Turn::default(),
                joins: Turn::default(),
                marks: tokio::sync::Mutex::default(),
                membership: OnceLock::new(),
            })
        });
        self.member.store(true, Ordering::Release);
    }

    /// The membership, or why there is none.
    pub(crate) fn running(&self) -> Result<Arc<Running>, Error> {
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

    pub(crate) fn try_running(&self) -> Option<Arc<Running>> {
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

    /// Records a failed token check; its answer waits for the returned time.
    pub(crate) fn failed_token_check(&self, address: IpAddr, now: Instant) -> Duration {
        self.failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .failed(address, now)
    }

    /// Counts an attempt to join from `address`; what is returned is how long the next one has to
    /// wait if there were too many.
    pub(crate) fn join_attempt(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        self.join_attempts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .attempt(address, now)
    }

    /// The last attempt from `address` was that of somebody who may join.
    pub(crate) fn joined_from(&self, address: IpAddr) {
        self.join_attempts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .forgive(address);
    }

    /// Creates a cluster of this one node for the caller `asked_by`.
    pub(crate) async fn init(
        &self,
        name: String,
        asked_by: &str,
    ) -> Result<v1::ClusterInitResponse, Error> {
        let unavailable = |why| Error::new(ErrorCode::StateUnavailable, why);
        let Some(lifecycle) = self.lifecycle.get() else {
            return Err(unavailable("the node is starting; try again"));
        };
        let founding = Founding::new(name, asked_by)?;
        let _one = self.begin_membership()?;
        let deadline = Deadline::now() + INIT_BUDGET;
        let mut stopping = self.stopping();
        loop {
            let left = deadline - Deadline::now();
            let call = lifecycle.call(left, |reply| NodeMsg::Init(founding.clone(), reply));
            let answer = tokio::select! {
                answer = call => answer,
                _ = stopping.wait_for(|&stopping| stopping) => return Err(Self::stopped()),
            };
            match answer {
                Ok(result) => return result,
                // The actor died over it: the next instance knows what became of this cluster.
                Err(CallError::Unavailable | CallError::NoReply) if !left.is_zero() => {
                    tokio::time::sleep(INIT_RETRY).await;
                }
                Err(CallError::Unavailable | CallError::NoReply | CallError::Timeout) => {
                    return Err(unavailable("the node did not answer in time"));
                }
            }
        }
    }

    /// The right to make this node a member, until it is dropped.
    pub(super) fn begin_membership(&self) -> Result<OwnedMutexGuard<()>, Error> {
        Arc::clone(&self.founding).try_lock_owned().map_err(|_| {
            let message = "another init or join is under way";
            Error::new(ErrorCode::StateUnavailable, message)
        })
    }

    /// Waits for a founding under way and drops what was assembled but never started.
    pub(super) fn forget(&self) {
        self.opened
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    /// Follows whether the node stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// The same, for a stream of `caller`.
    pub(crate) fn stopping_for(&self, caller: &Caller) -> watch::Receiver<bool> {
        match caller.transport {
            Transport::Process => self.stopping_here.subscribe(),
            Transport::Local | Transport::Api | Transport::Peer => self.stopping.subscribe(),
        }
    }

    /// What ends the streams of `caller`.
    pub(crate) fn ending_for(&self, caller: &Caller) -> Ending {
        Ending {
            stopping: self.stopping_for(caller),
            removed: self.removed.subscribe(),
        }
    }

    /// What this node counts.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// What a client of a stopping node is told.
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

    /// Ends one actor, if fault injection is enabled.
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

impl Running {
    /// The state here, once it is not older than what a majority knows.
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

    /// Who votes, on the leader.
    pub(crate) fn membership(&self) -> Result<&Membership, Error> {
        self.membership
            .get()
            .ok_or_else(|| Error::new(ErrorCode::StateUnavailable, "the node is starting"))
    }

    /// The containers of this node.
    pub(crate) fn runtime(&self) -> Result<&Runtime, Error> {
        self.runtime
            .get()
            .ok_or_else(|| Error::new(ErrorCode::LogsUnavailable, "the runtime is starting"))
    }

    /// What gives networks their blocks while this node leads.
    pub(crate) fn allocator(&self) -> Result<&SharedAllocator, Error> {
        self.allocator
            .get()
            .ok_or_else(|| Error::new(ErrorCode::IpamUnavailable, "the network is starting"))
    }

    /// Where this node proposes what it has to say, whoever leads.
    pub(crate) fn submitter(&self) -> Submitter {
        Submitter::new(self.leader.clone())
    }

    /// Largest encoded command that raft takes.
    pub(crate) fn command_bytes(&self) -> usize {
        self.limits.command_bytes
    }

    /// A command signed by `identity`, stamped now.
    pub(crate) fn command(&self, identity: &str, payload: Payload) -> v1::Command {
        v1::Command {
            ts: Some(self.clock.timestamp()),
            identity: identity.to_owned(),
            payload: Some(payload),
            ..Default::default()
        }
    }

    /// A read's response, with the log index it reflects.
    pub(crate) fn read_response<T>(&self, state: &State, message: T) -> Response<T> {
        let mut response = Response::new(message);
        response.metadata_mut().insert(
            "jaco-applied-index",
            MetadataValue::from(state.applied_index),
        );
        response
    }
}

/// Proposes a command for a client and says what became of it in the client's words.
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

/// What a client is told about a change that may or may not come.
pub(crate) fn unknown_outcome(reason: String) -> Error {
    Error::new(
        ErrorCode::RaftApplyFailed,
        "the commit's outcome is unknown",
    )
    .with("outcome", "unknown")
    .with("reason", reason)
}

/// A new secret: 32 random bytes as 64 lower-case hexadecimal digits.
///
/// # Errors
/// `rand_failed` if the system has no randomness to give.
pub(crate) fn random_token() -> Result<SecretString, Error> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorCode::RandFailed, error.to_string()))?;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}"); // a String never refuses
    }
    bytes.zeroize();
    Ok(SecretString::new(text))
}
