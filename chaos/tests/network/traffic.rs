//! Traffic between containers: each one tries to reach all others all the time, and records the
//! senders of the packets that arrive.
//!
//! The sockets belong to the containers' network namespaces and the threads to the test, so the
//! containers need no program for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    ops::Bound,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use jaco_chaos::{Lab, until};
use jaco_net::netns::Namespace;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

use crate::fixture::LIMIT;

/// Port of every container on which datagrams and connections are received.
pub(crate) const PORT: u16 = 9000;
/// Wait of a receiver before it looks whether the container is gone.
const RECEIVE: Duration = Duration::from_millis(100);
/// Wait for an answer that should come.
const ANSWER: Duration = Duration::from_secs(2);
/// Wait for a connection that should be refused.
const REFUSED: Duration = Duration::from_millis(150);
/// Pause between two rounds of a sender.
const ROUND: Duration = Duration::from_millis(200);
/// Former addresses that a sender tries in a round: with all of them, a round would take longer
/// with every change.
const FORMER: usize = 8;

/// Deployment and network.
pub(crate) type Scope = (String, String);

/// A container's end on one network.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) replica: String,
    pub(crate) scope: Scope,
    pub(crate) host: u8,
    pub(crate) address: Ipv4Addr,
    pub(crate) namespace: Namespace,
    gone: Arc<AtomicBool>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

/// Data that the threads of all containers share.
#[derive(Debug, Default)]
struct Shared {
    targets: RwLock<Targets>,
    violations: Mutex<Vec<String>>,
    attempts: std::sync::atomic::AtomicU64,
}

/// Addresses that senders try to reach.
#[derive(Clone, Debug, Default)]
struct Targets {
    /// Those of running containers.
    current: BTreeSet<Ipv4Addr>,
    /// Those that a container had and none has.
    former: BTreeSet<Ipv4Addr>,
}

impl Targets {
    fn update(&mut self, current: BTreeSet<Ipv4Addr>) {
        let before = std::mem::replace(&mut self.current, current);
        self.former.extend(before);
        self.former
            .retain(|address| !self.current.contains(address));
    }

    /// All current addresses, and the next former ones after `last`.
    fn round(&self, last: Ipv4Addr) -> (Vec<Ipv4Addr>, Ipv4Addr) {
        let after = self.former.range((Bound::Excluded(last), Bound::Unbounded));
        let former: Vec<_> = { after.chain(&self.former) }
            .take(FORMER.min(self.former.len()))
            .copied()
            .collect();
        let last = former.last().copied().unwrap_or(last);
        let all = self.current.iter().copied().chain(former).collect();
        (all, last)
    }
}

/// The containers of a lab that send and receive.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    endpoints: BTreeMap<(String, Ipv4Addr), Arc<Endpoint>>,
    shared: Arc<Shared>,
}

impl Traffic {
    /// Starts the traffic of new containers and ends that of containers which are gone; returns
    /// those that run.
    pub(crate) async fn refresh(&mut self, lab: &Lab) -> Result<Vec<Arc<Endpoint>>> {
        let mut seen = BTreeSet::new();
        for node in lab.nodes() {
            let Ok(engine) = node.engine().await else {
                continue;
            };
            for container in engine.containers(lab.cluster_id()).await? {
                for (network, address) in &container.addresses {
                    let key = (container.id.clone(), *address);
                    if !container.running || container.pid == 0 {
                        continue;
                    }
                    if !self.endpoints.contains_key(&key) {
                        // The container may have ended since it was listed.
                        let Ok(namespace) = Namespace::of_process(container.pid) else {
                            continue;
                        };
                        let endpoint = Endpoint {
                            replica: container.replica.clone(),
                            scope: scope(network).with_context(|| network.clone())?,
                            host: node.index(),
                            address: *address,
                            namespace,
                            gone: Arc::default(),
                        };
                        let Ok(()) = start(&endpoint, &self.shared) else {
                            continue;
                        };
                        self.endpoints.insert(key.clone(), Arc::new(endpoint));
                    }
                    seen.insert(key);
                }
            }
        }
        self.endpoints.retain(|key, endpoint| {
            let kept = seen.contains(key);
            // A test may still hold it; its ports are needed if it returns.
            endpoint.gone.store(!kept, Ordering::Relaxed);
            kept
        });
        let current = self.endpoints.keys().map(|(_, address)| *address);
        let mut targets = self.shared.targets.write().unwrap();
        targets.update(current.collect());
        Ok(self.endpoints.values().cloned().collect())
    }

    /// The first pair of one network that does not talk over both protocols.
    pub(crate) async fn unreachable(&self, endpoints: &[Arc<Endpoint>]) -> Option<String> {
        check_pairs(endpoints, |from, to| {
            let apart = (from.scope == to.scope).then(|| reaches(from, to).err())??;
            let (one, other) = (&from.replica, &to.replica);
            let (here, there) = (from.host, to.host);
            Some(format!(
                "{one} on n{here} does not reach {other} on n{there}: {apart:#}"
            ))
        })
        .await
    }

    /// Packets that arrived at a container of another network, and the attempts so far.
    pub(crate) fn violations(&self) -> (Vec<String>, u64) {
        let attempts = self.shared.attempts.load(Ordering::Relaxed);
        (self.shared.violations.lock().unwrap().clone(), attempts)
    }

    /// The first pair of different networks between which a new flow gets an answer.
    pub(crate) async fn leak(&self, endpoints: &[Arc<Endpoint>]) -> Option<String> {
        check_pairs(endpoints, |from, to| {
            let forbidden = from.scope != to.scope && is_answered(from, to);
            forbidden.then(|| format!("{} reaches {}", from.replica, to.replica))
        })
        .await
    }

    /// Asserts that no container of another network was reached so far. Waits for the first attempt:
    /// the containers know no address in their first round.
    pub(crate) async fn assert_isolated(&self) {
        let sent = until("an attempt", LIMIT, || async {
            let (_, attempts) = self.violations();
            (attempts > 0).then_some(()).ok_or("nothing was sent")
        });
        sent.await.unwrap();
        let (violations, _) = self.violations();
        assert!(violations.is_empty(), "{violations:#?}");
    }
}

/// Calls `check` with every ordered pair of containers, those of each sender on a thread of its own;
/// returns the first finding.
async fn check_pairs(
    endpoints: &[Arc<Endpoint>],
    check: impl Fn(&Endpoint, &Endpoint) -> Option<String> + Send + Sync + 'static,
) -> Option<String> {
    let endpoints = endpoints.to_vec();
    let checks = tokio::task::spawn_blocking(move || {
        std::thread::scope(|threads| {
            let from_each = endpoints.iter().map(|from| {
                let (all, check) = (&endpoints, &check);
                threads.spawn(move || {
                    let mut others = all.iter().filter(|to| to.address != from.address);
                    others.find_map(|to| check(from, to))
                })
            });
            let running: Vec<_> = from_each.collect();
            let found = running.into_iter().map(|thread| thread.join().unwrap());
            found.fold(None, Option::or)
        })
    });
    checks.await.unwrap()
}

/// Whether a new flow of either protocol gets an answer.
fn is_answered(from: &Endpoint, to: &Endpoint) -> bool {
    let (own, address) = (text(&from.scope), SocketAddr::from((to.address, PORT)));
    let try_both = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        let _ = socket.send_to(own.as_bytes(), address); // refused
        // Both answers are awaited at the same time.
        let start = Instant::now();
        let connected = TcpStream::connect_timeout(&address, REFUSED).is_ok();
        let left = REFUSED.saturating_sub(start.elapsed());
        let left = left.max(Duration::from_millis(1));
        socket.set_read_timeout(Some(left)).unwrap();
        connected || socket.recv_from(&mut [0; 128]).is_ok()
    };
    from.namespace.within(try_both).unwrap()
}

/// (deployment, network) of an engine network; both have no underscore here.
fn scope(engine_network: &str) -> Option<Scope> {
    let (deployment, network) = engine_network.strip_prefix("jaco_")?.split_once('_')?;
    Some((deployment.to_owned(), network.to_owned()))
}

fn text(scope: &Scope) -> String {
    format!("{} {}", scope.0, scope.1)
}

/// Checks that two containers of one network talk over TCP and UDP.
pub(crate) fn reaches(from: &Endpoint, to: &Endpoint) -> Result<()> {
    let (own, address) = (text(&from.scope), SocketAddr::from((to.address, PORT)));
    let said = from.namespace.within(|| {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER).context("TCP")?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(own.as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut said = String::new();
        stream.read_to_string(&mut said).context("TCP")?;
        udp_round_trip(&own, address).context("UDP")?;
        Ok::<_, anyhow::Error>(said)
    });
    let said = said??;
    ensure!(said == text(&to.scope), "{said:?} answered");
    Ok(())
}

fn udp_round_trip(own: &str, address: SocketAddr) -> Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(RECEIVE))?;
    let mut answer = [0; 128];
    // A datagram may be lost; that every one is lost means that the path is closed.
    for _ in 0..10 {
        socket.send_to(own.as_bytes(), address)?;
        if let Ok((_, sender)) = socket.recv_from(&mut answer)
            && sender == address
        {
            return Ok(());
        }
    }
    anyhow::bail!("no answer")
}

/// Starts the threads of a container.
fn start(endpoint: &Endpoint, shared: &Arc<Shared>) -> io::Result<()> {
    let (udp, tcp) = endpoint.namespace.within(|| {
        let udp = UdpSocket::bind((endpoint.address, PORT))?;
        udp.set_read_timeout(Some(RECEIVE))?;
        let tcp = TcpListener::bind((endpoint.address, PORT))?;
        tcp.set_nonblocking(true)?;
        Ok::<_, io::Error>((udp, tcp))
    })??;
    let receiver = Receiver {
        own: text(&endpoint.scope),
        name: endpoint.replica.clone(),
        gone: endpoint.gone.clone(),
        shared: Arc::clone(shared),
    };
    let accepting = receiver.clone();
    std::thread::spawn(move || receiver.receive(&udp));
    std::thread::spawn(move || accepting.accept(&tcp));
    let namespace = Namespace::from_file(endpoint.namespace.file().try_clone()?);
    let (own, address) = (text(&endpoint.scope), endpoint.address);
    let (gone, shared) = (endpoint.gone.clone(), Arc::clone(shared));
    std::thread::spawn(move || namespace.within(|| send(&own, address, &gone, &shared)));
    Ok(())
}

/// Receiving side of a container.
#[derive(Clone, Debug)]
struct Receiver {
    own: String,
    name: String,
    gone: Arc<AtomicBool>,
    shared: Arc<Shared>,
}

impl Receiver {
    fn receive(&self, socket: &UdpSocket) {
        let mut packet = [0; 128];
        while !self.gone.load(Ordering::Relaxed) {
            let Ok((length, sender)) = socket.recv_from(&mut packet) else {
                continue;
            };
            self.judge("UDP", &packet[..length]);
            let _ = socket.send_to(self.own.as_bytes(), sender); // its sender may be gone
        }
    }

    fn accept(&self, listener: &TcpListener) {
        while !self.gone.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => {
                    let _ = self.serve(stream); // its peer may be gone
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut said = Vec::new();
        (&mut stream).take(128).read_to_end(&mut said)?;
        self.judge("TCP", &said);
        stream.write_all(self.own.as_bytes())
    }

    fn judge(&self, protocol: &str, said: &[u8]) {
        let said = String::from_utf8_lossy(said);
        if !said.is_empty() && said != self.own {
            let what = format!(
                "{} ({}) reached by {said:?} over {protocol}",
                self.name, self.own
            );
            self.shared.violations.lock().unwrap().push(what);
        }
    }
}

/// Tries to reach the addresses that containers have or had, until the own container is gone.
fn send(own: &str, address: Ipv4Addr, gone: &AtomicBool, shared: &Shared) {
    let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW));
    let (Ok(udp), Ok(raw)) = (UdpSocket::bind("0.0.0.0:0"), raw) else {
        return;
    };
    let mut last = Ipv4Addr::UNSPECIFIED;
    while !gone.load(Ordering::Relaxed) {
        let targets;
        (targets, last) = shared.targets.read().unwrap().round(last);
        for target in targets.into_iter().filter(|target| *target != address) {
            if gone.load(Ordering::Relaxed) {
                return;
            }
            for claimed in claims(target) {
                let to = SocketAddrV4::new(target, PORT);
                let packet = datagram(claimed, to, own.as_bytes());
                let _ = sendto(&raw, &packet, SendFlags::empty(), &to); // no route in most cases
            }
            let target = SocketAddr::from((target, PORT));
            let _ = udp.send_to(own.as_bytes(), target); // refused in most cases
            if let Ok(mut stream) = TcpStream::connect_timeout(&target, REFUSED) {
                let _ = stream.write_all(own.as_bytes()); // judged by its receiver
            }
            shared.attempts.fetch_add(6, Ordering::Relaxed);
        }
        std::thread::sleep(ROUND);
    }
}

/// Sources that a container with another address claims towards `target`: an unused address and the
/// gateway of its network, a mesh address, and one that no network has.
fn claims(target: Ipv4Addr) -> [Ipv4Addr; 4] {
    let [a, b, c, _] = target.octets();
    [
        [a, b, c, 250],
        [a, b, c, 1],
        [10, 99, 0, 250],
        [a, b, 255, 250],
    ]
    .map(Ipv4Addr::from)
}

/// A datagram of UDP over IPv4 (RFC 791, RFC 768) with any source; the kernel adds the checksum of
/// the header, and that of UDP may be absent.
fn datagram(from: Ipv4Addr, to: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let udp = u16::try_from(8 + payload.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend((20 + udp).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.ip().octets());
    packet.extend(PORT.to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(udp.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}
