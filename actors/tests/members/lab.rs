//! Whole nodes on separate addresses, for tests.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use jaco_actors::{Node, NodeBuilder, NodeConfig, clock::Clock, testing::unique_loopback_address};
use jaco_net::pki::{ClusterCa, NodeCert, files::NodeFiles};
use jaco_proto::{
    error::DecodedError,
    secret::SecretString,
    v1::{self, command::Payload},
};
use jaco_raftnode::{LeaderProposer as _, RaftStatus, State, StateReader as _, command};
use tempfile::TempDir;

/// Version that every node announces.
const VERSION: &str = "0.0.0-test";
/// Timeout of every wait in these tests.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A directory, addresses, and the node that runs on them.
pub(crate) struct Machine {
    dir: TempDir,
    name: String,
    api: SocketAddr,
    peers: SocketAddr,
    pub(crate) node: Node,
}

impl Machine {
    /// Starts a node that is not initialized.
    pub(crate) async fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (api, peers) = free_addresses();
        let node = Node::start(config(&dir, name, api, peers)).await.unwrap();
        Self {
            dir,
            name: name.to_owned(),
            api,
            peers,
            node,
        }
    }

    /// Like [`Machine::new`], with the time of `clock`.
    pub(crate) async fn with_clock(name: &str, clock: Clock) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (api, peers) = free_addresses();
        let config = builder(&dir, name, api, peers).clock(clock);
        let node = Node::start(config.build().unwrap()).await.unwrap();
        Self {
            dir,
            name: name.to_owned(),
            api,
            peers,
            node,
        }
    }

    /// Starts a node and initializes a cluster on it.
    pub(crate) async fn founder(name: &str) -> Self {
        let machine = Self::new(name).await;
        machine.node.client().init("lab").await.unwrap();
        machine
    }

    /// Starts a node and joins it to the cluster of `other`.
    pub(crate) async fn joined(name: &str, other: &Self) -> Self {
        let machine = Self::new(name).await;
        let token = other.token().await;
        machine.join(other, &token).await.unwrap();
        machine
    }

    /// Stops the node and starts it again on the same directory and addresses.
    pub(crate) async fn restart(self) -> Self {
        self.restart_at(&[]).await
    }

    /// Like [`Machine::restart`], with further addresses in the certificate.
    pub(crate) async fn restart_at(self, ips: &[IpAddr]) -> Self {
        let Self {
            dir,
            name,
            api,
            peers,
            node,
        } = self;
        node.stop().await;
        drop(node); // releases the lock of the directory
        let config = builder(&dir, &name, api, peers).certificate_ips(ips.iter().copied());
        let node = Node::start(config.build().unwrap()).await.unwrap();
        Self {
            dir,
            name,
            api,
            peers,
            node,
        }
    }

    /// Returns the certificate in force, from disk.
    pub(crate) fn certificate(&self) -> NodeCert {
        let path = self.dir.path().join(format!("data/node/{}.crt", self.name));
        NodeCert::from_pem(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    /// Writes a new certificate for this node's key to the waiting file (`.crt.next`), as left by a
    /// crash during a renewal.
    pub(crate) fn leave_certificate(&self) -> NodeCert {
        let dir = self.dir.path().join("data/node");
        let files = NodeFiles::load(&dir, &self.name).unwrap();
        let cluster = self.state().cluster.clone().unwrap();
        let secret = SecretString::new(String::from_utf8(cluster.ca_key.clone()).unwrap());
        let ca = ClusterCa::from_pem(&files.ca_pem, &secret).unwrap();
        let ips = files.cert.ips().unwrap();
        let cert = ca.issue(&files.key, &self.name, &ips, SystemTime::now());
        let cert = cert.unwrap();
        let path = dir.join(format!("{}.crt.next", self.name));
        std::fs::write(path, cert.pem()).unwrap();
        cert
    }

    /// Commits, on this leader, that `hostname` has certificate `cert` and an older version. The
    /// version is [`VERSION`] again once that node has announced itself.
    pub(crate) async fn publish(&self, hostname: &str, cert: &NodeCert) {
        let update = v1::NodeUpdateSelf {
            hostname: hostname.to_owned(),
            version: "0.0.0-older".to_owned(),
            server_cert_fingerprint: cert.fingerprint().as_bytes().to_vec(),
            ..Default::default()
        };
        self.write(Payload::NodeUpdateSelf(update)).await;
    }

    /// Commits a command on this node, which must lead.
    pub(crate) async fn write(&self, payload: Payload) {
        let command = command("test", prost_types::Timestamp::default(), payload);
        self.node.raft().unwrap().propose(command).await.unwrap();
    }

    /// Waits until `hostname` has announced itself.
    pub(crate) async fn announced(&self, hostname: &str) -> Arc<State> {
        self.until("a node's version", |state| {
            state.nodes[hostname].version == VERSION
        })
        .await
    }

    /// Issues a join token of this node's cluster.
    pub(crate) async fn token(&self) -> String {
        let request = v1::IssueJoinTokenRequest {};
        let issued = self.node.client().cluster().issue_join_token(request).await;
        issued.unwrap().into_inner().token
    }

    pub(crate) async fn join(&self, other: &Self, token: &str) -> Result<(), DecodedError> {
        self.join_at(&other.api.to_string(), token).await
    }

    pub(crate) async fn join_at(&self, peer: &str, token: &str) -> Result<(), DecodedError> {
        let request = v1::ClusterJoinRequest {
            peer_addr: peer.to_owned(),
            join_token: token.to_owned(),
        };
        self.node.client().cluster().join(request).await?;
        Ok(())
    }

    pub(crate) async fn remove(&self, hostname: &str, force: bool) -> Result<(), DecodedError> {
        let request = v1::NodeRemoveRequest {
            hostname: hostname.to_owned(),
            force,
        };
        let removed = self.node.client().cluster().node_remove(request).await;
        let Err(error) = removed.map_err(DecodedError::from) else {
            return Ok(());
        };
        // A call waits 8 s at most, and the removal goes on after it.
        let reason = error.details.get("reason");
        if reason.is_some_and(|reason| reason.starts_with("not done within")) {
            self.until("the removal", |state| !state.nodes.contains_key(hostname))
                .await;
            return Ok(());
        }
        Err(error)
    }

    pub(crate) fn state(&self) -> Arc<State> {
        self.node.raft().unwrap().state()
    }

    /// Waits until the newest state satisfies `check`.
    pub(crate) async fn until(&self, what: &str, check: impl Fn(&State) -> bool) -> Arc<State> {
        let mut states = self.node.raft().unwrap().subscribe();
        let found = states.wait_for(|state| check(state));
        match tokio::time::timeout(TEST_TIMEOUT, found).await {
            Ok(state) => state.unwrap().clone(),
            Err(_) => panic!("{} did not see in {TEST_TIMEOUT:?}: {what}", self.name),
        }
    }

    /// Path of the container engine's socket; nothing listens there by default.
    pub(crate) fn engine_socket(&self) -> std::path::PathBuf {
        self.dir.path().join("no-engine.sock")
    }

    /// Stops the node and releases its directory.
    pub(crate) async fn stop(self) -> Stopped {
        self.node.stop().await;
        Stopped {
            dir: self.dir,
            name: self.name,
            api: self.api,
            peers: self.peers,
        }
    }

    /// Waits until the raft status satisfies `check`.
    pub(crate) async fn raft_until(&self, what: &str, check: impl Fn(&RaftStatus) -> bool) {
        let raft = self.node.raft().unwrap();
        let mut status = raft.subscribe_status();
        let found = status.wait_for(|status| check(status));
        if tokio::time::timeout(TEST_TIMEOUT, found).await.is_err() {
            let (name, now) = (&self.name, raft.status());
            panic!("{name} did not see in {TEST_TIMEOUT:?}: {what}; it is {now:?}");
        }
    }

    /// Waits until this node responds that it was removed.
    pub(crate) async fn locked_out(&self) {
        let refused = async {
            loop {
                let list = v1::NodeListRequest {};
                let answer = self.node.client().cluster().node_list(list).await;
                let error = answer.map_err(|status| DecodedError::from_status(&status));
                match error {
                    Err(error) if error.code == "cluster_uninitialized" => {
                        assert_eq!(error.details["reason"], "removed");
                        return;
                    }
                    _ => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        let refused = tokio::time::timeout(TEST_TIMEOUT, refused).await;
        refused.expect("the node does not report its removal");
    }

    /// Waits until exactly these nodes are voters.
    pub(crate) async fn votes(&self, expected: &[&str]) {
        let raft = self.node.raft().unwrap();
        let what = format!("voters {expected:?}");
        self.raft_until(&what, |status| {
            names(&raft.state(), &status.voters) == expected
        })
        .await;
    }
}

fn names(state: &State, ids: &[u64]) -> Vec<String> {
    let rows = state.nodes.values();
    rows.filter(|node| ids.contains(&node.raft_id))
        .map(|node| node.hostname.clone())
        .collect()
}

fn config(dir: &TempDir, name: &str, api: SocketAddr, peers: SocketAddr) -> NodeConfig {
    builder(dir, name, api, peers).build().unwrap()
}

fn builder(dir: &TempDir, name: &str, api: SocketAddr, peers: SocketAddr) -> NodeBuilder {
    Node::builder(dir.path().join("data"))
        .hostname(name)
        .listen_addr(api)
        .cluster_addr(peers)
        .docker_socket(dir.path().join("no-engine.sock"))
        .version(VERSION)
}

/// The system clock with an offset.
#[derive(Clone, Default)]
pub(crate) struct Shifted(Arc<AtomicU64>);

impl Shifted {
    pub(crate) fn clock(&self) -> Clock {
        let by = self.0.clone();
        Clock::from_fn(move || SystemTime::now() + Duration::from_secs(by.load(Ordering::Relaxed)))
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_secs(), Ordering::Relaxed);
    }
}

/// A machine with its node stopped.
pub(crate) struct Stopped {
    dir: TempDir,
    name: String,
    api: SocketAddr,
    peers: SocketAddr,
}

impl Stopped {
    /// Writes these certificates as the one in force and the waiting one, and deletes all others: a
    /// state that a crash can leave.
    pub(crate) fn leave_certificates(&self, in_force: &NodeCert, waiting: Option<&NodeCert>) {
        let dir = self.dir.path().join("data/node");
        let file = |suffix: &str| dir.join(format!("{}.crt{suffix}", self.name));
        std::fs::write(file(""), in_force.pem()).unwrap();
        let _ = std::fs::remove_file(file(".former")); // may be missing
        let _ = std::fs::remove_file(file(".next"));
        if let Some(waiting) = waiting {
            std::fs::write(file(".next"), waiting.pem()).unwrap();
        }
    }

    /// Starts the node on the same directory and addresses.
    pub(crate) async fn start(self) -> Machine {
        self.start_at(&[]).await
    }

    /// Like [`Stopped::start`], with further addresses in the certificate.
    pub(crate) async fn start_at(self, ips: &[IpAddr]) -> Machine {
        let config = builder(&self.dir, &self.name, self.api, self.peers)
            .certificate_ips(ips.iter().copied());
        let node = Node::start(config.build().unwrap()).await.unwrap();
        Machine {
            dir: self.dir,
            name: self.name,
            api: self.api,
            peers: self.peers,
            node,
        }
    }
}

/// Returns addresses for the API and for peers.
fn free_addresses() -> (SocketAddr, SocketAddr) {
    let host = unique_loopback_address();
    ((host, 7000).into(), (host, 7001).into())
}
