//! Names that are forwarded, with upstream servers of every kind.

use std::sync::{Mutex, atomic::AtomicUsize};

use hickory_proto::rr::{
    Record, RecordData as _,
    rdata::{A, MX, TXT},
};
use jaco_net::dns::{Answer, Handler, Server, Transport};
use tokio::sync::oneshot;

use super::*;
use crate::lock::lock;

/// An upstream server that makes its answers with a function.
struct Upstream<F> {
    answer: F,
    queries: Arc<AtomicUsize>,
}

impl<F> Handler for Upstream<F>
where
    F: Fn(Message, Transport) -> Option<Message> + Send + Sync + 'static,
{
    fn handle(
        &self,
        message: &[u8],
        _: SocketAddr,
        transport: Transport,
        answer: &mut Vec<u8>,
    ) -> Answer {
        self.queries.fetch_add(1, Ordering::SeqCst);
        let query = Message::from_vec(message).unwrap();
        match (self.answer)(query, transport) {
            Some(made) => {
                *answer = made.to_vec().unwrap();
                Answer::Ready
            }
            None => Answer::None,
        }
    }
}

/// Starts a server; it lives as long as the test's runtime. Returns its address and its count of
/// queries.
pub(super) async fn upstream(
    answer: impl Fn(Message, Transport) -> Option<Message> + Send + Sync + 'static,
) -> (HostPort, Arc<AtomicUsize>) {
    let server = Server::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = server.local_addr().unwrap();
    let queries = Arc::<AtomicUsize>::default();
    let handler = Upstream {
        answer,
        queries: queries.clone(),
    };
    tokio::spawn(server.serve(Arc::new(handler), Default::default()));
    (host_port(address), queries)
}

pub(super) fn host_port(address: SocketAddr) -> HostPort {
    HostPort {
        host: address.ip().to_string(),
        port: address.port(),
    }
}

pub(super) fn coded(query: Message, code: ResponseCode) -> Message {
    let mut message = query.into_response();
    message.metadata.response_code = code;
    message
}

/// An answer with one address.
pub(super) fn addressed(query: Message, ttl: u32) -> Message {
    let name = query.queries[0].name().clone();
    let mut message = query.into_response();
    let data = RData::A(A([192, 0, 2, 1].into()));
    message.add_answer(Record::from_rdata(name, ttl, data));
    message
}

pub(super) async fn forwarding(forwarders: Vec<HostPort>, timeout_ms: u64) -> World {
    let config = DnsConfig {
        forwarders,
        forwarder_timeout: Duration::from_millis(timeout_ms),
        ..DnsConfig::default()
    };
    let world = world_with(config, shop()).await;
    world.ensure("front", FRONT);
    world.resolves(FRONT, "web", &["10.1.0.2"]).await;
    world
}

/// Long enough for any answer on this machine.
pub(super) const LONG: u64 = 8_000;
/// Time that servers have which never answer.
pub(super) const SHORT: u64 = 150;

#[tokio::test]
async fn answers_are_relayed_with_code_and_records() {
    let (server, _) = upstream(|query, _| {
        let name = query.queries[0].name().clone();
        let mut reply = coded(query, ResponseCode::NoError);
        let exchange = Name::from_ascii("Mail.example.").unwrap();
        let mx = MX::new(10, exchange).into_rdata();
        reply.add_answer(Record::from_rdata(name.clone(), 77, mx));
        let text = TXT::new(vec!["v=spf1".to_owned()]).into_rdata();
        reply.add_additional(Record::from_rdata(name, 5, text));
        Some(reply)
    })
    .await;
    let world = forwarding(vec![server], LONG).await;
    let asked = query("eXample.com", RecordType::MX);
    for _ in 0..2 {
        let reply = world.ask(FRONT, &asked, false).await;
        assert_eq!(reply.metadata.id, asked.metadata.id);
        assert!(!reply.metadata.authoritative && reply.metadata.recursion_available);
        assert_eq!(reply.queries[0].name().to_string(), "eXample.com.");
        assert_eq!(reply.answers[0].data.record_type(), RecordType::MX);
        assert!((1..=77).contains(&reply.answers[0].ttl));
        assert_eq!(reply.additionals[0].data.record_type(), RecordType::TXT);
    }
}

#[tokio::test]
async fn cached_answer_is_not_asked_again() {
    let (server, queries) = upstream(|query, _| Some(addressed(query, 60))).await;
    let world = forwarding(vec![server], LONG).await;
    world.ensure("back", BACK);
    for gateway in [FRONT, FRONT, BACK] {
        let found = world.addresses(gateway, "www.example.com").await;
        assert_eq!(found, ["192.0.2.1"]);
    }
    assert_eq!(
        queries.load(Ordering::SeqCst),
        1,
        "the cache serves all networks"
    );
    world.addresses(FRONT, "other.example.com").await;
    assert_eq!(queries.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn equal_questions_share_one_answer() {
    let (release, released) = oneshot::channel::<()>();
    let released = Mutex::new(Some(released));
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = host_port(socket.local_addr().unwrap());
    let queries = Arc::<AtomicUsize>::default();
    let count = queries.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 600];
        loop {
            let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            let released = lock(&released).take();
            if let Some(released) = released {
                released.await.unwrap();
            }
            let answer = addressed(Message::from_vec(&buffer[..length]).unwrap(), 0);
            socket
                .send_to(&answer.to_vec().unwrap(), client)
                .await
                .unwrap();
        }
    });
    let world = forwarding(vec![server], LONG).await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    client.connect(world.at(FRONT)).await.unwrap();
    for _ in 0..5 {
        let asked = query("www.example.com", RecordType::A).to_vec().unwrap();
        client.send(&asked).await.unwrap();
    }
    // Answered at once, so all five were received before.
    assert_eq!(world.addresses(FRONT, "web").await, ["10.1.0.2"]);
    release.send(()).unwrap();
    let mut buffer = [0; 600];
    for _ in 0..5 {
        timeout(PATIENCE, client.recv(&mut buffer))
            .await
            .unwrap()
            .unwrap();
    }
    assert_eq!(queries.load(Ordering::SeqCst), 1);
    world.addresses(FRONT, "www.example.com").await;
    assert_eq!(
        queries.load(Ordering::SeqCst),
        2,
        "a time to live of zero is not kept"
    );
}

#[tokio::test]
async fn failing_servers_are_passed_over() {
    let mut servers = Vec::new();
    for code in [
        ResponseCode::ServFail,
        ResponseCode::Refused,
        ResponseCode::NotImp,
    ] {
        servers.push(upstream(move |query, _| Some(coded(query, code))).await.0);
    }
    let closed = free_port().await;
    servers.push(host_port(([127, 0, 0, 1], closed).into()));
    let (nx, _) = upstream(|query, _| Some(coded(query, ResponseCode::NXDomain))).await;
    let (unused, queries) = upstream(|query, _| Some(addressed(query, 60))).await;
    servers.extend([nx, unused]);
    let world = forwarding(servers, LONG).await;
    let reply = world
        .ask(FRONT, &query("www.example.com", RecordType::A), false)
        .await;
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(queries.load(Ordering::SeqCst), 0, "NXDOMAIN ends the chain");
}

#[tokio::test]
async fn lying_servers_are_not_believed() {
    let liar = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = host_port(liar.local_addr().unwrap());
    tokio::spawn(async move {
        let mut buffer = [0; 600];
        loop {
            let (length, client) = liar.recv_from(&mut buffer).await.unwrap();
            let query = Message::from_vec(&buffer[..length]).unwrap();
            let honest = addressed(query, 60);
            let mut other_id = honest.clone();
            other_id.metadata.id ^= 0x0101;
            let mut other_name = honest.clone();
            let name = Name::from_ascii("www.attacker.com.").unwrap();
            other_name.queries[0].set_name(name);
            let mut no_answer = honest.clone();
            no_answer.metadata.message_type = MessageType::Query;
            let mut lies: Vec<_> = [other_id, other_name, no_answer]
                .map(|lie| lie.to_vec().unwrap())
                .into();
            let mut other_case = honest.to_vec().unwrap();
            other_case[13] ^= 0x20;
            lies.push(other_case);
            let mut cut = honest.to_vec().unwrap();
            cut.pop();
            lies.push(cut);
            for lie in lies {
                liar.send_to(&lie, client).await.unwrap();
            }
        }
    });
    let (honest, queries) = upstream(|query, _| Some(addressed(query, 9))).await;
    let world = forwarding(vec![address, honest], SHORT).await;
    let reply = world
        .ask(FRONT, &query("www.example.com", RecordType::A), false)
        .await;
    assert_eq!(reply.answers[0].ttl, 9);
    assert_eq!(queries.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn silent_servers_end_in_server_failure() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server = host_port(silent.local_addr().unwrap());
    let world = forwarding(vec![server.clone(), server], SHORT).await;
    let asked = query("www.example.com", RecordType::A);
    for tcp in [false, true] {
        let reply = world.ask(FRONT, &asked, tcp).await;
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
    }
    assert_eq!(
        world.addresses(FRONT, "web").await,
        ["10.1.0.2"],
        "own names go on"
    );
}

#[tokio::test]
async fn dead_first_server_delays_two_queries_only() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let first = host_port(silent.local_addr().unwrap());
    let (second, _) = upstream(|query, _| Some(addressed(query, 60))).await;
    let world = forwarding(vec![first, second], SHORT).await;
    for n in 0..20 {
        let found = world.addresses(FRONT, &format!("n{n}.example.com")).await;
        assert_eq!(found, ["192.0.2.1"]);
    }
    let mut buffer = [0; 600];
    for _ in 0..2 {
        assert!(silent.try_recv(&mut buffer).is_ok());
    }
    let again = silent.try_recv(&mut buffer).unwrap_err();
    assert_eq!(again.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn slow_name_leaves_other_names_alone() {
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&asked);
    let (first, _) = upstream(move |query, _| {
        let name = query.queries[0].name().to_string();
        let is_slow = name.starts_with("slow");
        lock(&seen).insert(name);
        (!is_slow).then(|| addressed(query, 60))
    })
    .await;
    let (second, _) = upstream(|query, _| Some(addressed(query, 0))).await;
    let world = forwarding(vec![first, second], SHORT).await;
    for n in 0..6 {
        assert_eq!(world.addresses(FRONT, "slow.example.com").await.len(), 1);
        let name = format!("n{n}.example.com");
        assert_eq!(world.addresses(FRONT, &name).await, ["192.0.2.1"]);
        assert!(lock(&asked).contains(&format!("{name}.")));
    }
}

#[tokio::test]
async fn truncated_answers_are_fetched_over_tcp() {
    let (server, queries) = upstream(|query, transport| {
        let name = query.queries[0].name().clone();
        let mut reply = coded(query, ResponseCode::NoError);
        match transport {
            Transport::Udp => reply.metadata.truncation = true,
            Transport::Tcp => {
                for n in 0..200 {
                    let data = RData::A(A([192, 0, 2, n].into()));
                    reply.add_answer(Record::from_rdata(name.clone(), 60, data));
                }
            }
        }
        Some(reply)
    })
    .await;
    let world = forwarding(vec![server], LONG).await;
    let asked = query("www.example.com", RecordType::A);
    let reply = world.ask(FRONT, &asked, false).await;
    assert!(reply.metadata.truncation && reply.answers.is_empty());
    let reply = world.ask(FRONT, &asked, true).await;
    assert!(!reply.metadata.truncation);
    assert_eq!(reply.answers.len(), 200);
    assert_eq!(queries.load(Ordering::SeqCst), 2, "one over each transport");
}

#[tokio::test]
async fn servers_of_the_host_are_the_default() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("resolv.conf");
    std::fs::write(&path, "nameserver 127.0.0.11\nnameserver 10.244.3.1\n").unwrap();
    let mut config = DnsConfig {
        resolv_conf: path.clone(),
        ..DnsConfig::default()
    };
    let names = |config: &DnsConfig| -> Vec<String> {
        let found = super::super::upstream::configured(config, Pool::default());
        found.iter().map(ToString::to_string).collect()
    };
    assert_eq!(names(&config), [""; 0]);
    std::fs::write(&path, "nameserver 192.0.2.7\nnameserver fd00::53\n").unwrap();
    assert_eq!(names(&config), ["192.0.2.7:53", "[fd00::53]:53"]);
    config.forwarders = vec![HostPort {
        host: "localhost".to_owned(),
        port: 54,
    }];
    assert_eq!(names(&config), ["localhost:54"]);
}
