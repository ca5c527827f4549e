//! Listening sockets of the ingress.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    num::NonZeroUsize,
    os::fd::{AsFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with,
    sockopt::{
        set_ipv6_v6only, set_socket_reuseaddr, set_socket_reuseport, socket_acceptconn, socket_type,
    },
};

use crate::{
    handover::{Inherited, is_on_all_addresses},
    listen::on_all_addresses,
};

/// Length of the accept queue of each socket in the kernel.
const BACKLOG: i32 = 4096;

/// Listening TCP sockets of one address, among which the kernel distributes new connections
/// (`SO_REUSEPORT`).
///
/// They are plain descriptors without a runtime, so that they can be bound here, inherited from the
/// process before an upgrade ([`ListenSockets::inherited`]) and handed to the next one
/// ([`ListenSockets::into_fds`]). A port stays open until every duplicate of its sockets is closed.
#[derive(Debug)]
pub struct ListenSockets {
    addr: SocketAddr,
    sockets: Vec<TcpListener>,
}

impl ListenSockets {
    /// Binds `count` sockets to `addr`, even while connections of an earlier listener are open on
    /// it; with port 0 the system chooses one.
    ///
    /// # Errors
    /// The system's error, most often that the address is in use.
    pub fn bind(addr: SocketAddr, count: NonZeroUsize) -> io::Result<Self> {
        if addr.port() != 0 {
            // With SO_REUSEPORT the kernel would share a port with any other process of this user,
            // so a socket without it checks first that the port is free.
            drop(bound(addr, false)?);
        }
        let first = listening(addr)?;
        let addr = first.local_addr()?;
        let mut sockets = vec![first];
        for _ in 1..count.get() {
            sockets.push(listening(addr)?);
        }
        Ok(Self { addr, sockets })
    }

    /// Binds `port` on all addresses of the machine, IPv4 and IPv6 where available.
    ///
    /// # Errors
    /// The system's error, most often that the address is in use.
    pub fn bind_all(port: u16, count: NonZeroUsize) -> io::Result<Self> {
        on_all_addresses(port, |addr| Self::bind(addr, count))
    }

    /// Takes over the inherited sockets of `name` if they listen on `port` of all addresses, or binds
    /// that port. Inherited ones that do not fit are closed.
    ///
    /// # Errors
    /// As [`ListenSockets::bind_all`].
    pub fn open(
        inherited: &Inherited,
        name: &str,
        port: u16,
        count: NonZeroUsize,
    ) -> io::Result<Self> {
        let passed = inherited.take(name);
        if !passed.is_empty() {
            match Self::inherited(passed) {
                Ok(sockets) if is_on_all_addresses(sockets.addr, port) => return Ok(sockets),
                Ok(sockets) => {
                    tracing::info!(subsystem = "ingress", name, addr = %sockets.addr, "inherited sockets closed: the port is another");
                }
                Err(why) => {
                    tracing::warn!(subsystem = "ingress", name, %why, "inherited sockets closed");
                }
            }
        }
        Self::bind_all(port, count)
    }

    /// Takes over sockets that another process has bound.
    ///
    /// # Errors
    /// If there is none, one is not a listening stream socket, or their addresses differ.
    pub fn inherited(fds: Vec<OwnedFd>) -> io::Result<Self> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let mut sockets = Vec::with_capacity(fds.len());
        for fd in fds {
            if socket_type(&fd)? != SocketType::STREAM || !socket_acceptconn(&fd)? {
                return Err(invalid("an inherited descriptor is not listening"));
            }
            let socket = TcpListener::from(fd);
            socket.set_nonblocking(true)?;
            sockets.push(socket);
        }
        let Some(first) = sockets.first() else {
            return Err(invalid("no descriptor was inherited"));
        };
        let addr = first.local_addr()?;
        for socket in &sockets {
            if socket.local_addr()? != addr {
                return Err(invalid("inherited sockets have different addresses"));
            }
        }
        Ok(Self { addr, sockets })
    }

    /// The address the sockets are bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Duplicates of the same sockets; the accept queues are shared.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        let sockets = self.sockets.iter().map(TcpListener::try_clone);
        Ok(Self {
            addr: self.addr,
            sockets: sockets.collect::<io::Result<_>>()?,
        })
    }

    /// The descriptors, to be passed to another process.
    #[must_use]
    pub fn into_fds(self) -> Vec<OwnedFd> {
        self.sockets.into_iter().map(OwnedFd::from).collect()
    }

    /// A duplicate for each of `workers`, with its number: each socket has a worker and each worker
    /// a socket.
    pub(super) fn shares(&self, workers: usize) -> io::Result<Vec<(usize, TcpListener)>> {
        let sockets = self.sockets.iter().cycle();
        let numbered = (0..workers).cycle().zip(sockets);
        let count = self.sockets.len().max(workers);
        let shares = numbered
            .take(count)
            .map(|(n, socket)| Ok((n, socket.try_clone()?)));
        shares.collect()
    }
}

fn listening(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = bound(addr, true)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

fn bound(addr: SocketAddr, reuse_port: bool) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    if addr.is_ipv6() {
        // The default depends on a sysctl; here `::` also accepts IPv4.
        set_ipv6_v6only(&socket, false)?;
    }
    set_socket_reuseaddr(socket.as_fd(), true)?;
    set_socket_reuseport(socket.as_fd(), reuse_port)?;
    bind(&socket, &addr)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;
    use crate::handover::wait_refused;

    const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    fn count(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).unwrap()
    }

    #[test]
    fn port_of_another_listener_is_refused() {
        let first = ListenSockets::bind(LOOPBACK, count(2)).unwrap();
        let again = ListenSockets::bind(first.local_addr(), count(2));
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn inherited_sockets_keep_the_port_open() {
        // An address of its own: the port is given to no other test after it is closed.
        let first = ListenSockets::bind("127.0.0.78:0".parse().unwrap(), count(3)).unwrap();
        let addr = first.local_addr();
        let next = ListenSockets::inherited(first.try_clone().unwrap().into_fds()).unwrap();
        drop(first);
        assert_eq!(next.local_addr(), addr);
        TcpStream::connect(addr).unwrap();
        drop(next);
        wait_refused(addr);
    }

    #[test]
    fn descriptors_that_do_not_listen_are_not_inherited() {
        let bound = bound(LOOPBACK, false).unwrap();
        assert!(ListenSockets::inherited(vec![bound]).is_err());
        assert!(ListenSockets::inherited(Vec::new()).is_err());
        let fds = [(); 2].map(|()| ListenSockets::bind(LOOPBACK, count(1)).unwrap().into_fds());
        assert!(ListenSockets::inherited(fds.into_iter().flatten().collect()).is_err());
    }

    #[test]
    fn sockets_and_workers_are_all_used() {
        for (sockets, workers) in [(1, 1), (1, 3), (3, 1), (2, 3), (3, 2)] {
            let bound = ListenSockets::bind(LOOPBACK, count(sockets)).unwrap();
            let shares = bound.shares(workers).unwrap();
            assert_eq!(shares.len(), sockets.max(workers));
            for worker in 0..workers {
                assert!(shares.iter().any(|(n, _)| *n == worker));
            }
        }
    }
}
