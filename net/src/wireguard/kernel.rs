//! WireGuard of the kernel: its device is configured over generic netlink.
//!
//! The caller creates the link, of kind `wireguard`, and gives it its addresses and routes, as
//! [`crate::link`] does. The link and its sessions outlive this process.
//!
//! Source: the kernel's `include/uapi/linux/wireguard.h`.

mod changes;
mod message;
mod socket;

use std::{
    collections::BTreeSet,
    io,
    net::Ipv4Addr,
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use self::{changes::changes, message::Present, socket::Socket};
use super::{Error, Peer, PeerStats, PrivateKey, PublicKey};

/// Age at which a session ends, `REJECT_AFTER_TIME`: the kernel still tells its handshake.
///
/// Source: Donenfeld, "WireGuard: Next Generation Kernel Network Tunnel", section 6.1.
const SESSION: Duration = Duration::from_secs(180);

/// A WireGuard device of the kernel.
///
/// Its methods wait for the kernel, which is a matter of microseconds.
#[derive(Debug)]
pub struct Device {
    name: String,
    private_key: PrivateKey,
    port: u16,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    socket: Socket,
    /// Peers that were set last; `None` before.
    given: Option<Vec<Peer>>,
}

impl Device {
    /// Gives the existing link `name` of the calling thread's network namespace its key and port;
    /// 0 lets the kernel choose. Peers and sessions that it has stay until
    /// [`Device::set_peers`].
    ///
    /// # Errors
    /// If the kernel has no WireGuard or no such link, or without `CAP_NET_ADMIN`. A port that is
    /// taken shows only when the link is set up.
    pub fn configure(name: &str, private_key: PrivateKey, port: u16) -> Result<Self, Error> {
        let socket = Socket::open()?;
        Self::over(socket, name, private_key, port)
    }

    fn over(
        mut socket: Socket,
        name: &str,
        private_key: PrivateKey,
        port: u16,
    ) -> Result<Self, Error> {
        socket.set(message::identity(name, &private_key, port))?;
        Ok(Self {
            name: name.to_owned(),
            private_key,
            port,
            state: Mutex::new(State {
                socket,
                given: None,
            }),
        })
    }

    /// Replaces the set of peers.
    ///
    /// Only what differs is written, so sessions of peers that stay survive, also when their
    /// endpoint or allowed IPs change. An endpoint that a peer moved to by itself is replaced only
    /// if `peers` has another one than before. A new peer is greeted at once if the link is up and
    /// the peer has a keepalive.
    ///
    /// # Errors
    /// If a peer is invalid or two exclude each other; nothing changes then. If the kernel refuses;
    /// some of the peers may be changed then.
    pub fn set_peers(&self, peers: Vec<Peer>) -> Result<(), Error> {
        check(&peers, self.private_key.public())?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let present = state.present(&self.name)?;
        if !self.has_identity(&present) {
            let identity = message::identity(&self.name, &self.private_key, self.port);
            state.socket.set(identity)?;
        }
        let last = state.given.as_deref().unwrap_or_default();
        let changes = changes(&present.peers, last, &peers);
        for request in message::peers(&self.name, changes) {
            state.socket.set(request)?;
        }
        state.given = Some(peers);
        Ok(())
    }

    /// Whether another program changed the key, the port, or a peer other than its endpoint since
    /// [`Device::set_peers`], or there were peers before it.
    ///
    /// # Errors
    /// If the link is gone.
    pub fn is_altered(&self) -> Result<bool, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let present = state.present(&self.name)?;
        let given = state.given.as_deref().unwrap_or_default();
        let differs = !changes(&present.peers, given, given).is_empty();
        Ok(differs || !self.has_identity(&present))
    }

    /// The state of each peer, ordered by key. The kernel tells neither round trips nor losses.
    ///
    /// # Errors
    /// If the link is gone.
    pub fn stats(&self) -> Result<Vec<PeerStats>, Error> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let peers = state.present(&self.name)?.peers;
        let now = SystemTime::now();
        let mut stats: Vec<PeerStats> = peers.iter().map(|peer| stats_of(peer, now)).collect();
        stats.sort_by_key(|stats| stats.public_key);
        Ok(stats)
    }

    fn has_identity(&self, present: &Present) -> bool {
        present.public_key == Some(self.private_key.public())
            && (self.port == 0 || present.port == self.port)
    }
}

/// Networks behind the peers of the kernel's device `name` of the calling thread's network namespace.
///
/// # Errors
/// If there is no such device.
pub fn admitted(name: &str) -> Result<Vec<(Ipv4Addr, u8)>, Error> {
    let mut state = State {
        socket: Socket::open()?,
        given: None,
    };
    let peers = state.present(name)?.peers;
    Ok(peers
        .into_iter()
        .flat_map(|peer| peer.allowed_ips)
        .collect())
}

impl State {
    fn present(&mut self, name: &str) -> Result<Present, Error> {
        let answers = self.socket.dump(message::get(name))?;
        message::parse(answers).map_err(|reason| {
            let source = io::Error::new(io::ErrorKind::InvalidData, reason);
            kernel("read the WireGuard device")(source)
        })
    }
}

fn stats_of(peer: &message::PresentPeer, now: SystemTime) -> PeerStats {
    // The clock may have been set back since.
    let age = |at| now.duration_since(at).unwrap_or_default();
    PeerStats {
        public_key: peer.public_key,
        endpoint: peer.endpoint,
        last_handshake: peer.last_handshake.map(age).filter(|age| *age < SESSION),
        rtt: None,
        loss: None,
        rx_bytes: peer.rx_bytes,
        tx_bytes: peer.tx_bytes,
    }
}

/// Refuses peers that the kernel would refuse, ignore, or merge.
fn check(peers: &[Peer], own: PublicKey) -> Result<(), Error> {
    let (mut keys, mut networks) = (BTreeSet::new(), BTreeSet::new());
    for peer in peers {
        if peer.public_key == own {
            return Err(Error::InvalidPeer(own));
        }
        if !keys.insert(peer.public_key) {
            return Err(Error::DuplicatePeer(peer.public_key));
        }
        if let Some(endpoint) = peer.endpoint
            && (endpoint.port() == 0 || !endpoint.is_ipv4())
        {
            return Err(Error::InvalidEndpoint(endpoint));
        }
        for (ip, prefix) in &peer.allowed_ips {
            if *prefix > 32 {
                return Err(Error::InvalidPrefix(*ip, *prefix));
            }
            if !networks.insert(changes::network(*ip, *prefix)) {
                return Err(Error::DuplicatePrefix(*ip, *prefix));
            }
        }
    }
    Ok(())
}

fn kernel(action: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Kernel { action, source }
}

#[cfg(test)]
mod tests;
