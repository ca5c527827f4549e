//! Datagrams in batches: one system call receives as many as have arrived, and one sends all
//! answers.
//!
//! Source: recvmmsg(2), sendmmsg(2).
#![expect(
    unsafe_code,
    reason = "no safe wrapper takes many datagrams without an allocation for each batch"
)]

use std::{
    io, mem,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsRawFd as _, BorrowedFd},
    ptr,
};

use nix::libc;

/// Datagrams in a batch.
const SIZE: usize = 32;
/// Largest datagram that is read whole; far more than a query needs, even with options.
const MAX_DATAGRAM: usize = 1536;

/// Received datagrams, their senders, and the answers to them.
pub(super) struct Batch {
    received: Box<[[u8; MAX_DATAGRAM]]>,
    lengths: [usize; SIZE],
    /// Addresses of either family.
    senders: [libc::sockaddr_in6; SIZE],
    count: usize,
    answers: [Vec<u8>; SIZE],
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            received: vec![[0; MAX_DATAGRAM]; SIZE].into(),
            lengths: [0; SIZE],
            senders: [NO_ADDRESS; SIZE],
            count: 0,
            answers: Default::default(),
        }
    }

    /// Receives the datagrams that have arrived, as many as fit. Earlier ones and their answers are
    /// dropped.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none; errors of earlier answers.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.count = 0;
        let mut buffers = [NO_BUFFER; SIZE];
        let mut headers = [NO_MESSAGE; SIZE];
        let slots = self.received.iter_mut().zip(&mut self.senders);
        let slots = slots.zip(buffers.iter_mut().zip(&mut headers));
        for ((datagram, sender), (buffer, header)) in slots {
            buffer.iov_base = datagram.as_mut_ptr().cast();
            buffer.iov_len = MAX_DATAGRAM;
            header.msg_hdr.msg_name = ptr::from_mut(sender).cast();
            header.msg_hdr.msg_namelen = ADDRESS_LEN;
            header.msg_hdr.msg_iov = buffer;
            header.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: every header points to an address and a buffer, and each buffer to a datagram,
        // which all live and are not used otherwise until the call returns; lengths are theirs.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                SIZE as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for (length, header) in self.lengths.iter_mut().zip(&headers).take(count) {
            *length = (header.msg_len as usize).min(MAX_DATAGRAM);
        }
        for answer in &mut self.answers[..count] {
            answer.clear();
        }
        self.count = count;
        Ok(())
    }

    /// The received datagrams with their senders, and the answers to write; an empty one is not
    /// sent.
    pub(super) fn entries(&mut self) -> impl Iterator<Item = (&[u8], SocketAddr, &mut Vec<u8>)> {
        let datagrams = self.received.iter().zip(&self.lengths).take(self.count);
        let datagrams = datagrams.map(|(datagram, length)| &datagram[..*length]);
        let entries = datagrams.zip(&self.senders).zip(&mut self.answers);
        entries.filter_map(|((datagram, sender), answer)| {
            Some((datagram, socket_address(sender)?, answer))
        })
    }

    /// Sends the answers. Those that cannot be sent are dropped, as in any congestion: the client
    /// repeats its question.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>) {
        let mut buffers = [NO_BUFFER; SIZE];
        let mut headers = [NO_MESSAGE; SIZE];
        let answers = self.answers[..self.count].iter_mut().zip(&mut self.senders);
        let answers = answers.filter(|(answer, _)| !answer.is_empty());
        let mut count = 0;
        for ((answer, sender), (buffer, header)) in
            answers.zip(buffers.iter_mut().zip(&mut headers))
        {
            buffer.iov_base = answer.as_mut_ptr().cast();
            buffer.iov_len = answer.len();
            header.msg_hdr.msg_namelen = address_len(sender);
            header.msg_hdr.msg_name = ptr::from_mut(sender).cast();
            header.msg_hdr.msg_iov = buffer;
            header.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        let mut rest = &mut headers[..count];
        while !rest.is_empty() {
            // SAFETY: as for receiving; the answers are only read.
            let sent = unsafe {
                libc::sendmmsg(
                    socket.as_raw_fd(),
                    rest.as_mut_ptr(),
                    rest.len() as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                )
            };
            // An error is about the first of the rest.
            let skipped = usize::try_from(sent).unwrap_or_else(|_| {
                let error = io::Error::last_os_error();
                tracing::trace!(subsystem = "dns", %error, "answer not sent");
                usize::from(error.kind() != io::ErrorKind::Interrupted)
            });
            rest = &mut rest[skipped..];
        }
    }
}

// SAFETY of all three: they are plain data of C, for which zeros are valid values.
const NO_ADDRESS: libc::sockaddr_in6 = unsafe { mem::zeroed() };
const NO_BUFFER: libc::iovec = unsafe { mem::zeroed() };
const NO_MESSAGE: libc::mmsghdr = unsafe { mem::zeroed() };

const ADDRESS_LEN: libc::socklen_t = size_of::<libc::sockaddr_in6>() as libc::socklen_t;

fn address_len(address: &libc::sockaddr_in6) -> libc::socklen_t {
    match i32::from(address.sin6_family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>() as libc::socklen_t,
        _ => ADDRESS_LEN,
    }
}

fn socket_address(address: &libc::sockaddr_in6) -> Option<SocketAddr> {
    match i32::from(address.sin6_family) {
        libc::AF_INET => {
            // SAFETY: an address of this family is a `sockaddr_in`, which is smaller.
            let address = unsafe { &*ptr::from_ref(address).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            Some((ip, u16::from_be(address.sin_port)).into())
        }
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            Some((ip, u16::from_be(address.sin6_port)).into())
        }
        _ => None,
    }
}
