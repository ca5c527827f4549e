//! UDP sockets of the ingress, and which of them gets a packet.
//!
//! Each worker has a socket of its own, so a packet must reach the worker that knows its connection.
//! Without further measures the kernel distributes packets by addresses and ports, which breaks a
//! connection whose client moves to another network or gets another port from its router. So the
//! workers choose connection ids that begin with their number, and a filter in the kernel picks the
//! socket by that number. The first packet of a connection has an id of the client's choice: it is
//! as good as random, and the same for all packets until the worker's own id takes its place.
//!
//! A successor of this process takes over the sockets. While this process serves its last
//! connections, the first packets of new ones wait in sockets that only the successor reads.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    num::NonZeroUsize,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with,
    sockopt::{
        set_ipv6_v6only, set_socket_recv_buffer_size, set_socket_reuseport,
        set_socket_send_buffer_size, socket_type,
    },
};

use super::steering::{Generation, attach};
use crate::handover::{Inherited, NamedSocket, is_on_all_addresses};

/// Socket buffer size requested from the kernel, which may grant less.
const SOCKET_BUFFER: usize = 4 << 20;
/// The number of a socket is in one byte.
const MAX_SOCKETS: usize = 256;
/// Prefix of the names of the sockets for a successor of this process.
const NAME: &str = "ingress.http3.";
/// Packets that are thrown away at most before a set of sockets is used again.
const MAX_STALE: usize = 100_000;

/// UDP sockets of one address, one for each worker, and as many again for a successor.
#[derive(Debug)]
pub struct DatagramSockets {
    addr: SocketAddr,
    /// By generation; without routing by connection only the even ones exist.
    sets: [Vec<UdpSocket>; 2],
    /// The set that is read.
    generation: Generation,
    by_connection: bool,
}

impl DatagramSockets {
    /// Binds sockets for `count` workers, at most 256, to `addr`; with port 0 the system chooses
    /// one.
    ///
    /// # Errors
    /// The system's error, most often that the address is in use.
    pub fn bind(addr: SocketAddr, count: NonZeroUsize) -> io::Result<Self> {
        if addr.port() != 0 {
            // With SO_REUSEPORT the kernel would share a port with any other process of this user,
            // so a socket without it checks first that the port is free.
            drop(bound(addr, false)?);
        }
        let first = bound(addr, true)?;
        let addr = first.local_addr()?;
        let count = count.get().min(MAX_SOCKETS);
        let more =
            |count| -> io::Result<Vec<_>> { (0..count).map(|_| bound(addr, true)).collect() };
        let mut even = vec![first];
        even.extend(more(count - 1)?);
        let odd = more(count)?;
        let mut sockets = Self {
            addr,
            sets: [even, odd],
            generation: Generation::Even,
            by_connection: true,
        };
        if let Err(why) = sockets.route_new(Generation::Even) {
            tracing::warn!(subsystem = "ingress", %why, "QUIC packets are distributed by address: connections end when their client moves, and new ones are refused while the daemon restarts");
            sockets.by_connection = false;
            sockets.sets[1].clear();
        }
        Ok(sockets)
    }

    /// Binds `port` on all addresses of the machine, IPv4 and IPv6 where available.
    ///
    /// # Errors
    /// The system's error, most often that the address is in use.
    pub fn bind_all(port: u16, count: NonZeroUsize) -> io::Result<Self> {
        let without_v6 = |why: &io::Error| {
            matches!(
                why.kind(),
                io::ErrorKind::Unsupported | io::ErrorKind::AddrNotAvailable
            ) || why.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
        };
        match Self::bind((Ipv6Addr::UNSPECIFIED, port).into(), count) {
            Err(why) if without_v6(&why) => Self::bind((Ipv4Addr::UNSPECIFIED, port).into(), count),
            bound => bound,
        }
    }

    /// Takes over the inherited sockets if they are bound to `port` of all addresses for `count`
    /// workers, or binds that port. Inherited ones that do not fit are closed.
    ///
    /// # Errors
    /// As [`DatagramSockets::bind_all`].
    pub fn open(inherited: &Inherited, port: u16, count: NonZeroUsize) -> io::Result<Self> {
        let passed = inherited.take_prefixed(NAME);
        if !passed.is_empty() {
            match Self::inherited(passed) {
                Ok(sockets)
                    if is_on_all_addresses(sockets.addr, port)
                        && sockets.count() == count.get().min(MAX_SOCKETS) =>
                {
                    return Ok(sockets);
                }
                Ok(sockets) => {
                    tracing::info!(subsystem = "ingress", addr = %sockets.addr, count = sockets.count(), "inherited UDP sockets closed: port or number of workers differ");
                }
                Err(why) => {
                    tracing::warn!(subsystem = "ingress", %why, "inherited UDP sockets closed");
                }
            }
        }
        Self::bind_all(port, count)
    }

    /// Takes over the sockets of another process ([`DatagramSockets::into_named`]).
    ///
    /// # Errors
    /// If one is missing, of another kind, or has another address than the rest, or the kernel does
    /// not route by connection id.
    pub fn inherited(passed: Vec<NamedSocket>) -> io::Result<Self> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let mut found = Vec::with_capacity(passed.len());
        for (name, socket) in passed {
            let name = SocketName::parse(&name).ok_or_else(|| invalid("not a name of a socket"))?;
            if socket_type(&socket)? != SocketType::DGRAM {
                return Err(invalid("an inherited descriptor is no UDP socket"));
            }
            let socket = UdpSocket::from(socket);
            socket.set_nonblocking(true)?;
            found.push((name, socket));
        }
        found.sort_by_key(|(name, _)| (name.generation.bit(), name.number));
        let Some((first, socket)) = found.first() else {
            return Err(invalid("no descriptor was inherited"));
        };
        let (next, addr, count) = (first.next, socket.local_addr()?, found.len() / 2);
        let expected = [Generation::Even, Generation::Odd];
        let expected = expected.into_iter().flat_map(|generation| {
            (0..count).map(move |number| SocketName {
                generation,
                number,
                next,
            })
        });
        if !expected.eq(found.iter().map(|(name, _)| *name)) {
            return Err(invalid("inherited sockets are incomplete"));
        }
        let mut even: Vec<_> = found.into_iter().map(|(_, socket)| socket).collect();
        for socket in &even {
            if socket.local_addr()? != addr {
                return Err(invalid("inherited sockets have different addresses"));
            }
        }
        let odd = even.split_off(count);
        let sockets = Self {
            addr,
            sets: [even, odd],
            generation: next,
            by_connection: true,
        };
        sockets.route_new(next)?;
        Ok(sockets)
    }

    /// Has new connections wait for a successor, and duplicates all sockets for it. Packets of the
    /// connections that exist still arrive here. `None` if the kernel cannot tell them apart.
    ///
    /// # Errors
    /// If the process is out of descriptors, or the kernel refuses.
    pub(in super::super) fn hand_over(&self) -> io::Result<Option<Self>> {
        if !self.by_connection {
            return Ok(None);
        }
        let next = self.generation.next();
        let [even, odd] = &self.sets;
        let cloned = |set: &[UdpSocket]| -> io::Result<Vec<_>> {
            set.iter().map(UdpSocket::try_clone).collect()
        };
        let successor = Self {
            addr: self.addr,
            sets: [cloned(even)?, cloned(odd)?],
            generation: next,
            by_connection: true,
        };
        // Left from connections of the process before this one.
        let mut packet = [0; 1];
        for socket in next.of(&self.sets) {
            for _ in 0..MAX_STALE {
                if socket.recv(&mut packet).is_err() {
                    break;
                }
            }
        }
        self.route_new(next)?;
        Ok(Some(successor))
    }

    /// The sockets with their names, to be passed to another process.
    #[must_use]
    pub fn into_named(self) -> Vec<NamedSocket> {
        let next = self.generation;
        let sets = [Generation::Even, Generation::Odd]
            .into_iter()
            .zip(self.sets);
        let named = sets.flat_map(|(generation, set)| {
            set.into_iter().enumerate().map(move |(number, socket)| {
                let name = SocketName {
                    generation,
                    number,
                    next,
                };
                (name.to_string(), OwnedFd::from(socket))
            })
        });
        named.collect()
    }

    /// The address the sockets are bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Whether a packet reaches its connection whatever address it comes from.
    pub(in super::super) fn routes_by_connection(&self) -> bool {
        self.by_connection
    }

    /// Part of this process's connection ids beside the number of the worker.
    pub(in super::super) fn generation(&self) -> Generation {
        self.generation
    }

    /// Number of sockets that are read.
    fn count(&self) -> usize {
        self.generation.of(&self.sets).len()
    }

    /// Duplicates of the sockets to read, in the order of their numbers.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub(in super::super) fn shares(&self) -> io::Result<Vec<UdpSocket>> {
        let sockets = self.generation.of(&self.sets).iter();
        sockets.map(UdpSocket::try_clone).collect()
    }

    fn route_new(&self, to: Generation) -> io::Result<()> {
        let [even, _] = &self.sets;
        let first = even.first().ok_or(io::ErrorKind::NotFound)?;
        attach(first, even.len(), to)
    }
}

/// Name of a socket for a successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SocketName {
    generation: Generation,
    number: usize,
    /// The set that the successor reads.
    next: Generation,
}

impl SocketName {
    fn parse(name: &str) -> Option<Self> {
        let mut fields = name.strip_prefix(NAME)?.split('.');
        let mut generation = || Generation::from_bit(fields.next()?.parse().ok()?);
        let (next, generation) = (generation()?, generation()?);
        let number = fields.next()?.parse().ok()?;
        fields.next().is_none().then_some(Self {
            generation,
            number,
            next,
        })
    }
}

impl std::fmt::Display for SocketName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (next, generation) = (self.next.bit(), self.generation.bit());
        write!(f, "{NAME}{next}.{generation}.{}", self.number)
    }
}

fn bound(addr: SocketAddr, reuse_port: bool) -> io::Result<UdpSocket> {
    let family = if addr.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
    if addr.is_ipv6() {
        // The default depends on a sysctl; here `::` also receives IPv4.
        set_ipv6_v6only(&socket, false)?;
    }
    set_socket_reuseport(socket.as_fd(), reuse_port)?;
    // Large buffers avoid packet loss on bursts; smaller ones work as well.
    let _ = set_socket_recv_buffer_size(&socket, SOCKET_BUFFER);
    let _ = set_socket_send_buffer_size(&socket, SOCKET_BUFFER);
    bind(&socket, &addr)?;
    Ok(UdpSocket::from(socket))
}

#[cfg(test)]
mod tests;
