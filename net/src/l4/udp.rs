//! One UDP listener: forwards datagrams between clients and upstreams.
//!
//! A client and the address it sends to are a session, which has a socket of its own towards one
//! upstream, so that replies find their client.

mod sessions;
mod socket;

use std::{
    cell::RefCell,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{SendFlags, send},
};
use tokio::{
    net::UdpSocket,
    sync::watch,
    task::{AbortHandle, yield_now},
    time::{Instant, sleep, sleep_until},
};

use super::{
    Port, Upstream,
    ports::Shared,
    upstream::{Backends, RoundRobin},
};
use sessions::{LastUse, Sessions};
use socket::Socket;

/// Largest datagram, in bytes.
const MAX_DATAGRAM: usize = 65_535;
/// Datagrams handled in a row before other tasks get a turn.
const DATAGRAMS_PER_TURN: usize = 64;
/// Pause after an error of the listening socket that concerns no single datagram.
const ERROR_PAUSE: Duration = Duration::from_millis(100);
/// Silence of a replica that no longer serves the port, after which its sessions move to another.
const GONE_AFTER: Duration = Duration::from_secs(5);

thread_local! {
    /// Buffer for the replies of all sessions: none of them holds it across an await.
    static REPLY: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_DATAGRAM]);
}

/// A client, and the local address it sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Client {
    addr: SocketAddr,
    local: Option<IpAddr>,
}

/// Forwards datagrams for as long as it runs; its end closes all sessions.
///
/// The fields are dropped in this order, so the socket is closed once the receiver is gone.
pub(super) struct Forwarder {
    socket: Arc<Socket>,
    sessions: Sessions<Client, Session>,
    turn: RoundRobin,
    port: Port,
    shared: Arc<Shared>,
    backends: watch::Receiver<Arc<Backends>>,
}

/// A client's way to an upstream.
struct Session {
    upstream: SocketAddr,
    socket: Arc<UdpSocket>,
    activity: Arc<Activity>,
    replies: AbortHandle,
}

/// Use of a session, in nanoseconds since `start`.
struct Activity {
    start: Instant,
    last_use: AtomicU64,
    last_reply: AtomicU64,
    /// The upstream has no socket on its port.
    refused: AtomicBool,
}

impl Forwarder {
    pub(super) fn new(
        socket: std::net::UdpSocket,
        port: Port,
        shared: Arc<Shared>,
        backends: watch::Receiver<Arc<Backends>>,
    ) -> io::Result<Self> {
        let settings = &shared.settings;
        Ok(Self {
            socket: Arc::new(Socket::new(socket)?),
            sessions: Sessions::new(settings.session_timeout, settings.max_sessions),
            turn: RoundRobin::default(),
            port,
            shared,
            backends,
        })
    }

    pub(super) async fn run(mut self) {
        let mut buffer = vec![0; MAX_DATAGRAM];
        loop {
            let expiry = self.sessions.poll_timeout().map(Instant::from_std);
            let expired = async {
                match expiry {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                readable = self.socket.readable() => {
                    let received = match readable {
                        Ok(()) => self.receive(&mut buffer),
                        Err(error) => Err(error),
                    };
                    match received {
                        Ok(()) => yield_now().await,
                        Err(error) => {
                            tracing::warn!(subsystem = "ingress", port = %self.port, %error, "failed to receive datagrams");
                            sleep(ERROR_PAUSE).await;
                        }
                    }
                }
                () = expired => self.sessions.handle_timeout(Instant::now().into_std()),
            }
        }
    }

    /// Forwards waiting datagrams, at most [`DATAGRAMS_PER_TURN`].
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        for _ in 0..DATAGRAMS_PER_TURN {
            match self.socket.receive(buffer) {
                Ok(received) => {
                    let client = Client {
                        addr: received.from,
                        local: received.local,
                    };
                    self.forward(client, buffer.get(..received.len).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // An ICMP message about an earlier reply; it is over with this call.
                Err(error) if is_icmp(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends a datagram to the client's upstream, which is another one if the last is gone.
    fn forward(&mut self, client: Client, datagram: &[u8]) {
        let backends = self.backends.borrow().clone();
        let now = Instant::now();
        // The second attempt is for an upstream whose refusal only sending reveals.
        for _ in 0..2 {
            let lost = |session: &Session| session.is_lost(&backends, now);
            if self.sessions.get(&client).is_none_or(lost) {
                self.sessions.remove(&client);
                let Some(session) = self.connect(client, &backends) else {
                    return;
                };
                self.sessions.insert(now.into_std(), client, session);
            }
            let Some(session) = self.sessions.get(&client) else {
                return;
            };
            session.activity.used(now);
            // tokio does not know yet that a new socket is writable, so it is not asked.
            match send(&*session.socket, datagram, SendFlags::DONTWAIT) {
                Err(Errno::CONNREFUSED) => {
                    session.activity.refused.store(true, Ordering::Relaxed);
                }
                // A datagram that the kernel does not take is lost, as on the network.
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// Opens a session with the next upstream to which there is a route.
    fn connect(&self, client: Client, backends: &Backends) -> Option<Session> {
        let is_fresh = |host: &str| (self.shared.is_fresh)(host);
        for Upstream { addr, replica, .. } in self.turn.order(&backends.upstreams, is_fresh) {
            match connect(*addr) {
                Ok(socket) => return Some(self.session(client, *addr, socket)),
                Err(error) => {
                    tracing::debug!(subsystem = "ingress", port = %self.port, %replica, %addr, %error, "failed to open a session");
                }
            }
        }
        None
    }

    fn session(&self, client: Client, upstream: SocketAddr, socket: UdpSocket) -> Session {
        let socket = Arc::new(socket);
        let activity = Arc::new(Activity::new());
        let listener = Arc::downgrade(&self.socket);
        let replies = pass_replies(socket.clone(), listener, client, activity.clone());
        Session {
            upstream,
            socket,
            activity,
            replies: tokio::spawn(replies).abort_handle(),
        }
    }
}

/// A socket that exchanges datagrams with `upstream` only, and learns of its ICMP errors.
fn connect(upstream: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = if upstream.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect(upstream)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// Sends the upstream's datagrams to the client, from the address that the client knows.
async fn pass_replies(
    upstream: Arc<UdpSocket>,
    listener: Weak<Socket>,
    client: Client,
    activity: Arc<Activity>,
) {
    while upstream.readable().await.is_ok() {
        let Some(listener) = listener.upgrade() else {
            return;
        };
        REPLY.with_borrow_mut(|buffer| {
            for _ in 0..DATAGRAMS_PER_TURN {
                match upstream.try_recv(buffer) {
                    Ok(len) => {
                        activity.replied(Instant::now());
                        let reply = buffer.get(..len).unwrap_or_default();
                        // A reply that the kernel does not take is lost, as on the network.
                        let _ = listener.send(client.addr, client.local, reply);
                    }
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        activity.refused.store(true, Ordering::Relaxed);
                    }
                    Err(_) => return,
                }
            }
        });
        drop(listener);
        yield_now().await;
    }
}

/// Whether an error reports the fate of a datagram sent earlier.
fn is_icmp(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
    )
}

impl Session {
    /// Whether the upstream refused a datagram, or neither serves the port nor replies any more.
    fn is_lost(&self, backends: &Backends, now: Instant) -> bool {
        let mut upstreams = backends.upstreams.iter();
        let serves = upstreams.any(|upstream| upstream.addr == self.upstream);
        let silent = || now.saturating_duration_since(self.activity.last_reply()) >= GONE_AFTER;
        self.activity.refused.load(Ordering::Relaxed) || (!serves && silent())
    }
}

impl LastUse for Session {
    fn last_use(&self) -> std::time::Instant {
        self.activity.at(&self.activity.last_use).into_std()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.replies.abort();
    }
}

impl Activity {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            last_use: AtomicU64::new(0),
            last_reply: AtomicU64::new(0),
            refused: AtomicBool::new(false),
        }
    }

    fn used(&self, now: Instant) {
        self.last_use.store(self.nanos(now), Ordering::Relaxed);
    }

    fn replied(&self, now: Instant) {
        let now = self.nanos(now);
        self.last_use.store(now, Ordering::Relaxed);
        self.last_reply.store(now, Ordering::Relaxed);
    }

    fn last_reply(&self) -> Instant {
        self.at(&self.last_reply)
    }

    fn at(&self, nanos: &AtomicU64) -> Instant {
        self.start + Duration::from_nanos(nanos.load(Ordering::Relaxed))
    }

    fn nanos(&self, now: Instant) -> u64 {
        let age = now.saturating_duration_since(self.start).as_nanos();
        u64::try_from(age).unwrap_or(u64::MAX)
    }
}
