//! Actors of the ingress are killed while clients are connected and others connect, over TCP and QUIC.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use jaco_chaos::{Api, Rng, lab::netns, size, until};
use jaco_proto::{ErrorCode, v1::FailureMode};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufStream,
};
use tonic::Code;

use crate::{
    client::handshake,
    fixture::{DOMAIN, LIMIT, NODES, Running, Settings},
    load::Target,
    service::{PLAIN, PUBLISHED, Service},
};

const REPLICAS: u32 = 2;
/// Path of the ingress in the tree of actors.
const INGRESS: &str = "node/ingress/";
/// Kinds of actors that are killed first, once each.
const KINDS: [&str; 3] = ["ProxyActor", "PortActor", "CertActor"];
/// Failures that a supervisor mends within its period.
const INTENSITY: usize = 3;
/// The period, and some time for the restarts in it.
const PERIOD: Duration = Duration::from_secs(62);
/// Longest time for which a listener may refuse connections.
const REFUSED_MAX: Duration = Duration::from_millis(100);
/// Pause between two connections of the prober to one listener.
const PROBE_PAUSE: Duration = Duration::from_millis(5);
/// Wait for a connection or an answer that should come.
const ANSWER: Duration = Duration::from_secs(10);
/// Wait for the answer to a datagram, longer than a busy machine needs. One that is never answered was
/// lost with its listener.
const DATAGRAM_ANSWER: Duration = Duration::from_secs(5);
/// Smallest datagram that a QUIC server answers (RFC 9000, section 14.1).
const DATAGRAM: usize = 1200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_actors_keep_connections_and_listeners() {
    let mut rng = Rng::announced();
    let running = Running::start(Settings {
        config: "acme_skip_staging: true\n",
        mesh: true,
        seed: Some(rng.number()),
        ..Settings::default()
    })
    .await;
    let mut service = Service::deploy(&running, REPLICAS).await;
    let target = service.target(&running);
    let mut sessions = Vec::new();
    for node in 1..=NODES {
        sessions.extend(sessions_with(&target, running.lab.node(node).address()).await);
    }
    let prober = Prober::start(&target);
    let (mut kills, mut by_kind) = (BTreeMap::<_, Vec<Instant>>::new(), BTreeMap::new());
    for number in 0..size("JACO_ACTOR_KILLS", 12).max(KINDS.len()) {
        let wanted = KINDS.get(number).copied();
        let (node, path, kind) = victim(&running, &mut rng, &mut kills, wanted).await;
        let mode = *rng
            .choose(&[FailureMode::Kill, FailureMode::Panic])
            .unwrap();
        println!("{number}: {mode:?} of {path} on n{node}");
        let api = running.lab.node(node).api().clone();
        let pause = rng.below(Duration::from_millis(50));
        let hurt = async {
            tokio::time::sleep(pause).await;
            fail(&api, &path, mode).await;
        };
        // At rest, or while the routes or the certificates change.
        match rng.within(0..3) {
            0 => hurt.await,
            1 => drop(tokio::join!(hurt, service.change_routes(&running))),
            _ => drop(tokio::join!(hurt, service.swap(&running, node % NODES + 1))),
        }
        *by_kind.entry(kind).or_insert(0) += 1;
        for session in &mut sessions {
            session.check(number).await;
        }
    }
    let refused = prober.stop();
    println!(
        "killed: {by_kind:?}; {} connections stayed open",
        sessions.len()
    );
    println!(
        "{} connections made, {} QUIC packets answered, longest refusals {:?}",
        refused.tcp, refused.quic, refused.longest
    );
    for kind in KINDS {
        assert!(by_kind.contains_key(kind), "no {kind}: {by_kind:?}");
    }
    // Of the twelve listeners, three are QUIC's.
    assert!(refused.tcp > 1000, "{}", refused.tcp);
    assert!(refused.quic > 300, "{}", refused.quic);
    for (listener, longest) in &refused.longest {
        assert!(
            *longest <= REFUSED_MAX,
            "{listener:?} refused for {longest:?}"
        );
    }
    // Everything works afterwards.
    service.swap(&running, 1).await;
    service.settled(&running, &BTreeSet::new()).await;
}

/// Picks an actor of the ingress of some node whose supervisor will restart it, of the wanted kind if
/// there is one, and returns its node, path and kind.
async fn victim(
    running: &Running,
    rng: &mut Rng,
    kills: &mut BTreeMap<(u8, String), Vec<Instant>>,
    wanted: Option<&str>,
) -> (u8, String, String) {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < LIMIT, "no actor to kill: {wanted:?}");
        let node = u8::try_from(rng.within(1..u64::from(NODES) + 1)).unwrap();
        let actors = running.lab.node(node).api().actors().await.unwrap();
        let workers = actors
            .into_iter()
            .filter(|actor| actor.path.starts_with(INGRESS) && !actor.kind.starts_with("one_for_"));
        let workers: Vec<_> = workers.collect();
        assert!(workers.len() > 5, "is this the whole ingress? {workers:#?}");
        let of_kind = workers
            .iter()
            .filter(|actor| wanted.is_none_or(|kind| actor.kind == kind));
        let Some(actor) = rng.choose(&of_kind.collect::<Vec<_>>()).copied() else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let earlier = kills.entry((node, actor.path.clone())).or_default();
        earlier.retain(|at| at.elapsed() < PERIOD);
        if earlier.len() < INTENSITY {
            earlier.push(Instant::now());
            return (node, actor.path.clone(), actor.kind.clone());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Injects a failure into an actor, and waits until it was restarted.
async fn fail(api: &Api, path: &str, mode: FailureMode) {
    let from = Instant::now();
    until("the actor can be hurt", LIMIT, || async {
        match api.kill_actor(path, mode).await {
            // It is starting.
            Err(error) if error.known() == Some(ErrorCode::ValidationFailed) => Err(error),
            Err(error) if error.grpc != Code::Unavailable => panic!("{error}"),
            Ok(()) | Err(_) => Ok(()),
        }
    })
    .await
    .unwrap();
    let restarted = api.actor(path, "is a new one", |actor| {
        let younger = u128::from(actor.uptime_ms) < from.elapsed().as_millis();
        actor.state == "running" && !actor.last_failure.is_empty() && younger
    });
    restarted.await.unwrap();
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection that stays open.
struct Session {
    what: String,
    /// Domain of the requests on it; `None` if it echoes.
    domain: Option<&'static str>,
    stream: BufStream<Box<dyn Stream>>,
}

/// Opens a connection of each kind to a node.
async fn sessions_with(target: &Target, node: Ipv4Addr) -> Vec<Session> {
    let connect = |port| netns::connect(&target.hub, SocketAddr::from((node, port)));
    let session = |kind: &str, domain, stream: Box<dyn Stream>| Session {
        what: format!("{kind} with {node}"),
        domain,
        stream: BufStream::new(stream),
    };
    let secure = connect(443).await.unwrap();
    let secure = handshake(secure, DOMAIN, target.roots.clone())
        .await
        .unwrap();
    let mut echo = session(
        "published port",
        None,
        Box::new(connect(PUBLISHED).await.unwrap()),
    );
    // The name of the container.
    echo.stream.read_line(&mut String::new()).await.unwrap();
    let mut socket = session("websocket", None, Box::new(connect(80).await.unwrap()));
    let upgrade = format!(
        "GET / HTTP/1.1\r\nHost: {PLAIN}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let (status, _) = socket.exchange(&upgrade).await.unwrap();
    assert!(status.starts_with("HTTP/1.1 101"), "{status}");
    let plain = connect(80).await.unwrap();
    let mut sessions = vec![
        session("plain HTTP", Some(PLAIN), Box::new(plain)),
        session("TLS", Some(DOMAIN), Box::new(secure)),
        echo,
        socket,
    ];
    for session in &mut sessions {
        session.check(0).await;
    }
    sessions
}

impl Session {
    /// Uses the connection once.
    async fn check(&mut self, number: usize) {
        let checked = tokio::time::timeout(ANSWER, self.uses(number)).await;
        match checked {
            Ok(Ok(())) => {}
            other => panic!("{} broke: {other:?}", self.what),
        }
    }

    async fn uses(&mut self, number: usize) -> io::Result<()> {
        if let Some(domain) = self.domain {
            let request = format!("GET / HTTP/1.1\r\nHost: {domain}\r\n\r\n");
            let (status, length) = self.exchange(&request).await?;
            let mut body = vec![0; length];
            self.stream.read_exact(&mut body).await?;
            let good = status.starts_with("HTTP/1.1 200") && body == b"ok\n";
            return good.then_some(()).ok_or_else(|| io::Error::other(status));
        }
        let line = format!("line {number}\n");
        self.stream.write_all(line.as_bytes()).await?;
        self.stream.flush().await?;
        let mut echoed = String::new();
        self.stream.read_line(&mut echoed).await?;
        (echoed == line)
            .then_some(())
            .ok_or_else(|| io::Error::other(echoed))
    }

    /// Sends a request, and reads the head of its answer: the status line and the length of the body.
    async fn exchange(&mut self, request: &str) -> io::Result<(String, usize)> {
        self.stream.write_all(request.as_bytes()).await?;
        self.stream.flush().await?;
        let (mut status, mut length) = (String::new(), 0);
        self.stream.read_line(&mut status).await?;
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if line.trim().is_empty() {
                return Ok((status, length));
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
    }
}

/// A listener of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Listener {
    Tcp(SocketAddr),
    Quic(SocketAddr),
}

/// Successful probes by protocol, and the longest time for which each listener refused them.
#[derive(Default)]
struct Probed {
    tcp: u64,
    quic: u64,
    longest: BTreeMap<Listener, Duration>,
}

/// Connects to every listener of every node, again and again.
struct Prober {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<(Listener, u64, Duration)>>,
}

impl Prober {
    fn start(target: &Target) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (target, stopped) = (target.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let probe_all = || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                let listeners = target.nodes.iter().flat_map(|node| {
                    let tcp = [80, 443, PUBLISHED].map(|port| Listener::Tcp((*node, port).into()));
                    tcp.into_iter().chain([Listener::Quic((*node, 443).into())])
                });
                let probes = listeners.map(|listener| probe(listener, &stopped));
                let probes = futures::future::join_all(probes);
                runtime.block_on(probes)
            };
            netns::within(&target.hub, probe_all).unwrap()
        });
        Self { stop, thread }
    }

    fn stop(self) -> Probed {
        self.stop.store(true, Ordering::Relaxed);
        let mut probed = Probed::default();
        for (listener, made, longest) in self.thread.join().unwrap() {
            match listener {
                Listener::Tcp(_) => probed.tcp += made,
                Listener::Quic(_) => probed.quic += made,
            }
            probed.longest.insert(listener, longest);
        }
        probed
    }
}

/// Probes a listener until `stop` is set, and returns how often it answered and the longest refusal.
async fn probe(listener: Listener, stop: &AtomicBool) -> (Listener, u64, Duration) {
    let (mut made, mut longest, mut refused_since) = (0, Duration::ZERO, None::<Instant>);
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let answered = match listener {
            Listener::Tcp(address) => {
                let connecting = tokio::net::TcpStream::connect(address);
                matches!(tokio::time::timeout(ANSWER, connecting).await, Ok(Ok(_)))
            }
            Listener::Quic(address) => {
                let negotiating = negotiate_version(address);
                matches!(
                    tokio::time::timeout(DATAGRAM_ANSWER, negotiating).await,
                    Ok(Ok(()))
                )
            }
        };
        if answered {
            made += 1;
            if let Some(since) = refused_since.take() {
                longest = longest.max(since.elapsed());
            }
        } else {
            refused_since.get_or_insert(start);
        }
        tokio::time::sleep(PROBE_PAUSE).await;
    }
    let since = refused_since.map(|since| since.elapsed());
    (listener, made, longest.max(since.unwrap_or_default()))
}

/// Sends a packet of an unknown version of QUIC, and waits for the Version Negotiation that must answer
/// it (RFC 9000, sections 6.1 and 17.2.1). The socket is new, as is the path of each new client.
async fn negotiate_version(server: SocketAddr) -> io::Result<()> {
    let socket = tokio::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    socket.connect(server).await?;
    // A long header with a version that is reserved for this, and two connection ids of eight bytes.
    let mut packet = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8];
    packet.extend(b"destined");
    packet.push(8);
    packet.extend(b"returned");
    packet.resize(DATAGRAM, 0);
    socket.send(&packet).await?;
    let mut answer = [0; DATAGRAM];
    let length = socket.recv(&mut answer).await?;
    let [first, a, b, c, d, 8, ids @ ..] = &answer[..length] else {
        return Err(io::Error::other(format!("{length} bytes")));
    };
    let negotiates = first & 0x80 != 0 && [a, b, c, d] == [&0; 4] && ids.starts_with(b"returned");
    negotiates
        .then_some(())
        .ok_or_else(|| io::Error::other(format!("{:?}", &answer[..length])))
}
