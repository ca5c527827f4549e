//! Cluster members in one process, each on its own loopback address.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
    time::{Duration, SystemTime},
};

use jaco_net::{
    pki::{ClusterCa, files::NodeFiles},
    tls::{CertSlot, Identity},
};
use jaco_policy::peer::members::Origin;
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::{
    Committed, LeaderProposer, ProposeError, RaftArgs, RaftHandle, RaftLimits, Storage,
    actor::spawn, storage,
};
use jaco_state::{State, batch, command, fsm};
use jaco_supervision::{ChildSpec, Strategy, SupervisorSpec, Tree};
use ractor::SpawnErr;
use tempfile::TempDir;

use crate::{
    clock::Clock,
    peer::{self, Heartbeat, HeartbeatHandler, PeerTransport, Sender, Services},
    telemetry::Metrics,
};

/// Timeout of every wait in these tests.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const PORT: u16 = 7001;

/// Returns a loopback address that is unique among concurrent tests and test processes.
fn address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let next = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let process = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, 64 | (process[2] & 63), process[3], next[1]);
    (IpAddr::V4(ip), PORT + u16::from(next[0])).into()
}

/// Records received heartbeats.
#[derive(Default)]
pub(super) struct HeartbeatRecorder {
    pub(super) received: Mutex<BTreeMap<String, Heartbeat>>,
    pub(super) applied: u64,
}

impl HeartbeatHandler for HeartbeatRecorder {
    fn next_heartbeat(&self) -> Heartbeat {
        Heartbeat {
            applied: self.applied,
            ..Heartbeat::default()
        }
    }

    fn on_heartbeat(&self, from: &Sender, heartbeat: Heartbeat) {
        self.received
            .lock()
            .unwrap()
            .insert(from.hostname.clone(), heartbeat);
    }
}

/// One member: raft and the peer transport only.
pub(super) struct Member {
    pub(super) hostname: String,
    pub(super) raft: RaftHandle,
    pub(super) transport: Arc<PeerTransport>,
    pub(super) tree: Option<Tree>,
    pub(super) recorder: Arc<HeartbeatRecorder>,
    pub(super) address: SocketAddr,
    spec: Spec,
}

/// Everything needed to start a member, or to start it again.
#[derive(Clone)]
struct Spec {
    storage: Arc<Storage>,
    identity: Arc<CertSlot>,
    ca_pem: String,
    services: Services,
    limits: RaftLimits,
}

/// Cluster of members.
pub(super) struct TestCluster {
    pub(super) members: Vec<Member>,
    _dir: TempDir,
}

impl TestCluster {
    /// Starts `n` members that know each other; a leader is still to be elected.
    pub(super) async fn start(n: u64, services: impl Fn(u64) -> Services) -> Self {
        Self::with(n, RaftLimits::default(), services).await
    }

    /// Like [`TestCluster::start`], with raft limits.
    pub(super) async fn with(
        n: u64,
        limits: RaftLimits,
        services: impl Fn(u64) -> Services,
    ) -> Self {
        let ca = ClusterCa::generate(SystemTime::now()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let nodes: Vec<_> = (1..=n)
            .map(|id| {
                let files = NodeFiles::bootstrap(&ca, &name(id), &[], SystemTime::now()).unwrap();
                (id, address(), files)
            })
            .collect();
        let payloads = nodes.iter().map(|(id, address, files)| {
            let print = files.cert.fingerprint().as_bytes().to_vec();
            command(
                "bootstrap",
                Clock::system().timestamp(),
                if *id == 1 {
                    Payload::ClusterInit(v1::ClusterInit {
                        cluster_id: "c".into(),
                        ca_cert: b"cert".to_vec(),
                        ca_key: b"key".to_vec(),
                        self_hostname: name(*id),
                        self_address: address.to_string(),
                        self_raft_id: *id,
                        self_server_cert_fingerprint: print,
                        ..Default::default()
                    })
                } else {
                    Payload::NodeJoin(v1::NodeJoin {
                        hostname: name(*id),
                        address: address.to_string(),
                        server_cert_fingerprint: print,
                        raft_id: *id,
                        ..Default::default()
                    })
                },
            )
        });
        let founding = batch("bootstrap", Clock::system().timestamp(), payloads.collect());
        let founded = fsm::apply(&State::default(), 1, &founding).unwrap();
        founded.result.unwrap();
        let rows: Vec<_> = founded.mutations.into_iter().map(Into::into).collect();
        let voters: Vec<_> = (1..=n).collect();
        let mut members = Vec::new();
        for (id, address, files) in nodes {
            let path = dir.path().join(id.to_string());
            storage::bootstrap_with_rows(&path, id, &voters, &rows).unwrap();
            let spec = Spec {
                storage: Storage::open(&path).unwrap(),
                identity: CertSlot::new(&Identity::node(&files).unwrap()),
                ca_pem: files.ca_pem.clone(),
                services: services(id),
                limits: limits.clone(),
            };
            members.push(Member::start(id, address, spec).await);
        }
        Self { members, _dir: dir }
    }

    /// Waits for a leader and returns its position.
    pub(super) async fn leader(&self) -> usize {
        let found = until(|| self.members.iter().position(|m| m.raft.status().leading)).await;
        assert!(found < self.members.len());
        found
    }

    /// Issues a token for `identity` through the leader.
    pub(super) async fn write(&self, identity: &str) -> Committed {
        self.propose(issue(identity)).await
    }

    /// Commits `command` through the leader.
    pub(super) async fn propose(&self, command: v1::Command) -> Committed {
        let deadline = tokio::time::Instant::now() + TEST_TIMEOUT;
        loop {
            let leader = self.leader().await;
            let member = &self.members[leader];
            match member.raft.propose(command.clone()).await {
                Ok(committed) => return committed,
                Err(ProposeError::Rejected(error)) => panic!("{error:?}"),
                Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error:?}"),
            }
        }
    }

    pub(super) async fn stop(self) {
        for mut member in self.members {
            member.stop().await;
        }
    }
}

/// Builds a command from `payload`.
pub(super) fn about_members(payload: Payload) -> v1::Command {
    command("test", Clock::system().timestamp(), payload)
}

/// Builds a command with an effect that is easy to find in the state.
fn issue(identity: &str) -> v1::Command {
    command(
        "test",
        Clock::system().timestamp(),
        Payload::TokenIssue(v1::TokenIssue {
            identity: identity.to_owned(),
            hashed_secret: crate::identity::hash(identity.as_bytes()).to_vec(),
            ..Default::default()
        }),
    )
}

pub(super) fn name(id: u64) -> String {
    format!("node-{id}")
}

impl Member {
    async fn start(id: u64, address: SocketAddr, spec: Spec) -> Self {
        let state = spec.storage.load_state().unwrap();
        let raft = RaftHandle::new(state, spec.limits.clone());
        let origin = Origin {
            hostname: name(id),
            raft_id: id,
            members: Vec::new(),
        };
        let mut member = Self {
            hostname: name(id),
            transport: PeerTransport::new(origin, raft.clone(), &Clock::system()),
            raft,
            tree: None,
            recorder: Arc::new(HeartbeatRecorder {
                applied: id,
                ..HeartbeatRecorder::default()
            }),
            address,
            spec,
        };
        member.run().await;
        member
    }

    /// Starts raft and the peer transport, as a node does.
    pub(super) async fn run(&mut self) {
        let args = RaftArgs {
            storage: self.spec.storage.clone(),
            handle: self.raft.clone(),
            transport: self.transport.raft_transport(),
            observer: Arc::new(()),
            on_fatal: Arc::new(|error| panic!("{error}")),
            limits: self.spec.limits.clone(),
        };
        let raft = ChildSpec::external("raft", "RaftActor", move |supervisor| {
            let args = args.clone();
            async move {
                let spawned = spawn(args, supervisor).await;
                spawned.map_err(|error| SpawnErr::StartupFailed(Box::new(error)))
            }
        });
        let root = SupervisorSpec::new(Strategy::RestForOne)
            .child(raft)
            .child(self.peers());
        self.tree = Some(Tree::start(&self.hostname, root).await.unwrap());
    }

    /// Starts the peer transport only; the applied index of this member stays as it is.
    pub(super) async fn run_without_raft(&mut self) {
        let root = SupervisorSpec::new(Strategy::RestForOne).child(self.peers());
        self.tree = Some(Tree::start(&self.hostname, root).await.unwrap());
    }

    /// Stops the member gracefully.
    pub(super) async fn stop(&mut self) {
        if let Some(tree) = self.tree.take() {
            tree.stop().await;
        }
        self.raft.closed().await;
    }

    fn peers(&self) -> ChildSpec {
        peer::supervisor(peer::Args {
            transport: self.transport.clone(),
            address: self.address,
            identity: self.spec.identity.clone(),
            ca_pem: self.spec.ca_pem.clone(),
            services: self.spec.services.clone(),
            heartbeat: self.recorder.clone(),
            metrics: Metrics::new(&self.hostname, Clock::system()),
        })
    }

    /// Index before the first entry of its log.
    pub(super) fn log_start(&self) -> u64 {
        self.spec.storage.log_range().0.index
    }

    /// Waits until exactly these members are connected.
    pub(super) async fn connected(&self, hosts: &[&str]) {
        let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        let mut connected = self.transport.connected();
        let wait = connected.wait_for(|connected| *connected == hosts);
        tokio::time::timeout(TEST_TIMEOUT, wait)
            .await
            .unwrap()
            .unwrap();
    }
}

/// Polls until `ready` returns a value.
pub(super) async fn until<T>(mut ready: impl FnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            match ready() {
                Some(value) => return value,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, wait).await.unwrap()
}
