//! Generic netlink socket of the family `wireguard`.
//!
//! Source: the kernel's `Documentation/userspace-api/netlink/intro.rst`.

use std::{io, os::fd::OwnedFd, time::Duration};

use netlink_packet_generic::{
    GenlMessage,
    ctrl::{GenlCtrl, GenlCtrlCmd, nlas::GenlCtrlAttrs},
};
use netlink_packet_wireguard::WireguardMessage;
use rtnetlink::packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink, recv, send,
        socket_with,
        sockopt::{self, Timeout},
    },
};
use zeroize::Zeroizing;

use super::{Error, kernel};

/// Name of the family.
const FAMILY: &str = "wireguard";
/// Size of the receive buffer; the kernel's lists come in parts of at most 32 KiB.
const RECEIVE: usize = 64 << 10;
/// Longest wait for the kernel.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts to list a device that changes meanwhile.
const ATTEMPTS: usize = 5;

/// A socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    family: u16,
    sequence: u32,
}

/// Result of a list.
enum Listed<T> {
    Whole(Vec<T>),
    /// The objects changed meanwhile.
    Interrupted,
}

impl Socket {
    /// Opens a socket.
    ///
    /// # Errors
    /// If the kernel has no WireGuard.
    pub(super) fn open() -> Result<Self, Error> {
        let open = || {
            let fd = socket_with(
                AddressFamily::NETLINK,
                SocketType::RAW,
                SocketFlags::CLOEXEC,
                Some(netlink::GENERIC),
            )?;
            bind(&fd, &netlink::SocketAddrNetlink::new(0, 0))?;
            sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(TIMEOUT))?;
            Ok(fd)
        };
        let failed = |errno: Errno| kernel("open a generic netlink socket")(errno.into());
        Self::over(open().map_err(failed)?, FAMILY)
    }

    /// Looks the number of a family up.
    pub(super) fn over(fd: OwnedFd, family: &str) -> Result<Self, Error> {
        let mut socket = Self {
            fd,
            family: 0,
            sequence: 0,
        };
        let request = GenlMessage::from_payload(GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(family.to_owned())],
        });
        let found = socket.transact(request, NLM_F_ACK);
        let answers = match found.map_err(kernel("find WireGuard in the kernel"))? {
            Listed::Whole(answers) => answers,
            Listed::Interrupted => Vec::new(),
        };
        let mut attributes = answers.into_iter().flat_map(|answer| answer.payload.nlas);
        let family = attributes.find_map(|attribute| match attribute {
            GenlCtrlAttrs::FamilyId(family) => Some(family),
            _ => None,
        });
        let unknown = || kernel("find WireGuard in the kernel")(io::ErrorKind::NotFound.into());
        socket.family = family.ok_or_else(unknown)?;
        Ok(socket)
    }

    /// Changes a device.
    pub(super) fn set(&mut self, request: WireguardMessage) -> Result<(), Error> {
        let request = self.request(request);
        let done = self.transact(request, NLM_F_ACK);
        done.map(drop)
            .map_err(kernel("change the WireGuard device"))
    }

    /// Lists a device: the answers to `request`.
    pub(super) fn dump(
        &mut self,
        request: WireguardMessage,
    ) -> Result<Vec<WireguardMessage>, Error> {
        for _ in 0..ATTEMPTS {
            let request = self.request(request.clone());
            let listed = self.transact(request, NLM_F_DUMP);
            match listed.map_err(kernel("read the WireGuard device"))? {
                Listed::Whole(answers) => {
                    return Ok(answers.into_iter().map(|answer| answer.payload).collect());
                }
                Listed::Interrupted => {}
            }
        }
        let changing = io::Error::from(io::ErrorKind::ResourceBusy);
        Err(kernel("read the WireGuard device")(changing))
    }

    fn request(&self, request: WireguardMessage) -> GenlMessage<WireguardMessage> {
        let mut request = GenlMessage::from_payload(request);
        request.set_resolved_family_id(self.family);
        request
    }

    /// Sends a request and returns the answers to it.
    fn transact<T>(&mut self, request: T, flags: u16) -> io::Result<Listed<T>>
    where
        T: NetlinkSerializable + NetlinkDeserializable<Error = DecodeError>,
        NetlinkPayload<T>: From<T>,
    {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(request);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        // Requests and answers may carry the private key.
        let mut bytes = Zeroizing::new(vec![0; message.buffer_len()]);
        message.serialize(&mut bytes);
        send(&self.fd, &bytes, SendFlags::empty())?;
        let (mut answers, mut interrupted) = (Vec::new(), false);
        let mut buffer = Zeroizing::new(vec![0; RECEIVE]);
        loop {
            let (length, whole) = recv(&self.fd, &mut buffer[..], RecvFlags::TRUNC)?;
            if whole > length {
                return Err(invalid("an answer longer than the buffer"));
            }
            let mut rest = buffer.get(..length).unwrap_or_default();
            while !rest.is_empty() {
                let (message, after) = split::<T>(rest)?;
                rest = after;
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                let code = match message.payload {
                    NetlinkPayload::InnerMessage(answer) => {
                        answers.push(answer);
                        continue;
                    }
                    NetlinkPayload::Error(error) => error.raw_code(),
                    NetlinkPayload::Done(done) => done.code,
                    _ => continue,
                };
                return match code {
                    0 if interrupted => Ok(Listed::Interrupted),
                    0 => Ok(Listed::Whole(answers)),
                    code => Err(io::Error::from_raw_os_error(code.saturating_abs())),
                };
            }
        }
    }
}

/// Takes the first message off a datagram.
fn split<T>(bytes: &[u8]) -> io::Result<(NetlinkMessage<T>, &[u8])>
where
    T: NetlinkDeserializable<Error = DecodeError>,
{
    // The error is not passed on: it quotes the content, which may be a key.
    let message = NetlinkMessage::<T>::deserialize(bytes)
        .map_err(|_| invalid("an answer that is not understood"))?;
    let length = usize::try_from(message.header.length).unwrap_or(usize::MAX);
    let aligned = length.checked_next_multiple_of(4).unwrap_or(usize::MAX);
    Ok((message, bytes.get(aligned..).unwrap_or_default()))
}

fn invalid(defect: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, defect)
}
