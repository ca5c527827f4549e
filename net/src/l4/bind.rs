//! Listening sockets on all addresses of the machine, IPv4 and IPv6 where available.

use std::{io, os::fd::OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use tokio::net::{TcpListener, TcpSocket};

use crate::{handover::is_on_all_addresses, listen::on_all_addresses};

/// Length of the accept queue in the kernel.
const BACKLOG: u32 = 1024;

/// Takes over a listening TCP socket of an earlier process.
///
/// # Errors
/// If it does not listen for TCP connections on `port` of all addresses.
pub(super) fn inherited_tcp(socket: OwnedFd, port: u16) -> io::Result<TcpListener> {
    let listens = sockopt::socket_type(&socket)? == SocketType::STREAM
        && sockopt::socket_acceptconn(&socket)?;
    let listener = std::net::TcpListener::from(socket);
    if !listens || !is_on_all_addresses(listener.local_addr()?, port) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Takes over a UDP socket of an earlier process.
///
/// # Errors
/// If it is not a UDP socket bound to `port` of all addresses.
pub(super) fn inherited_udp(socket: OwnedFd, port: u16) -> io::Result<std::net::UdpSocket> {
    let datagrams = sockopt::socket_type(&socket)? == SocketType::DGRAM;
    let socket = std::net::UdpSocket::from(socket);
    if !datagrams || !is_on_all_addresses(socket.local_addr()?, port) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Listens for TCP connections, even while connections of an earlier listener are open.
pub(super) fn tcp(port: u16) -> io::Result<TcpListener> {
    on_all_addresses(port, |addr| {
        let socket = if addr.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            let socket = TcpSocket::new_v6()?;
            // The default depends on a sysctl; here `::` also accepts IPv4.
            sockopt::set_ipv6_v6only(&socket, false)?;
            socket
        };
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        socket.listen(BACKLOG)
    })
}

/// Binds a UDP socket, which does not block.
pub(super) fn udp(port: u16) -> io::Result<std::net::UdpSocket> {
    on_all_addresses(port, |addr| {
        let family = if addr.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
        if addr.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        bind(&socket, &addr)?;
        Ok(socket.into())
    })
}
