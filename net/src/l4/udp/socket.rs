//! A UDP socket on all addresses that replies from the address a client sent to.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsRawFd,
    sync::{Mutex, PoisonError},
};

use nix::{
    cmsg_space, libc,
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg,
        setsockopt, sockopt,
    },
};
use tokio::{io::Interest, net::UdpSocket};

/// The socket; on an IPv6 socket IPv4 addresses are mapped into IPv6.
#[derive(Debug)]
pub(super) struct Socket {
    socket: UdpSocket,
    is_v6: bool,
    /// Room for the control messages of a datagram; only one task receives.
    control: Mutex<Vec<u8>>,
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) len: usize,
    pub(super) from: SocketAddr,
    /// Address that the client sent it to, if the kernel said so.
    pub(super) local: Option<IpAddr>,
}

impl Socket {
    /// Takes a bound socket that does not block.
    pub(super) fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let is_v6 = socket.local_addr()?.is_ipv6();
        if is_v6 {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        }
        Ok(Self {
            socket: UdpSocket::from_std(socket)?,
            is_v6,
            control: Mutex::new(cmsg_space!(libc::in6_pktinfo)),
        })
    }

    pub(super) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Receives one datagram.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if none is waiting.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        self.socket.try_io(Interest::READABLE, || {
            let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
            let mut buffers = [IoSliceMut::new(buffer)];
            let message = recvmsg::<SockaddrStorage>(
                self.socket.as_raw_fd(),
                &mut buffers,
                Some(&mut control),
                MsgFlags::empty(),
            )?;
            let from = message.address.as_ref().and_then(socket_addr);
            Ok(Received {
                len: message.bytes,
                from: from.ok_or(io::ErrorKind::InvalidData)?,
                local: message.cmsgs()?.find_map(|control| local(&control)),
            })
        })
    }

    /// Sends one datagram from `local`, an address that [`Received::local`] named.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the kernel's buffer is full.
    pub(super) fn send(
        &self,
        to: SocketAddr,
        local: Option<IpAddr>,
        datagram: &[u8],
    ) -> io::Result<()> {
        let (v4, v6) = match local {
            Some(IpAddr::V4(ip)) if !self.is_v6 => (Some(packet_info_v4(ip)), None),
            Some(IpAddr::V4(ip)) => (None, Some(packet_info_v6(ip.to_ipv6_mapped()))),
            Some(IpAddr::V6(ip)) => (None, Some(packet_info_v6(ip))),
            None => (None, None),
        };
        let v4 = v4.as_ref().map(ControlMessage::Ipv4PacketInfo);
        let v6 = v6.as_ref().map(ControlMessage::Ipv6PacketInfo);
        let control: Vec<_> = v4.into_iter().chain(v6).collect();
        sendmsg(
            self.socket.as_raw_fd(),
            &[IoSlice::new(datagram)],
            &control,
            MsgFlags::MSG_DONTWAIT,
            Some(&SockaddrStorage::from(to)),
        )?;
        Ok(())
    }
}

fn socket_addr(addr: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = addr
        .as_sockaddr_in()
        .map(|addr| SocketAddr::V4((*addr).into()));
    v4.or_else(|| {
        addr.as_sockaddr_in6()
            .map(|addr| SocketAddr::V6((*addr).into()))
    })
}

fn local(control: &ControlMessageOwned) -> Option<IpAddr> {
    match control {
        ControlMessageOwned::Ipv4PacketInfo(info) => {
            Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into())
        }
        ControlMessageOwned::Ipv6PacketInfo(info) => {
            Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn packet_info_v4(ip: Ipv4Addr) -> libc::in_pktinfo {
    libc::in_pktinfo {
        // The route decides about the interface.
        ipi_ifindex: 0,
        ipi_spec_dst: libc::in_addr {
            s_addr: u32::from(ip).to_be(),
        },
        ipi_addr: libc::in_addr { s_addr: 0 },
    }
}

fn packet_info_v6(ip: Ipv6Addr) -> libc::in6_pktinfo {
    libc::in6_pktinfo {
        ipi6_addr: libc::in6_addr {
            s6_addr: ip.octets(),
        },
        // The route decides about the interface; a link-local client has it in its address.
        ipi6_ifindex: 0,
    }
}
