//! UDP sockets of the ingress, and which of them gets a packet.
//!
//! Each worker has a socket of its own, so a packet must reach the worker that knows its connection.
//! Without further measures the kernel distributes packets by addresses and ports, which breaks a
//! connection whose client moves to another network or gets another port from its router. So the
//! workers choose connection ids that begin with their number, and a filter in the kernel picks the
//! socket by that number. The first packet of a connection has an id of the client's choice: it is
//! as good as random, and the same for all packets until the worker's own id takes its place.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    num::NonZeroUsize,
    os::fd::{AsFd, OwnedFd},
};

use nix::{libc, sys::socket::setsockopt, sys::socket::sockopt::AttachReusePortCbpf};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with,
    sockopt::{
        set_ipv6_v6only, set_socket_recv_buffer_size, set_socket_reuseport,
        set_socket_send_buffer_size,
    },
};

/// Socket buffer size requested from the kernel, which may grant less.
const SOCKET_BUFFER: usize = 4 << 20;
/// The number of a socket is in one byte.
const MAX_SOCKETS: usize = 256;

/// UDP sockets of one address, one for each worker.
#[derive(Debug)]
pub struct DatagramSockets {
    addr: SocketAddr,
    sockets: Vec<UdpSocket>,
    by_connection: bool,
}

impl DatagramSockets {
    /// Binds `count` sockets, at most 256, to `addr`; with port 0 the system chooses one.
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
        let mut sockets = vec![first];
        for _ in 1..count.get().min(MAX_SOCKETS) {
            sockets.push(bound(addr, true)?);
        }
        let by_connection = match sockets.first().map(|socket| attach(socket, sockets.len())) {
            Some(Ok(())) => true,
            Some(Err(why)) => {
                tracing::warn!(subsystem = "ingress", %why, "QUIC packets are distributed by address: connections end when their client moves");
                false
            }
            None => false,
        };
        Ok(Self {
            addr,
            sockets,
            by_connection,
        })
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

    /// The address the sockets are bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Whether a packet reaches its connection whatever address it comes from.
    pub(in super::super) fn routes_by_connection(&self) -> bool {
        self.by_connection
    }

    /// The sockets, in the order of their numbers.
    pub(in super::super) fn into_sockets(self) -> Vec<UdpSocket> {
        self.sockets
    }
}

/// Lets the kernel pick among `count` sockets, bound in the order of their numbers, by the first
/// byte of the connection id (RFC 8999, section 5).
fn attach(socket: &UdpSocket, count: usize) -> io::Result<()> {
    const LOAD_BYTE: u16 = 0x30; // BPF_LD | BPF_B | BPF_ABS
    const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
    const JUMP_IF_SET: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
    const MODULO: u16 = 0x94; // BPF_ALU | BPF_MOD | BPF_K
    const RETURN: u16 = 0x16; // BPF_RET | BPF_A
    let count = u32::try_from(count).map_err(io::Error::other)?;
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let mut program = [
        step(LOAD_BYTE, 0, 0),
        step(JUMP_IF_SET, 2, 0x80), // a long header has version and length before the id
        step(LOAD_BYTE, 0, 1),
        step(JUMP, 0, 1),
        step(LOAD_BYTE, 0, 6),
        step(MODULO, 0, count),
        step(RETURN, 0, 0),
    ];
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let filter = libc::sock_fprog {
        len: length,
        filter: program.as_mut_ptr(),
    };
    setsockopt(socket, AttachReusePortCbpf, &filter).map_err(io::Error::from)
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
mod tests {
    use super::*;

    const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    fn bind(count: usize) -> DatagramSockets {
        DatagramSockets::bind(LOOPBACK, NonZeroUsize::new(count).unwrap()).unwrap()
    }

    /// A packet with a connection id that begins with `first`.
    fn packet(long: bool, first: u8) -> Vec<u8> {
        if long {
            [&[0xc0, 0, 0, 0, 1, 8, first][..], &[0; 40]].concat()
        } else {
            [&[0x40, first][..], &[0xff; 40]].concat()
        }
    }

    #[test]
    fn packets_reach_the_socket_of_their_connection() {
        let sockets = bind(3);
        assert!(sockets.routes_by_connection());
        let addr = sockets.local_addr();
        let sockets = sockets.into_sockets();
        for (n, first) in (0..=255_u8).step_by(7).enumerate() {
            // Every packet comes from another port, as if its client had moved.
            let client = UdpSocket::bind(LOOPBACK).unwrap();
            client.send_to(&packet(n % 2 == 0, first), addr).unwrap();
            let mut buffer = [0; 64];
            for (number, socket) in sockets.iter().enumerate() {
                let received = socket.recv(&mut buffer).is_ok();
                assert_eq!(
                    received,
                    number == usize::from(first) % 3,
                    "{first} at {number}"
                );
            }
        }
    }

    #[test]
    fn port_of_another_process_is_refused() {
        let first = bind(2);
        let count = NonZeroUsize::new(2).unwrap();
        let again = DatagramSockets::bind(first.local_addr(), count);
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
