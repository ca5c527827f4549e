//! Listening sockets on all addresses of the machine, IPv4 and IPv6 where available.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt},
};
use tokio::net::{TcpListener, TcpSocket};

/// Length of the accept queue in the kernel.
const BACKLOG: u32 = 1024;

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

/// Binds `::`, which takes IPv4 too, or `0.0.0.0` on a machine without IPv6.
fn on_all_addresses<T>(port: u16, bind: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    match bind((Ipv6Addr::UNSPECIFIED, port).into()) {
        Err(error) if is_without_v6(&error) => bind((Ipv4Addr::UNSPECIFIED, port).into()),
        bound => bound,
    }
}

fn is_without_v6(error: &io::Error) -> bool {
    let no_address = error.kind() == io::ErrorKind::AddrNotAvailable;
    no_address || error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
}
