//! WireGuard in user space, and the configuration of the kernel's own ([`kernel`]).
//!
//! A [`Device`] is the data plane in user space: it owns a TUN interface and the UDP sockets of one port. Threads carry packets between
//! them; the caller gives the interface its addresses and routes, and sets it up.
//!
//! The Noise handshake, the session keys and the timers are those of `boringtun`, whose log target
//! `boringtun` reports every lost peer as an error: programs filter it out. Packets enter and leave
//! the kernel in batches (`offload`, `segment`, `coalesce`, `socket`), which is what makes it fast.
//!
//! Sources: Donenfeld, "WireGuard: Next Generation Kernel Network Tunnel", NDSS 2017; the kernel's
//! `Documentation/networking/tuntap.rst`.

mod allowed_ips;
mod checksum;
mod coalesce;
mod device;
#[doc(hidden)]
pub mod fuzzing;
pub mod kernel;
mod key;
mod message;
mod offload;
mod segment;
mod socket;
mod table;
mod tunnel;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    num::NonZero,
    os::fd::OwnedFd,
    time::Duration,
};

pub use key::{InvalidKey, PrivateKey, PublicKey};

/// Settings of a device; only its peers change later.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the TUN interface, at most 15 bytes. It must not exist.
    pub name: String,
    /// Largest packet of the interface, in bytes; 1420 leaves room for the tunnel's headers in 1500.
    pub mtu: u16,
    /// Key of this node.
    pub private_key: PrivateKey,
    /// UDP port, on all IPv4 addresses; 0 lets the kernel choose.
    pub port: u16,
    /// Threads that carry packets; by default one for each core, at most 8.
    pub workers: Option<NonZero<usize>>,
}

/// Settings that differ from the protocol's own only in tests and measurements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Age at which the keys of a session are replaced, a multiple of 250 ms; by default as the
    /// protocol has it: after two minutes, by the side that began the session, if it is in use.
    pub rekey_after: Option<Duration>,
}

/// The other end of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Key that the peer proves to own.
    pub public_key: PublicKey,
    /// Address to send to until the peer is seen at another; without one, the peer must begin.
    pub endpoint: Option<SocketAddr>,
    /// Networks behind the peer, as address and prefix length: packets to them are sent to the peer,
    /// and packets from the peer must come from them. Longer prefixes win.
    pub allowed_ips: Vec<(Ipv4Addr, u8)>,
    /// Interval of packets that keep the path open, in whole seconds.
    pub keepalive: Option<Duration>,
}

/// State of the tunnel to a peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerStats {
    /// Key of the peer.
    pub public_key: PublicKey,
    /// Where packets to the peer go now.
    pub endpoint: Option<SocketAddr>,
    /// Age of the newest handshake; `None` without a session.
    pub last_handshake: Option<Duration>,
    /// Round trip of the newest handshake that this node began.
    pub rtt: Option<Duration>,
    /// Share of packets from the peer that did not arrive, 0 to 1; `None` without a session.
    pub loss: Option<f32>,
    /// Bytes received from the peer and decrypted, with the tunnel's headers.
    pub rx_bytes: u64,
    /// Bytes encrypted for the peer.
    pub tx_bytes: u64,
}

/// Descriptors of a device, which keep its interface and its port while a process ends.
#[derive(Debug)]
pub struct Descriptors {
    /// Queues of the TUN interface.
    pub queues: Vec<OwnedFd>,
    /// UDP sockets of the port, as many.
    pub sockets: Vec<OwnedFd>,
}

/// Packets that a device dropped, by reason, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Packets to an address that no peer has among its allowed IPs.
    pub unroutable: u64,
    /// Packets to a peer whose address is not known yet.
    pub no_endpoint: u64,
    /// Decrypted packets whose source the peer may not use.
    pub wrong_source: u64,
    /// Datagrams that are no messages, are replayed, or fail their authentication.
    pub invalid: u64,
    /// Messages of a key or a session that no peer has.
    pub unknown_peer: u64,
    /// Packets that the kernel refused, for example because the interface is down.
    pub refused: u64,
}

/// The reason why a device cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Creation of the TUN interface failed.
    #[error("failed to create the TUN interface {name}")]
    Tun {
        /// Name of the interface.
        name: String,
        /// Error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The port is taken, or the socket cannot be set up.
    #[error("failed to open UDP port {port}")]
    Socket {
        /// Number of the port.
        port: u16,
        /// Error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A thread or its wake-up descriptor cannot be created.
    #[error("failed to start the threads of the device")]
    Threads(#[source] io::Error),
    /// The key of a peer is that of the device, or no point that a key can be.
    #[error("{0} cannot be the key of a peer")]
    InvalidPeer(PublicKey),
    /// Two peers have one key.
    #[error("two peers have the key {0}")]
    DuplicatePeer(PublicKey),
    /// The prefix is longer than 32 bits.
    #[error("{0}/{1} is not an IPv4 network")]
    InvalidPrefix(Ipv4Addr, u8),
    /// Two peers have one network.
    #[error("two peers have the network {0}/{1}")]
    DuplicatePrefix(Ipv4Addr, u8),
    /// The endpoint is not an IPv4 address, or its port is 0.
    #[error("cannot send to the endpoint {0}")]
    InvalidEndpoint(SocketAddr),
    /// More peers than a device has room for.
    #[error("a device has at most {0} peers")]
    TooManyPeers(usize),
    /// The kernel refused a request about its own WireGuard, or has none.
    #[error("failed to {action}")]
    Kernel {
        /// The request.
        action: &'static str,
        /// Error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// An interface whose packets travel encrypted between peers.
///
/// Dropping it waits for its threads, so a device is never dropped on an async thread.
#[derive(Debug)]
pub struct Device(device::Threads);

impl Device {
    /// Creates the interface and the sockets in the network namespace of the calling thread, and
    /// starts the threads. The interface is down and has no address, and the device no peers.
    ///
    /// # Errors
    /// If the interface or the port is taken, or without `CAP_NET_ADMIN`.
    pub fn open(config: Config) -> Result<Self, Error> {
        Self::open_with(config, Settings::default())
    }

    /// As [`Self::open`], with settings.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with(config: Config, settings: Settings) -> Result<Self, Error> {
        device::Threads::start(&config, settings).map(Self)
    }

    /// Takes over the interface and the sockets of a device of another process, which has ended its
    /// threads, in the network namespace of the calling thread. The interface keeps its state and its
    /// waiting packets; the device has no peers and no sessions.
    ///
    /// # Errors
    /// If the descriptors are not those of an interface and of sockets as in `config`, whose `workers`
    /// do not count; they are closed then.
    pub fn resume(config: &Config, descriptors: Descriptors) -> Result<Self, Error> {
        device::Threads::resume(config, descriptors).map(Self)
    }

    /// Other descriptors of the interface and the sockets, which outlive this device.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn descriptors(&self) -> io::Result<Descriptors> {
        self.0.descriptors()
    }

    /// Replaces the set of peers.
    ///
    /// Sessions of peers that stay survive, also when their endpoint or allowed IPs change. An
    /// endpoint that a peer moved to by itself is replaced only if `peers` has another one than
    /// before. A new peer with an endpoint is greeted at once.
    ///
    /// # Errors
    /// If a peer is invalid or two exclude each other; nothing changes then.
    pub fn set_peers(&self, peers: Vec<Peer>) -> Result<(), Error> {
        self.0.set_peers(peers)
    }

    /// The state of each peer, ordered by key.
    #[must_use]
    pub fn stats(&self) -> Vec<PeerStats> {
        self.0.stats()
    }

    /// Packets dropped since the device was opened.
    #[must_use]
    pub fn drops(&self) -> Drops {
        self.0.drops()
    }

    /// The reason why a thread ended; the device no longer works and is to be opened again.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.0.failure()
    }

    /// The UDP port, also when the kernel chose it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// Begins a handshake with every peer now; tests of rekeying need not wait two minutes then.
    #[doc(hidden)]
    pub fn force_handshakes(&self) {
        self.0.force_handshakes();
    }
}

#[cfg(test)]
mod tests;
