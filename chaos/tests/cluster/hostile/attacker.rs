//! Tools of an attacker that can reach the machines of a cluster, and checks of the consequences.

use std::{
    io::Read as _,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
    time::{Instant, SystemTime},
};

use hyper_util::rt::TokioIo;
use jaco_chaos::{Lab, Registers, SecretScanner, lab::netns, lab::node::PEER_PORT};
use jaco_net::{
    pki::{ClusterCa, Fingerprint, NodeKey, files::NodeFiles},
    quic::{self, Endpoint, Member, Roster, Settings},
    tls::{CertSlot, Identity},
};
use jaco_proto::{error::DecodedError, v1};
use jaco_raftnode::archive::{self, Archive, ArchiveLimits};
use tonic::transport::{Certificate, Channel, ClientTlsConfig};

use crate::hostile::LIMIT;

/// Accepts the dialled member unconditionally, so that only the other side decides.
#[derive(Debug)]
struct AcceptMember(Arc<Member>, Fingerprint);

impl Roster for AcceptMember {
    fn member(&self, fingerprint: &Fingerprint) -> Option<Arc<Member>> {
        (*fingerprint == self.1).then(|| Arc::clone(&self.0))
    }

    fn has_member_at(&self, _: IpAddr) -> bool {
        true
    }
}

/// `host:port` of a node's peer transport.
pub(crate) fn peer_address(lab: &Lab, index: u8) -> SocketAddr {
    (lab.node(index).address(), PEER_PORT).into()
}

/// A peer endpoint of `files` in a namespace, at any port of `address`, that dials node `target`.
pub(crate) fn endpoint(
    lab: &Lab,
    (namespace, address): (&str, IpAddr),
    files: &NodeFiles,
    target: u8,
    settings: Settings,
) -> Endpoint {
    let theirs = files_of(lab, target);
    let host = theirs.hostname.clone();
    let member = Member {
        raft_id: 1,
        address: Some(peer_address(lab, target)),
        hostname: host,
    };
    let args = quic::Args {
        address: (address, 0).into(),
        identity: CertSlot::new(&Identity::node(files).unwrap()),
        ca_pem: theirs.ca_pem,
        roster: Arc::new(AcceptMember(Arc::new(member), theirs.cert.fingerprint())),
        settings,
    };
    let runtime = tokio::runtime::Handle::current();
    let bound = netns::within(namespace, move || {
        let _inside = runtime.enter();
        Endpoint::bind(args)
    });
    bound.unwrap().unwrap()
}

/// Key and certificates of a node, read from its disk.
pub(crate) fn files_of(lab: &Lab, index: u8) -> NodeFiles {
    let node = lab.node(index);
    NodeFiles::load(&node.path("data/node"), node.host()).unwrap()
}

/// Key and certificate signed by `ca`.
pub(crate) fn forged(ca: &ClusterCa, hostname: &str, address: IpAddr) -> NodeFiles {
    NodeFiles::bootstrap(ca, hostname, &[address], SystemTime::now()).unwrap()
}

/// The archive of a backup taken through a node.
pub(crate) async fn backup(lab: &Lab, index: u8) -> Archive {
    let mut cluster = lab.node(index).api().cluster();
    let mut chunks = cluster
        .backup(v1::BackupRequest {})
        .await
        .unwrap()
        .into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.message().await.unwrap() {
        bytes.extend(chunk.data);
    }
    archive::read(&bytes[..], "", &ArchiveLimits::default()).unwrap()
}

/// A connection from a namespace to a node's API port, without credentials.
pub(crate) fn channel(lab: &Lab, index: u8, from: &str) -> Channel {
    channel_under(lab, index, from, &files_of(lab, index).ca_pem)
}

/// Like [`channel`], for a client that trusts the authority `ca_pem`.
pub(crate) fn channel_under(lab: &Lab, index: u8, from: &str, ca_pem: &str) -> Channel {
    let node = lab.node(index);
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca_pem))
        .domain_name(node.host());
    let (address, from) = (node.api_address(), from.to_owned());
    tonic::transport::Endpoint::from_shared(format!("https://{address}"))
        .unwrap()
        .tls_config(tls)
        .unwrap()
        .timeout(LIMIT)
        .connect_with_connector_lazy(tower::service_fn(move |_| {
            let from = from.clone();
            async move {
                let stream = netns::connect(&from, address).await;
                stream.map(TokioIo::new).map_err(std::io::Error::other)
            }
        }))
}

/// A join request of a machine called `name`.
pub(crate) fn join_request(name: &str, address: SocketAddr, token: &str) -> v1::NodeJoinRequest {
    let key = NodeKey::generate().unwrap();
    v1::NodeJoinRequest {
        name: name.to_owned(),
        join_token: token.to_owned(),
        csr_pem: key.request(name, &[address.ip()]).unwrap().into_bytes(),
        advertise_addr: address.to_string(),
        wireguard_pubkey: vec![7; 32],
        grpc_address: String::new(),
        sent_at: None,
        ipam_pool: String::new(),
        ipam_block: 0,
    }
}

/// A new join token of the cluster of node `index`.
pub(crate) async fn join_token(lab: &Lab, index: u8) -> String {
    let mut cluster = lab.node(index).api().cluster();
    let issued = cluster.issue_join_token(v1::IssueJoinTokenRequest {}).await;
    issued.unwrap().into_inner().token
}

/// The error code of a refused request; the success value if it was not refused.
pub(crate) fn code<T: std::fmt::Debug>(
    result: Result<T, impl Into<DecodedError>>,
) -> Result<String, T> {
    match result {
        Ok(done) => Err(done),
        Err(error) => Ok(error.into().code),
    }
}

/// Sends random datagrams to an address: some begin like QUIC packets.
pub(crate) fn noise(namespace: &str, to: SocketAddr, count: usize) {
    let sent = netns::within(namespace, || {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        let mut random = std::fs::File::open("/dev/urandom")?;
        for n in 0..count {
            let mut bytes = vec![0; [1, 20, 100, 1200, 1400][n % 5]];
            random.read_exact(&mut bytes)?;
            // Every second large datagram begins with the long header of a version 1 Initial
            // packet.
            if n % 2 == 0 && bytes.len() > 20 {
                bytes[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
            }
            // A full send queue drops the datagram, as a network would.
            let _ = socket.send_to(&bytes, to);
        }
        Ok::<_, std::io::Error>(())
    });
    sent.unwrap().unwrap();
}

/// Resident memory of a node's daemon, in MiB.
pub(crate) fn memory(lab: &Lab, index: u8) -> u64 {
    let pid = lab.node(index).pid().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib: u64 = line
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    kib / 1024
}

/// Clients that write throughout a test, and the leader at its start.
pub(crate) struct BackgroundClients {
    clients: Registers,
    leader: u8,
}

impl BackgroundClients {
    /// Starts the clients on these nodes.
    pub(crate) async fn start(lab: &Lab, nodes: &[u8], seed: u64) -> Self {
        let apis = nodes.iter().map(|index| lab.node(*index).api().clone());
        let this = Self {
            clients: Registers::start(apis.collect(), 2, seed),
            leader: lab.leader().await.unwrap(),
        };
        this.check_unaffected(lab, "nothing").await;
        this
    }

    /// Checks that writes are still accepted, and that the leader is the same.
    pub(crate) async fn check_unaffected(&self, lab: &Lab, attack: &str) {
        let now = Instant::now();
        let took = self.clients.next_accepted(now, LIMIT).await.unwrap();
        let leader = lab.leader().await.unwrap();
        println!(
            "after {attack}: next write in {took:?}, n1 has {} MiB",
            memory(lab, 1)
        );
        assert_eq!(leader, self.leader, "{attack} changed the leader");
    }

    /// Stops the clients and checks on each of these nodes that no acknowledged write was lost.
    pub(crate) async fn stop(self, lab: &Lab, nodes: &[u8]) {
        let outcome = self.clients.stop().await.unwrap();
        println!("errors: {:?}", outcome.errors);
        lab.wait_same_state().await.unwrap();
        for index in nodes {
            let api = lab.node(*index).api().linearizable();
            outcome.check(&api).await.unwrap();
        }
    }
}

/// Adds the secret part of a join token to the markers.
pub(crate) fn mark_token(scanner: &mut SecretScanner, name: &str, token: &str) {
    // The last part is the digest of a certificate, which is public.
    let secret = token.split('.').nth(1).unwrap_or(token);
    scanner.add(name, secret.as_bytes());
}

/// Adds the longest line of a private key to the markers.
pub(crate) fn mark_key(scanner: &mut SecretScanner, name: &str, pem: &str) {
    let lines = pem.lines().filter(|line| !line.starts_with('-'));
    let line = lines.max_by_key(|line| line.len()).unwrap();
    scanner.add(name, line.as_bytes());
}

/// Checks that no log of the lab contains a secret.
pub(crate) fn check_no_leaks(lab: &Lab, scanner: &SecretScanner) {
    for node in lab.nodes() {
        let found = scanner.found_in(node.host(), node.log().as_bytes());
        assert!(found.is_empty(), "{found:#?}");
    }
}
