//! UDP sockets with segmentation and receive offload.

use std::{
    io::{self, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, socket_with,
    sockopt::{self, Ipv4PathMtuDiscovery},
};

/// Largest payload of a UDP datagram, in bytes.
pub(super) const MAX_PAYLOAD: usize = 65_507;
/// Most datagrams of one call (`UDP_MAX_SEGMENTS` of `linux/udp.h`).
const MAX_SEGMENTS: usize = 64;
/// Wanted size of the kernel's buffers, in bytes: 5 ms at 10 Gbit/s.
const KERNEL_BUFFER: usize = 6 << 20;

/// A UDP socket on all IPv4 addresses; does not block.
#[derive(Debug)]
pub(super) struct Socket {
    socket: UdpSocket,
    offload: UdpSocketState,
}

/// Datagrams of one length to one address, of which the last may be shorter.
#[derive(Debug)]
pub(super) struct Batch {
    buffer: Box<[u8]>,
    len: usize,
    segment: usize,
    count: usize,
    to: SocketAddrV4,
    /// A shorter datagram ended the batch.
    closed: bool,
}

/// Opens `count` sockets on one port. The kernel spreads peers over them by their address, so the
/// datagrams of a peer stay in order.
pub(super) fn open(port: u16, count: usize) -> io::Result<Vec<Socket>> {
    // Sockets that share a port may do so with another program, too: the first has the port to
    // itself before it lets the others in.
    let first = Socket::bind(port, Share::Later)?;
    let port = first.port()?;
    let mut sockets = vec![first];
    for _ in 1..count {
        sockets.push(Socket::bind(port, Share::Before)?);
    }
    Ok(sockets)
}

/// Takes over the sockets of a port that another process opened with [`open`].
///
/// # Errors
/// If a descriptor is none of a UDP socket on this port, unless that is 0, or there is none.
pub(super) fn resume(port: u16, sockets: Vec<OwnedFd>) -> io::Result<Vec<Socket>> {
    let sockets = sockets.into_iter().map(|socket| {
        let is_udp = sockopt::socket_type(&socket)? == SocketType::DGRAM;
        let socket = Socket::of(socket)?;
        let is_on_port = [0, socket.port()?].contains(&port);
        match is_udp && is_on_port {
            true => Ok(socket),
            false => Err(io::ErrorKind::InvalidInput.into()),
        }
    });
    let sockets: Vec<_> = sockets.collect::<io::Result<_>>()?;
    match sockets.is_empty() {
        true => Err(io::ErrorKind::InvalidInput.into()),
        false => Ok(sockets),
    }
}

/// When a socket shares its port with others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    /// Before the bind, which joins the sockets of the port.
    Before,
    /// After the bind, which fails if any other socket has the port.
    Later,
}

impl Socket {
    fn bind(port: u16, share: Share) -> io::Result<Self> {
        let kind = (AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC);
        let socket = socket_with(kind.0, kind.1, kind.2, None)?;
        sockopt::set_socket_reuseport(&socket, share == Share::Before)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
        sockopt::set_socket_reuseport(&socket, true)?;
        // Beyond the limits of the system only with CAP_NET_ADMIN; smaller buffers work, too.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, KERNEL_BUFFER);
        let _ = sockopt::set_socket_send_buffer_size_force(&socket, KERNEL_BUFFER);
        Self::of(socket)
    }

    /// Prepares a bound socket.
    fn of(socket: OwnedFd) -> io::Result<Self> {
        let socket = UdpSocket::from(socket);
        let offload = UdpSocketState::new((&socket).into())?;
        // Unlike QUIC, a tunnel of fixed MTU has to cross paths of a smaller one: in fragments.
        sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DONT)?;
        Ok(Self { socket, offload })
    }

    /// Another descriptor of the socket.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.socket.try_clone()?.into())
    }

    pub(super) fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }

    /// Receives into the buffers, of which each may get several datagrams of one sender.
    pub(super) fn receive(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        received: &mut [RecvMeta],
    ) -> io::Result<usize> {
        self.offload.recv((&self.socket).into(), buffers, received)
    }

    /// Sends one datagram.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when the kernel's buffer is full.
    pub(super) fn send(&self, to: SocketAddrV4, datagram: &[u8]) -> io::Result<()> {
        self.transmit(to, datagram, None)
    }

    /// Sends what is left of the batch. After [`io::ErrorKind::WouldBlock`] the rest is still in it;
    /// other errors concern this peer's path and empty the batch.
    pub(super) fn send_batch(&self, batch: &mut Batch) -> io::Result<()> {
        if batch.len == 0 {
            return Ok(());
        }
        let contents = &batch.buffer[..batch.len];
        let joined = batch.count > 1 && self.offload.max_gso_segments() > 1;
        let sent = if joined {
            self.transmit(batch.to, contents, Some(batch.segment))
        } else {
            Err(io::ErrorKind::Unsupported.into())
        };
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Ok(()) => {}
            // Segments above the MTU of the route, or no offload: one by one, in fragments.
            Err(_) => return self.send_singly(batch),
        }
        batch.clear();
        Ok(())
    }

    fn send_singly(&self, batch: &mut Batch) -> io::Result<()> {
        let mut sent = 0;
        let mut outcome = Ok(());
        for datagram in batch.buffer[..batch.len].chunks(batch.segment) {
            match self.transmit(batch.to, datagram, None) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    outcome = Err(error);
                    break;
                }
                Ok(()) => {}
                Err(error) => outcome = Err(error),
            }
            sent += datagram.len();
        }
        batch.discard(sent);
        outcome
    }

    fn transmit(
        &self,
        to: SocketAddrV4,
        contents: &[u8],
        segment: Option<usize>,
    ) -> io::Result<()> {
        let transmit = Transmit {
            destination: SocketAddr::V4(to),
            ecn: None,
            contents,
            segment_size: segment,
            src_ip: None,
        };
        self.offload.try_send((&self.socket).into(), &transmit)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            // Room behind the last datagram, for a message of another length than expected.
            buffer: vec![0; MAX_PAYLOAD + 2048].into_boxed_slice(),
            len: 0,
            segment: 0,
            count: 0,
            to: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
            closed: false,
        }
    }

    /// Whether a datagram can be added; an empty batch takes any.
    pub(super) fn takes(&self, to: SocketAddrV4, len: usize) -> bool {
        self.len == 0
            || (to == self.to
                && len <= self.segment
                && !self.closed
                && self.count < MAX_SEGMENTS
                && self.len + len <= MAX_PAYLOAD)
    }

    /// The free space, where the next datagram is written.
    pub(super) fn space(&mut self) -> &mut [u8] {
        &mut self.buffer[self.len..]
    }

    /// Adds `len` bytes that were written to [`Self::space`]; [`Self::takes`] has allowed it.
    pub(super) fn add(&mut self, to: SocketAddrV4, len: usize) {
        if self.len == 0 {
            self.to = to;
            self.segment = len;
        }
        self.closed = len < self.segment;
        self.len += len;
        self.count += 1;
    }

    fn discard(&mut self, bytes: usize) {
        if bytes >= self.len {
            return self.clear();
        }
        self.buffer.copy_within(bytes..self.len, 0);
        self.len -= bytes;
        self.count = self.len.div_ceil(self.segment);
    }

    fn clear(&mut self) {
        self.len = 0;
        self.count = 0;
        self.closed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_holds_datagrams_of_one_length() {
        let (here, there) = (
            SocketAddrV4::new([10, 0, 0, 1].into(), 1),
            SocketAddrV4::new([10, 0, 0, 2].into(), 1),
        );
        let mut batch = Batch::new();
        assert!(batch.takes(here, 1452));
        batch.add(here, 1452);
        assert!(batch.takes(here, 1452) && batch.takes(here, 100));
        assert!(!batch.takes(there, 1452) && !batch.takes(here, 1453));
        batch.add(here, 100);
        assert!(!batch.takes(here, 100), "a shorter datagram is the last");
        batch.clear();
        assert!(batch.takes(there, 2000));
        for _ in 0..45 {
            assert!(batch.takes(here, 1452));
            batch.add(here, 1452);
        }
        assert!(!batch.takes(here, 1452), "more than one datagram can carry");
    }

    #[test]
    fn batch_arrives_as_its_datagrams() {
        let sockets = open(0, 2).unwrap();
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(to) = receiver.local_addr().unwrap() else {
            panic!()
        };
        let mut batch = Batch::new();
        for (fill, len) in [(1, 500), (2, 500), (3, 20)] {
            batch.space()[..len].fill(fill);
            assert!(batch.takes(to, len));
            batch.add(to, len);
        }
        sockets[0].send_batch(&mut batch).unwrap();
        let mut buffer = [0; 2000];
        for (fill, len) in [(1, 500), (2, 500), (3, 20)] {
            let (received, from) = receiver.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..received], vec![fill; len]);
            assert_eq!(from.port(), sockets[0].port().unwrap());
        }
    }

    #[test]
    fn taken_port_is_refused() {
        let first = open(0, 2).unwrap();
        let port = first[0].port().unwrap();
        assert_eq!(
            open(port, 2).err().unwrap().kind(),
            io::ErrorKind::AddrInUse
        );
    }
}
