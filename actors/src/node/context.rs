//! State shared by the actors of a node: configuration, and the membership once there is one.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jaco_engine::{Engine, docker::DockerEngine};
use jaco_net::{
    ingress::Proxy,
    l4,
    tls::CertSlot,
    wireguard::{PrivateKey, PublicKey},
};
use jaco_proto::{
    Error, ErrorCode, chain,
    v1::{self, command::Payload},
};
use jaco_raftnode::{RaftHandle, RaftLimits, ReadError, State, StateReader, Storage};
use jaco_supervision::{
    ActorInfo, CallError, ChildSpec, Failure, Handle, KillError, KillMode, Tree,
};
use tokio::{
    sync::{OwnedMutexGuard, mpsc, watch},
    time::Instant as Deadline,
};
use tonic::{Response, metadata::MetadataValue};

use super::{NodeConfig, init::ClusterBootstrap, leader::LeaderLink, msg::Msg, submit::Submitter};
use crate::{
    clock::Clock,
    commit::CommitLock,
    health::FailureDetector,
    identity::Transport,
    membership::Membership,
    network::{firewall, ipam::SharedAllocator, mesh::KernelPort, reports::NetworkReports},
    peer::{PeerTransport, Peers},
    runtime::Runtime,
    secrets::Secrets,
    serving::{ClusterRouting, Serving},
    telemetry::Metrics,
};

/// Time limit of an init.
const INIT_BUDGET: Duration = Duration::from_secs(60);
/// Delay before retrying an init that died with its actor instance.
const INIT_RETRY: Duration = Duration::from_millis(50);

/// State that lives as long as the node, whether it is a member of a cluster or not.
pub struct NodeContext {
    /// Configuration the node was started with.
    pub config: NodeConfig,
    pub(crate) tree: OnceLock<Arc<Tree>>,
    pub(crate) lifecycle: OnceLock<Handle<Msg>>,
    pub(super) running: OnceLock<Arc<MemberContext>>,
    /// Database and verticals opened from disk. Locked while a cluster is bootstrapped, joined or
    /// opened, since these touch the same files.
    pub(super) opened: Mutex<Option<OpenedNode>>,
    pub(super) setup_token: Mutex<Option<[u8; 32]>>,
    pub(crate) certificate: Arc<CertSlot>,
    /// Key of this node in the mesh; `None` without a mesh.
    pub(crate) mesh_key: Option<PrivateKey>,
    pub(super) tls: Arc<rustls::ServerConfig>,
    /// Metrics of this node.
    pub(super) metrics: Metrics,
    /// Whether the data directory holds a membership.
    pub(super) member: AtomicBool,
    /// Whether this node was removed from its cluster.
    pub(super) removed: watch::Sender<bool>,
    /// Name of this node in its cluster, or the name it will have there.
    pub(crate) hostname: OnceLock<String>,
    /// Held while a cluster is bootstrapped or joined, so that only one attempt runs at a time.
    pub(super) membership_lock: Arc<tokio::sync::Mutex<()>>,
    /// Set once startup has read the data directory and opened the membership in it, if there is
    /// one.
    pub(crate) startup_done: watch::Sender<bool>,
    /// Set when the node stops. Every task that serves a client holds a receiver and drops it once
    /// the client has its answer; [`Node::drain`](crate::Node::drain) waits until all are dropped.
    pub(crate) stopping: watch::Sender<bool>,
    /// As `stopping`, for in-process streams. The embedding program is the one that stops the node
    /// and may have stopped reading its streams, so a drain does not wait for these receivers.
    pub(crate) stopping_in_process: watch::Sender<bool>,
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

/// Database and verticals opened from disk. They outlive the actor that opened them: a database can
/// be open only once, and a running vertical must not be assembled again.
pub(super) struct OpenedNode {
    pub(super) running: Arc<MemberContext>,
    /// Verticals not started yet, in start order.
    pub(super) unstarted: VecDeque<ChildSpec>,
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
    pub(crate) runtime: OnceLock<Runtime>,
    /// Allocator of network address blocks; set once the network vertical is assembled.
    pub(crate) allocator: OnceLock<SharedAllocator>,
    /// Status of the firewall; set once the network vertical is assembled, if there is a firewall.
    pub(crate) firewall: OnceLock<watch::Receiver<firewall::Status>>,
    pub(crate) storage: Arc<Storage>,
    /// The other members.
    pub peers: Peers,
    /// Routes calls to the current leader.
    pub(crate) leader: LeaderLink,
    /// Transport to the other members; `None` without a cluster address.
    pub transport: Option<Arc<PeerTransport>>,
    /// Failure detector: heartbeats, the members in reach, and the fencing of this node.
    pub failure_detector: Arc<FailureDetector>,
    pub(crate) limits: RaftLimits,
    /// Source of command timestamps.
    pub clock: Clock,
    /// Serialises apply, rollback and delete, from validation to commit.
    pub(crate) apply_lock: CommitLock,
    /// Serialises joins, from the choice of a raft id to its commit.
    pub(crate) join_lock: CommitLock,
    /// Serialises changes of the drain marks of members; every writer of a mark holds it.
    pub(crate) drain_mark_lock: CommitLock,
    /// Held while a value is sealed and proposed, so that no rotation of the secrets key misses it.
    pub(crate) sealing_lock: CommitLock,
    /// The secrets key; set once its actor is assembled.
    pub(crate) secrets: OnceLock<Secrets>,
    /// Voter management, active on the leader.
    pub(crate) membership: OnceLock<Membership>,
    /// Newest report of each member about its container networks.
    pub(crate) network_reports: NetworkReports,
    /// How far the routing of this node has followed the state.
    pub(crate) serving: Serving,
    routing: ClusterRouting,
    /// Data planes of the ingress; set once the ingress is assembled, if there is one.
    pub(crate) data_planes: OnceLock<(Proxy, l4::Ports)>,
    /// Device of the mesh; set once it is assembled, if there is one.
    pub(crate) mesh: OnceLock<KernelPort>,
}

/// Parts of a [`NodeContext`] that are known before its actors run.
pub(crate) struct NodeParts {
    pub(crate) config: NodeConfig,
    pub(crate) metrics: Metrics,
    pub(crate) certificate: Arc<CertSlot>,
    /// Key of this node in the mesh; `None` without a mesh.
    pub(crate) mesh_key: Option<PrivateKey>,
    pub(crate) tls: Arc<rustls::ServerConfig>,
    /// Channel for errors that a restart cannot fix.
    pub(crate) fatal: mpsc::UnboundedSender<String>,
    /// SHA-256 of the setup token; `None` on a member.
    pub(crate) setup_token: Option<[u8; 32]>,
    /// Whether the data directory holds a membership.
    pub(crate) member: bool,
    /// Whether this node was removed from its cluster.
    pub(crate) removed: bool,
}

/// Parts of a [`MemberContext`] that differ by node.
pub(crate) struct MemberParts {
    pub(crate) hostname: String,
    pub(crate) cluster_id: String,
    pub(crate) raft: RaftHandle,
    pub(crate) storage: Arc<Storage>,
    pub(crate) peers: Peers,
    /// Transport to the other members; `None` without a cluster address.
    pub(crate) transport: Option<Arc<PeerTransport>>,
    pub(crate) limits: RaftLimits,
}

impl NodeContext {
    /// Creates the state of a node whose actors do not run yet.
    pub(crate) fn new(parts: NodeParts) -> Self {
        let NodeParts {
            config,
            metrics,
            certificate,
            mesh_key,
            tls,
            fatal,
            setup_token,
            member,
            removed,
        } = parts;
        Self {
            config,
            metrics,
            tree: OnceLock::new(),
            lifecycle: OnceLock::new(),
            running: OnceLock::new(),
            opened: Mutex::default(),
            setup_token: Mutex::new(setup_token),
            certificate,
            mesh_key,
            tls,
            member: AtomicBool::new(member),
            removed: watch::Sender::new(removed),
            hostname: OnceLock::new(),
            membership_lock: Arc::default(),
            startup_done: watch::Sender::new(false),
            stopping: watch::Sender::new(false),
            stopping_in_process: watch::Sender::new(false),
            fatal,
        }
    }

    /// Installs the membership of this node; later calls change nothing.
    pub(crate) fn become_member(&self, member: Arc<MemberContext>) {
        self.running.get_or_init(|| member);
        self.member.store(true, Ordering::Release);
    }

    /// Reports an error that a restart cannot fix, and returns the failure of the actor that met
    /// it.
    pub(crate) fn report_fatal(&self, error: &dyn std::error::Error) -> Failure {
        let reason = chain(error);
        let _ = self.fatal.send(reason.clone()); // without a `Node::join` the node just stays down
        Failure::from(reason)
    }

    /// Returns the membership, or the error that explains its absence.
    pub(crate) fn running(&self) -> Result<Arc<MemberContext>, Error> {
        self.try_running().ok_or_else(|| {
            if self.is_member() {
                Error::new(ErrorCode::StateUnavailable, "the node is opening its state")
            } else {
                uninitialized()
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

    /// Key by which other members know this node in the mesh; `None` without a mesh.
    pub(crate) fn mesh_public_key(&self) -> Option<PublicKey> {
        self.mesh_key.as_ref().map(PrivateKey::public)
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
            let call = lifecycle.call(left, |reply| Msg::Init(request.clone(), reply));
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
    pub(crate) fn drop_unstarted(&self) {
        self.opened
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    /// Subscribes to the shutdown signal.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Subscribes a stream to the shutdown signal of the transport that its caller came by.
    pub(crate) fn stopping_for(&self, transport: Transport) -> watch::Receiver<bool> {
        match transport {
            Transport::Process => self.stopping_in_process.subscribe(),
            Transport::Local | Transport::Api | Transport::Peer => self.stopping.subscribe(),
        }
    }

    /// Returns the end of service for streams to callers on `transport`.
    pub(crate) fn end_of_service_for(&self, transport: Transport) -> EndOfService {
        EndOfService {
            stopping: self.stopping_for(transport),
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
    /// Creates the state of a member whose verticals are not assembled yet.
    pub(crate) fn new(parts: MemberParts, config: &NodeConfig) -> Self {
        let MemberParts {
            hostname,
            cluster_id,
            raft,
            storage,
            peers,
            transport,
            limits,
        } = parts;
        let clock = config.clock.clone();
        let status = raft.subscribe_status();
        let failure_detector = FailureDetector::new(&hostname, status, clock.clone());
        let claim = failure_detector.leader_claim();
        let serving = Serving::default();
        let routing = ClusterRouting::new(
            hostname.clone(),
            Arc::new(raft.clone()),
            serving.clone(),
            peers.clone(),
        );
        Self {
            hostname,
            failure_detector: Arc::new(failure_detector),
            cluster_id,
            engine: Arc::new(DockerEngine::new(&config.docker_socket)),
            leader: LeaderLink::new(raft.clone(), peers.clone(), claim),
            raft,
            storage,
            peers,
            transport,
            limits,
            runtime: OnceLock::new(),
            allocator: OnceLock::new(),
            firewall: OnceLock::new(),
            clock,
            apply_lock: CommitLock::default(),
            join_lock: CommitLock::default(),
            drain_mark_lock: CommitLock::default(),
            sealing_lock: CommitLock::default(),
            secrets: OnceLock::new(),
            membership: OnceLock::new(),
            network_reports: NetworkReports::default(),
            serving,
            routing,
            data_planes: OnceLock::new(),
            mesh: OnceLock::new(),
        }
    }

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

    /// The secrets key.
    pub(crate) fn secrets(&self) -> Result<&Secrets, Error> {
        self.secrets
            .get()
            .ok_or_else(|| Error::new(ErrorCode::StateUnavailable, "the node is starting"))
    }

    /// Access to this node's containers.
    pub(crate) fn runtime(&self) -> Result<&Runtime, Error> {
        self.runtime
            .get()
            .ok_or_else(|| Error::new(ErrorCode::LogsUnavailable, "the runtime is starting"))
    }

    /// Routing of the cluster as this node sees it.
    pub(crate) fn routing(&self) -> &ClusterRouting {
        &self.routing
    }

    /// Allocator of network address blocks, which allocates while this node leads.
    pub(crate) fn allocator(&self) -> Result<&SharedAllocator, Error> {
        self.allocator
            .get()
            .ok_or_else(|| Error::new(ErrorCode::IpamUnavailable, "the network is starting"))
    }

    /// Returns a proposer that works on any node: it forwards to the leader.
    pub(crate) fn submitter(&self) -> Submitter {
        Submitter::new(self)
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

/// Error of a removed node for every method but `Cluster.Status`.
pub(crate) fn removed() -> Error {
    Error::new(
        ErrorCode::ClusterUninitialized,
        "this node was removed from its cluster; stop it, empty its data directory and start it \
         again to use it anew",
    )
    .with("reason", "removed")
}

/// Error of a node without a cluster for a call that needs one.
pub(crate) fn uninitialized() -> Error {
    Error::new(
        ErrorCode::ClusterUninitialized,
        "this node has no cluster yet; run `jaco cluster init` or `jaco node join`",
    )
    .with("reason", "uninitialized")
}
