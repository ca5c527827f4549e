//! Netlink sockets of the packet filter.

use std::{
    io::{self, IoSlice},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, bind,
        netlink, recv, sendmsg, socket_with,
        sockopt::{self, Timeout},
    },
};

use super::{
    Error,
    message::{self, Message, Messages},
};

/// Size of the socket's buffers, and limit of a batch: a batch is one message to the kernel, which
/// answers every part of it.
const BUFFER: usize = 32 << 20;
/// Size of the receive buffer of a call; the kernel's lists come in parts of at most 32 KiB.
const RECEIVE: usize = 256 << 10;
/// Longest wait for the kernel.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A socket in the network namespace of the thread that opened it.
pub(super) struct Socket {
    fd: OwnedFd,
    /// Subsystem of netfilter that the requests are for.
    subsystem: u16,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket; `groups` is a mask of the event groups to join.
    pub(super) fn open(groups: u32) -> Result<Self, Error> {
        let open = || {
            let fd = socket_with(
                AddressFamily::NETLINK,
                SocketType::RAW,
                SocketFlags::CLOEXEC,
                Some(netlink::NETFILTER),
            )?;
            // Without the capability the limits of the system apply.
            let _ = sockopt::set_socket_recv_buffer_size_force(&fd, BUFFER);
            let _ = sockopt::set_socket_send_buffer_size_force(&fd, BUFFER);
            bind(&fd, &netlink::SocketAddrNetlink::new(0, groups))?;
            sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(TIMEOUT))?;
            Ok(fd)
        };
        let fd = open().map_err(refused("open a socket"))?;
        Ok(Self {
            fd,
            subsystem: message::NF_TABLES,
            sequence: 0,
            buffer: vec![0; RECEIVE],
        })
    }

    /// Opens a socket for requests to another subsystem than nf_tables.
    pub(super) fn of_subsystem(subsystem: u16) -> Result<Self, Error> {
        let socket = Self::open(0)?;
        Ok(Self {
            subsystem,
            ..socket
        })
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Lists objects: calls `each` for every message of the answer.
    pub(super) fn dump(
        &mut self,
        (kind, family): (u16, u8),
        body: &[u8],
        mut each: impl FnMut(&Message<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.request((kind, family), message::DUMP, body)?;
        let mut interrupted = false;
        loop {
            let length = self.receive(RecvFlags::empty())?;
            for message in Messages(&self.buffer[..length]) {
                let message = message?;
                if message.sequence != self.sequence {
                    continue;
                }
                interrupted |= message.flags & message::INTERRUPTED != 0;
                match message.kind {
                    message::ERROR => {
                        check(&message, "list objects")?;
                        return Ok(());
                    }
                    message::DONE if interrupted => return Err(Error::Unstable),
                    message::DONE => return Ok(()),
                    _ => each(&message)?,
                }
            }
        }
    }

    /// Looks up one object and calls `each` for it; returns whether it exists.
    pub(super) fn get(
        &mut self,
        (kind, family): (u16, u8),
        body: &[u8],
        mut each: impl FnMut(&Message<'_>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        self.request((kind, family), 0, body)?;
        loop {
            let length = self.receive(RecvFlags::empty())?;
            for message in Messages(&self.buffer[..length]) {
                let message = message?;
                if message.sequence != self.sequence {
                    continue;
                }
                if message.kind != message::ERROR {
                    each(&message)?;
                    return Ok(true);
                }
                if message.errno()? == Errno::NOENT.raw_os_error() {
                    return Ok(false);
                }
                check(&message, "look up an object")?;
            }
        }
    }

    /// Changes one object and waits for the kernel to do so; returns whether the object exists.
    pub(super) fn change(
        &mut self,
        (kind, family): (u16, u8),
        flags: u16,
        body: &[u8],
    ) -> Result<bool, Error> {
        self.request((kind, family), flags, body)?;
        loop {
            let length = self.receive(RecvFlags::empty())?;
            for message in Messages(&self.buffer[..length]) {
                let message = message?;
                if message.sequence != self.sequence || message.kind != message::ERROR {
                    continue;
                }
                if message.errno()? == Errno::NOENT.raw_os_error() {
                    return Ok(false);
                }
                return check(&message, "change an object").map(|()| true);
            }
        }
    }

    /// Sends a batch as one message and returns once the kernel has committed it.
    ///
    /// Parts sent one by one would each have to be a whole batch.
    pub(super) fn commit<'a>(
        &mut self,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Error> {
        let parts: Vec<IoSlice<'_>> = parts.map(IoSlice::new).collect();
        let length = parts.iter().map(|part| part.len()).sum();
        if length > BUFFER {
            return Err(Error::TooLarge(length));
        }
        let mut control = SendAncillaryBuffer::default();
        sendmsg(&self.fd, &parts, &mut control, SendFlags::empty())
            .map_err(refused("take a batch"))?;
        // The kernel has worked off the batch by now, and all its answers are in the buffer.
        let mut failure = Ok(());
        loop {
            let length = match self.receive(RecvFlags::DONTWAIT) {
                Ok(length) => length,
                Err(Error::Refused(_, error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    return failure;
                }
                Err(error) => return Err(error),
            };
            for message in Messages(&self.buffer[..length]) {
                let message = message?;
                if message.kind == message::ERROR && failure.is_ok() {
                    failure = check(&message, "commit a batch");
                }
            }
        }
    }

    fn request(&mut self, (kind, family): (u16, u8), flags: u16, body: &[u8]) -> Result<(), Error> {
        self.sequence += 1;
        let kind = self.subsystem | kind;
        let bytes = message::request_of(kind, flags, family, self.sequence, body);
        let mut control = SendAncillaryBuffer::default();
        sendmsg(
            &self.fd,
            &[IoSlice::new(&bytes)],
            &mut control,
            SendFlags::empty(),
        )
        .map_err(refused("take a request"))?;
        Ok(())
    }

    fn receive(&mut self, flags: RecvFlags) -> Result<usize, Error> {
        let received = recv(&self.fd, &mut self.buffer[..], flags | RecvFlags::TRUNC);
        let (length, whole) = received.map_err(refused("answer"))?;
        if whole > length {
            return Err(Error::Malformed("an answer longer than the buffer"));
        }
        Ok(length)
    }
}

fn refused(step: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::Refused(step, errno.into())
}

fn check(message: &Message<'_>, step: &'static str) -> Result<(), Error> {
    match message.errno()? {
        0 => Ok(()),
        code => Err(Error::Refused(step, io::Error::from_raw_os_error(code))),
    }
}
