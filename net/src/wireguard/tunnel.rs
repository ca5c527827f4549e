//! The tunnel to one peer: the protocol core, and where the peer is.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use boringtun::{
    noise::{Tunn, TunnResult, rate_limiter::RateLimiter},
    x25519,
};

use super::{Peer, PeerStats};

/// Room for any message that is not data, in bytes.
pub(super) const MESSAGE_ROOM: usize = 256;

/// The tunnel to one peer; shared by all threads, and kept while the peer's settings change.
pub(super) struct Tunnel {
    session: Mutex<Session>,
    sending: Mutex<()>,
    /// Where the peer was last seen, or is said to be: address and port, 0 if unknown.
    endpoint: AtomicU64,
}

/// The part of a tunnel that one thread at a time uses.
pub(super) struct Session {
    pub(super) core: Tunn,
    /// When the path was last kept open.
    kept_open: Option<Instant>,
    /// When the newest handshake for its age was begun.
    rekeyed: Option<Instant>,
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel")
            .field("endpoint", &self.endpoint())
            .finish_non_exhaustive()
    }
}

impl Tunnel {
    pub(super) fn new(
        secret: x25519::StaticSecret,
        peer: &Peer,
        index: u32,
        limiter: Arc<RateLimiter>,
    ) -> Self {
        let public = x25519::PublicKey::from(peer.public_key.0);
        // The interval of keepalives may change during a session, which the core has no call for.
        let core = Tunn::new(secret, public, None, None, index, Some(limiter));
        let tunnel = Self {
            session: Mutex::new(Session {
                core,
                kept_open: None,
                rekeyed: None,
            }),
            sending: Mutex::new(()),
            endpoint: AtomicU64::new(0),
        };
        tunnel.set_endpoint(peer.endpoint);
        tunnel
    }

    /// Waits for other threads that use the session.
    pub(super) fn lock(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its turn to encrypt packets and send them. Held until they are sent: a thread that
    /// has to wait for room in the kernel's buffer would else be overtaken by others, until its
    /// packets are older than the peer accepts (1,024 packets for boringtun).
    ///
    /// Lock order: before [`Self::lock`], and one tunnel at a time.
    pub(super) fn take_turn(&self) -> MutexGuard<'_, ()> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn endpoint(&self) -> Option<SocketAddrV4> {
        let [a, b, c, d, high, low, ..] = self.endpoint.load(Ordering::Relaxed).to_le_bytes();
        let port = u16::from_be_bytes([high, low]);
        (port != 0).then(|| SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), port))
    }

    /// Follows the peer to the sender of an authenticated message.
    pub(super) fn roam(&self, to: SocketAddrV4) {
        if self.endpoint() != Some(to) {
            self.set_endpoint(Some(to.into()));
        }
    }

    /// Anything but an IPv4 address counts as unknown.
    pub(super) fn set_endpoint(&self, endpoint: Option<SocketAddr>) {
        let packed = match endpoint {
            Some(SocketAddr::V4(endpoint)) => {
                let [a, b, c, d] = endpoint.ip().octets();
                let [high, low] = endpoint.port().to_be_bytes();
                u64::from_le_bytes([a, b, c, d, high, low, 0, 0])
            }
            Some(SocketAddr::V6(_)) | None => 0,
        };
        self.endpoint.store(packed, Ordering::Relaxed);
    }

    /// Writes a handshake initiation. Without `force` only if there is no session and no handshake
    /// under way.
    pub(super) fn initiate<'a>(&self, force: bool, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
        let mut session = self.lock();
        if !force && session.core.time_since_last_handshake().is_some() {
            return None;
        }
        message(session.core.format_handshake_initiation(buffer, force))
    }

    /// Writes the message that is due now, if any.
    pub(super) fn tick<'a>(
        &self,
        keepalive: Option<Duration>,
        now: Instant,
        buffer: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let mut session = self.lock();
        // A handshake that was given up is reported as an error at every call until a new one.
        if let TunnResult::WriteToNetwork(datagram) = session.core.update_timers(buffer) {
            let len = datagram.len();
            return Some(&buffer[..len]);
        }
        let keepalive = keepalive.filter(|interval| !interval.is_zero())?;
        if session
            .kept_open
            .is_some_and(|last| now.saturating_duration_since(last) < keepalive)
        {
            return None;
        }
        session.kept_open = Some(now);
        // Without a session this begins a handshake, also after one was given up.
        message(session.core.encapsulate(&[], buffer))
    }

    /// Writes a handshake initiation if the session is older than `age`; once in that time.
    pub(super) fn rekey<'a>(
        &self,
        age: Duration,
        now: Instant,
        buffer: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let mut session = self.lock();
        let tried = session.rekeyed;
        if session.core.time_since_last_handshake()? < age
            || tried.is_some_and(|tried| now.saturating_duration_since(tried) < age)
        {
            return None;
        }
        session.rekeyed = Some(now);
        message(session.core.format_handshake_initiation(buffer, true))
    }

    pub(super) fn stats(&self, peer: &Peer) -> PeerStats {
        let (last_handshake, sent, received, loss, rtt) = self.lock().core.stats();
        PeerStats {
            public_key: peer.public_key,
            endpoint: self.endpoint().map(SocketAddr::V4),
            last_handshake,
            rtt: rtt.map(|millis| Duration::from_millis(millis.into())),
            loss: last_handshake.map(|_| loss),
            rx_bytes: received.try_into().unwrap_or(u64::MAX),
            tx_bytes: sent.try_into().unwrap_or(u64::MAX),
        }
    }
}

fn message(result: TunnResult<'_>) -> Option<&[u8]> {
    match result {
        TunnResult::WriteToNetwork(datagram) => Some(datagram),
        _ => None,
    }
}
