//! Tests with endpoints on loopback.

mod budget;

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use rustls::crypto::ring;
use tokio::{sync::mpsc, time::timeout};

use super::{frame::FrameError, *};
use crate::{
    pki::{ClusterCa, Fingerprint, NodeCert, NodeKey, files::NodeFiles},
    tls::{CertSlot, Identity},
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The roster of a test: members by fingerprint.
#[derive(Debug, Default)]
struct TestRoster(Mutex<HashMap<Fingerprint, Arc<Member>>>);

impl TestRoster {
    fn add(&self, cert: &NodeCert, hostname: &str, address: SocketAddr) {
        let member = Member {
            hostname: hostname.to_owned(),
            raft_id: 1,
            address: Some(address),
        };
        let mut known = self.0.lock().unwrap();
        known.insert(cert.fingerprint(), Arc::new(member));
    }

    fn remove(&self, cert: &NodeCert) {
        self.0.lock().unwrap().remove(&cert.fingerprint());
    }
}

impl Roster for TestRoster {
    fn member(&self, fingerprint: &Fingerprint) -> Option<Arc<Member>> {
        self.0.lock().unwrap().get(fingerprint).cloned()
    }

    fn has_member_at(&self, address: IpAddr) -> bool {
        let known = self.0.lock().unwrap();
        let mut at = known.values().filter_map(|member| member.address);
        at.any(|at| at.ip() == address)
    }
}

struct Node {
    endpoint: Endpoint,
    address: SocketAddr,
    arrivals: mpsc::Receiver<IncomingPeer>,
    known: Arc<TestRoster>,
    cert: NodeCert,
    slot: Arc<CertSlot>,
}

fn files(ca: &ClusterCa, hostname: &str) -> NodeFiles {
    NodeFiles::bootstrap(ca, hostname, &[], SystemTime::now()).unwrap()
}

/// A node at 127.0.0.`last` with an empty roster.
fn node_with(files: &NodeFiles, ca_pem: &str, last: u8, settings: Settings) -> Node {
    let known = Arc::<TestRoster>::default();
    let slot = CertSlot::new(&Identity::node(files).unwrap());
    let endpoint = Endpoint::bind(Args {
        address: (Ipv4Addr::new(127, 0, 0, last), 0).into(),
        identity: slot.clone(),
        ca_pem: ca_pem.to_owned(),
        roster: known.clone(),
        settings,
    })
    .unwrap();
    let (sender, arrivals) = mpsc::channel(64);
    let serving = endpoint.clone();
    tokio::spawn(async move { serving.serve(sender).await });
    Node {
        address: endpoint.local_addr().unwrap(),
        endpoint,
        arrivals,
        known,
        cert: files.cert.clone(),
        slot,
    }
}

fn node(ca: &ClusterCa, hostname: &str, last: u8) -> Node {
    node_with(
        &files(ca, hostname),
        ca.cert_pem(),
        last,
        Settings::default(),
    )
}

fn ca() -> ClusterCa {
    ClusterCa::generate(SystemTime::now()).unwrap()
}

/// Two members with each other in their rosters.
fn pair() -> (Node, Node) {
    let ca = ca();
    let (a, b) = (node(&ca, "a", 1), node(&ca, "b", 2));
    a.known.add(&b.cert, "b", b.address);
    b.known.add(&a.cert, "a", a.address);
    (a, b)
}

impl Node {
    async fn arrival(&mut self) -> IncomingPeer {
        timeout(TIMEOUT, self.arrivals.recv())
            .await
            .unwrap()
            .unwrap()
    }

    async fn refused(&mut self) -> ConnectError {
        match self.arrival().await {
            IncomingPeer::Refused(_, why) => why,
            IncomingPeer::Member(connection) => panic!("{connection:?} was accepted"),
        }
    }

    async fn admitted(&mut self) -> Connection {
        match self.arrival().await {
            IncomingPeer::Member(connection) => connection,
            IncomingPeer::Refused(from, why) => panic!("{from}: {why}"),
        }
    }
}

/// Accepts the next stream of `connection`, which must be of `kind`, as frames.
async fn accept(connection: &Connection, kind: Kind, limit: usize) -> FrameReader {
    let mut stream = connection.accept_uni().await.unwrap();
    assert_eq!(stream.kind().await.unwrap(), kind);
    stream.frames(limit)
}

#[tokio::test]
async fn members_connect_and_know_each_other() {
    let (a, mut b) = pair();
    let here = a.endpoint.dial("b", b.address).await.unwrap();
    let there = b.admitted().await;
    assert_eq!(
        (here.member().hostname.as_str(), here.is_outgoing()),
        ("b", true)
    );
    assert_eq!(
        (there.member().hostname.as_str(), there.is_outgoing()),
        ("a", false)
    );
    assert_eq!(**there.fingerprints(), [a.cert.fingerprint()]);
    assert_eq!(here.incarnation(), {
        let again = a.endpoint.dial("b", b.address).await.unwrap();
        again.incarnation()
    });

    let mut stream = here.open_uni(Kind::Raft).await.unwrap();
    for frame in [&b"one"[..], b"", b"three"] {
        stream.frame(frame.to_vec()).await.unwrap();
    }
    stream.finish();
    let mut frames = accept(&there, Kind::Raft, 16).await;
    assert_eq!(frames.next().await.unwrap().unwrap(), b"one");
    assert_eq!(frames.next().await.unwrap().unwrap(), b"");
    assert_eq!(frames.next().await.unwrap().unwrap(), b"three");
    assert_eq!(frames.next().await.unwrap(), None);

    here.close(Reason::Duplicate);
    assert_eq!(there.closed().await, Closed::Remote(Reason::Duplicate));
    assert_eq!(here.closed().await, Closed::Local);
}

#[tokio::test]
async fn node_outside_the_roster_is_refused() {
    let (a, mut b) = pair();
    b.known.remove(&a.cert);
    let error = a.endpoint.dial("b", b.address).await.unwrap_err();
    assert!(error.is_not_member(), "{error}");
    b.refused().await;
    // In the other direction the dialling side is the one that refuses.
    let error = b.endpoint.dial("a", a.address).await.unwrap_err();
    assert!(!error.is_not_member(), "{error}");
}

#[tokio::test]
async fn reconnecting_checks_membership_again() {
    let (a, mut b) = pair();
    let here = a.endpoint.dial("b", b.address).await.unwrap();
    let there = b.admitted().await;
    b.known.remove(&a.cert);
    there.close(Reason::NotMember);
    assert!(here.closed().await.is_not_member());
    // Sessions are not resumed, so the certificate is checked again.
    let error = a.endpoint.dial("b", b.address).await.unwrap_err();
    assert!(error.is_not_member(), "{error}");
    b.refused().await;
}

#[tokio::test]
async fn certificate_of_another_ca_is_refused() {
    let ours = ca();
    let theirs = ca();
    let mut a = node(&ours, "a", 1);
    let other_files = files(&theirs, "b");
    let mut non_member = node_with(&other_files, ours.cert_pem(), 2, Settings::default());
    // The chain is verified even if the fingerprint is in the roster.
    a.known.add(&non_member.cert, "b", non_member.address);
    non_member.known.add(&a.cert, "a", a.address);
    let error = non_member.endpoint.dial("a", a.address).await.unwrap_err();
    assert!(!error.is_not_member(), "{error}");
    a.refused().await;
    assert!(a.endpoint.dial("b", non_member.address).await.is_err());
    non_member.refused().await;
}

#[tokio::test]
async fn certificate_for_another_hostname_is_refused() {
    let ca = ca();
    let (mut a, mut c) = (node(&ca, "a", 1), node(&ca, "c", 3));
    c.known.add(&a.cert, "a", a.address);
    // The roster of a maps the certificate of c to the hostname b.
    a.known.add(&c.cert, "b", c.address);
    assert!(a.endpoint.dial("b", c.address).await.is_err());
    c.refused().await;
    assert!(c.endpoint.dial("a", a.address).await.is_err());
    a.refused().await;
    // Another member than the dialled one answers.
    a.known.add(&c.cert, "c", c.address);
    assert!(a.endpoint.dial("b", c.address).await.is_err());
    assert!(a.endpoint.dial("c", c.address).await.is_ok());
}

#[tokio::test]
async fn a_node_does_not_connect_to_itself() {
    let mut a = node(&ca(), "a", 1);
    assert!(a.endpoint.dial("a", a.address).await.is_err());
    a.refused().await;
}

#[tokio::test]
async fn replaced_certificate_is_presented_in_the_next_handshake() {
    let ca = ca();
    let (a, mut b) = (node(&ca, "a", 1), node(&ca, "b", 2));
    a.known.add(&b.cert, "b", b.address);
    let renewed = files(&ca, "a");
    b.known.add(&renewed.cert, "a", a.address);
    assert!(
        a.endpoint
            .dial("b", b.address)
            .await
            .unwrap_err()
            .is_not_member()
    );
    b.refused().await;
    a.slot.replace(&Identity::node(&renewed).unwrap());
    let _here = a.endpoint.dial("b", b.address).await.unwrap();
    assert_eq!(
        **b.admitted().await.fingerprints(),
        [renewed.cert.fingerprint()]
    );
}

/// Renews the certificate of `files` for `hostname`, with the same key.
fn renew(ca: &ClusterCa, files: &NodeFiles, hostname: &str) -> NodeCert {
    let csr = files.key.request(hostname, &[]).unwrap();
    ca.sign_request(&csr, hostname, &[], SystemTime::now())
        .unwrap()
}

#[tokio::test]
async fn former_certificate_for_the_same_key_identifies_member() {
    let ca = ca();
    let (mut own, mut b) = (files(&ca, "a"), node(&ca, "b", 2));
    let former = own.cert.clone();
    own.cert = renew(&ca, &own, "a");
    let mut a = node_with(&own, ca.cert_pem(), 1, Settings::default());
    a.known.add(&b.cert, "b", b.address);
    b.known.add(&former, "a", a.address);
    // Without the former certificate in the chain, both directions fail.
    assert!(a.endpoint.dial("b", b.address).await.is_err());
    b.refused().await;
    assert!(b.endpoint.dial("a", a.address).await.is_err());
    a.refused().await;
    let showing = Identity::node(&own).unwrap().with_others([&former]);
    a.slot.replace(&showing);
    let both = [own.cert.fingerprint(), former.fingerprint()];
    // Held until the other side has admitted it: one that is dropped before is refused there.
    let _here = a.endpoint.dial("b", b.address).await.unwrap();
    assert_eq!(**b.admitted().await.fingerprints(), both);
    let there = b.endpoint.dial("a", a.address).await.unwrap();
    assert_eq!(**there.fingerprints(), both);
    a.admitted().await;
    // A roster that has the new certificate needs no other.
    b.known.remove(&former);
    b.known.add(&own.cert, "a", a.address);
    let _again = a.endpoint.dial("b", b.address).await.unwrap();
    b.admitted().await;
    b.known.remove(&own.cert);
    assert!(a.endpoint.dial("b", b.address).await.is_err());
    b.refused().await;
}

#[tokio::test]
async fn certificate_for_another_key_does_not_identify() {
    let ca = ca();
    let (victim, mut b) = (files(&ca, "a"), node(&ca, "b", 2));
    // The same hostname and CA, with the victim's certificate added to the chain.
    let thief = files(&ca, "a");
    let mut a = node_with(&thief, ca.cert_pem(), 1, Settings::default());
    let showing = Identity::node(&thief).unwrap().with_others([&victim.cert]);
    a.slot.replace(&showing);
    a.known.add(&b.cert, "b", b.address);
    b.known.add(&victim.cert, "a", a.address);
    assert!(a.endpoint.dial("b", b.address).await.is_err());
    b.refused().await;
    assert!(b.endpoint.dial("a", a.address).await.is_err());
    a.refused().await;
    // A certificate for the right key under another hostname is refused too.
    let mut renamed = files(&ca, "a");
    let former = renamed.cert.clone();
    renamed.cert = renew(&ca, &renamed, "c");
    b.known.add(&former, "a", a.address);
    a.slot
        .replace(&Identity::node(&renamed).unwrap().with_others([&former]));
    assert!(a.endpoint.dial("b", b.address).await.is_err());
    b.refused().await;
}

#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let ca = ca();
    let key = NodeKey::generate().unwrap();
    let long_ago = SystemTime::now() - 2 * crate::pki::LIFETIME;
    let cert = ca.issue(&key, "old", &[], long_ago).unwrap();
    let (ca_pem, hostname) = (ca.cert_pem().to_owned(), "old".to_owned());
    let expired = NodeFiles {
        hostname,
        key,
        cert,
        ca_pem,
    };
    let mut a = node(&ca, "a", 1);
    let mut old = node_with(&expired, ca.cert_pem(), 2, Settings::default());
    a.known.add(&old.cert, "old", old.address);
    old.known.add(&a.cert, "a", a.address);
    assert!(old.endpoint.dial("a", a.address).await.is_err());
    a.refused().await;
    assert!(a.endpoint.dial("old", old.address).await.is_err());
    old.refused().await;
}

/// Connects with a client that has no certificate and offers `alpn`; returns how it ended.
async fn foreign_client(to: SocketAddr, ca: &ClusterCa, alpn: &[u8]) -> quinn::ConnectionError {
    let mut roots = rustls::RootCertStore::empty();
    for cert in crate::pki::certificates(ca.cert_pem()).unwrap() {
        roots.add(cert).unwrap();
    }
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![alpn.to_vec()];
    let quic = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(quic));
    match endpoint.connect_with(config, to, "a").unwrap().await {
        Ok(connection) => connection.closed().await,
        Err(error) => error,
    }
}

#[tokio::test]
async fn client_without_certificate_or_protocol_is_refused() {
    let ca = ca();
    let mut a = node(&ca, "a", 1);
    for alpn in [ALPN, b"h3"] {
        let error = foreign_client(a.address, &ca, alpn).await;
        assert!(
            matches!(error, quinn::ConnectionError::ConnectionClosed(_)),
            "{error}"
        );
        a.refused().await;
    }
}

#[tokio::test]
async fn random_datagrams_do_not_disturb_connections() {
    let (a, mut b) = pair();
    let here = a.endpoint.dial("b", b.address).await.unwrap();
    let there = b.admitted().await;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut seed = 1_u32;
    for length in (1..1400).step_by(3) {
        let bytes: Vec<u8> = (0..length)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                seed.to_be_bytes()[0]
            })
            .collect();
        socket.send_to(&bytes, b.address).unwrap();
        // The same bytes with the header form of a handshake packet.
        let mut long = bytes.clone();
        long[0] |= 0xc0;
        socket.send_to(&long, b.address).unwrap();
    }
    let mut stream = here.open_uni(Kind::Raft).await.unwrap();
    stream.frame(b"still here".to_vec()).await.unwrap();
    let mut frames = accept(&there, Kind::Raft, 16).await;
    assert_eq!(frames.next().await.unwrap().unwrap(), b"still here");
    assert_eq!(b.endpoint.open_connections(), 1);
}

#[tokio::test]
async fn frame_beyond_the_limit_is_refused() {
    let (a, mut b) = pair();
    let here = a.endpoint.dial("b", b.address).await.unwrap();
    let there = b.admitted().await;
    let mut stream = here.open_uni(Kind::Heartbeat).await.unwrap();
    stream.frame(vec![0; 17]).await.unwrap();
    let mut frames = accept(&there, Kind::Heartbeat, 16).await;
    let error = StreamError::Frame(FrameError::TooLong {
        length: 17,
        limit: 16,
    });
    assert_eq!(frames.next().await.unwrap_err(), error);
}

#[tokio::test]
async fn dropping_a_stream_resets_it_for_the_peer() {
    let (a, mut b) = pair();
    let here = a.endpoint.dial("b", b.address).await.unwrap();
    let there = b.admitted().await;
    let (mut to, from) = here.open_bi(Kind::Call).await.unwrap();
    to.frame(b"begun".to_vec()).await.unwrap();
    let (answer, mut call) = there.accept_bi().await.unwrap();
    assert_eq!(call.kind().await.unwrap(), Kind::Call);
    let mut frames = call.frames(16);
    assert_eq!(frames.next().await.unwrap().unwrap(), b"begun");
    let stopped = answer.stopped();
    drop((to, from));
    assert_eq!(frames.next().await.unwrap_err(), StreamError::Reset);
    timeout(TIMEOUT, stopped).await.unwrap();
}

#[tokio::test]
async fn streams_beyond_the_limit_wait() {
    let ca = ca();
    let few = Settings {
        calls: 2,
        ..Settings::default()
    };
    let a = node(&ca, "a", 1);
    let mut b = node_with(&files(&ca, "b"), ca.cert_pem(), 2, few);
    a.known.add(&b.cert, "b", b.address);
    b.known.add(&a.cert, "a", a.address);
    let here = a.endpoint.dial("b", b.address).await.unwrap();
    let there = b.admitted().await;
    let first = here.open_bi(Kind::Call).await.unwrap();
    let _second = here.open_bi(Kind::Call).await.unwrap();
    let mut third = Box::pin(here.open_bi(Kind::Call));
    assert!(futures_poll(&mut third).await.is_none());
    drop(first);
    drop(there.accept_bi().await.unwrap());
    timeout(TIMEOUT, third).await.unwrap().unwrap();
}

/// Polls `future` once.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = std::future::ready(()) => None,
    }
}

/// Captures the first datagram of a dialling client.
async fn first_datagram(client: &Node) -> Vec<u8> {
    let trap = tokio::net::UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 9), 0))
        .await
        .unwrap();
    let (endpoint, at) = (client.endpoint.clone(), trap.local_addr().unwrap());
    let dialling = tokio::spawn(async move { endpoint.dial("b", at).await });
    let mut buffer = vec![0; 2048];
    let length = trap.recv(&mut buffer).await.unwrap();
    dialling.abort();
    buffer.truncate(length);
    buffer
}

#[tokio::test]
async fn half_open_handshakes_leave_room_for_members() {
    let ca = ca();
    let small = Settings {
        unknown: 4,
        unvalidated: 2,
        ..Settings::default()
    };
    let mut b = node_with(&files(&ca, "b"), ca.cert_pem(), 2, small);
    let member = node(&ca, "a", 1);
    member.known.add(&b.cert, "b", b.address);
    b.known.add(&member.cert, "a", member.address);
    let non_member = node(&ca, "x", 3);
    for last in 10..50 {
        let datagram = first_datagram(&non_member).await;
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, last), 0)).unwrap();
        socket.send_to(&datagram, b.address).unwrap();
    }
    // The member's address must be validated now, which quinn does by itself.
    let _dialled = member.endpoint.dial("b", b.address).await.unwrap();
    b.admitted().await;
    assert!(
        b.endpoint.open_connections() <= 4,
        "{}",
        b.endpoint.open_connections()
    );
}

#[tokio::test]
async fn spoofed_handshakes_do_not_lock_a_member_out() {
    let ca = ca();
    let mut b = node(&ca, "b", 2);
    let member = node(&ca, "a", 1);
    member.known.add(&b.cert, "b", b.address);
    b.known.add(&member.cert, "a", member.address);
    let non_member = node(&ca, "x", 3);
    // More than the limits per address and for unvalidated attempts.
    for _ in 0..40 {
        let datagram = first_datagram(&non_member).await;
        let socket = UdpSocket::bind((member.address.ip(), 0)).unwrap();
        socket.send_to(&datagram, b.address).unwrap();
    }
    let _dialled = member.endpoint.dial("b", b.address).await.unwrap();
    b.admitted().await;
}

/// Resolves no certificate; rustls then sends the alert `access_denied`, like a refusal.
#[derive(Debug)]
struct NoCertificate;

impl rustls::server::ResolvesServerCert for NoCertificate {
    fn resolve(
        &self,
        _hello: rustls::server::ClientHello<'_>,
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }
}

#[tokio::test]
async fn unauthenticated_refusal_is_not_a_members() {
    let ca = ca();
    let (a, b) = (node(&ca, "a", 1), files(&ca, "b"));
    let mut tls = rustls::ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(NoCertificate));
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let address = (Ipv4Addr::new(127, 0, 0, 2), 0).into();
    let unauthenticated = quinn::Endpoint::server(config, address).unwrap();
    let address = unauthenticated.local_addr().unwrap();
    tokio::spawn(async move {
        while let Some(incoming) = unauthenticated.accept().await {
            let _ = incoming.await; // the handshake fails
        }
    });
    a.known.add(&b.cert, "b", address);
    let error = a.endpoint.dial("b", address).await.unwrap_err();
    assert!(!error.is_not_member(), "{error}");
    assert!(error.to_string().contains("not a member"), "{error}");
}
