//! Passing sockets over a unix socket (`SCM_RIGHTS`), to a process of the same user or of root.
//!
//! One message per socket: its name, at most [`MAX_NAME`] bytes of UTF-8, with one descriptor. A
//! message without a descriptor ends the list.

use std::{
    fs, io,
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileTypeExt as _,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
        SocketType, accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with, sockopt,
    },
    process::geteuid,
};

use super::{MAX_SOCKETS, NamedSocket};

/// Longest name of a socket, in bytes.
pub const MAX_NAME: usize = 255;
/// Time limit of each message.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Waits for the successor of this process on a unix socket, which is removed when this is dropped.
#[derive(Debug)]
pub struct Offer {
    socket: OwnedFd,
    path: PathBuf,
}

/// A successor that asks for the sockets of this process.
#[derive(Debug)]
pub struct Successor(OwnedFd);

impl Offer {
    /// Listens at `path`, in place of a socket that an earlier process left there. Only a
    /// process of this user or of root is served.
    ///
    /// # Errors
    /// If the path holds something else than a socket, or the socket cannot be bound.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
            Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let socket = seqpacket()?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        listen(&socket, 1)?;
        Ok(Self {
            socket,
            path: path.to_owned(),
        })
    }

    /// Waits for a process of this user or of root; others are refused. Blocks the thread.
    ///
    /// # Errors
    /// If accepting fails.
    pub fn accept(&self) -> io::Result<Successor> {
        loop {
            let peer = match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(peer) => peer,
                Err(error) if error == rustix::io::Errno::INTR => continue,
                Err(error) => return Err(error.into()),
            };
            if is_trusted(&peer)? {
                limit(&peer)?;
                return Ok(Successor(peer));
            }
        }
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path); // a later process replaces it
    }
}

impl Successor {
    /// Passes sockets. They stay open here, too.
    ///
    /// # Errors
    /// If a name is longer than [`MAX_NAME`] or empty, or the successor does not read; it may have
    /// received some of them then.
    pub fn send(&self, sockets: &[NamedSocket]) -> io::Result<()> {
        for (name, socket) in sockets {
            if name.is_empty() || name.len() > MAX_NAME {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let fds = [socket.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            send_message(self.0.as_fd(), name.as_bytes(), &mut control)?;
        }
        send_message(self.0.as_fd(), b"end", &mut SendAncillaryBuffer::default())
    }
}

fn send_message(
    to: BorrowedFd<'_>,
    bytes: &[u8],
    control: &mut SendAncillaryBuffer<'_, '_, '_>,
) -> io::Result<()> {
    sendmsg(to, &[IoSlice::new(bytes)], control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes the sockets of the process that offers them at `path`, which must be of this user or of
/// root; `None` if there is no such process. Blocks the thread.
///
/// # Errors
/// If the process does not pass all of them; those received are closed.
pub fn take_over(path: &Path) -> io::Result<Option<Vec<NamedSocket>>> {
    let socket = seqpacket()?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => {}
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::CONNREFUSED) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    if !is_trusted(&socket)? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    limit(&socket)?;
    let mut sockets = Vec::new();
    while let Some(received) = receive(socket.as_fd())? {
        if sockets.len() >= MAX_SOCKETS {
            return Err(io::Error::other("too many sockets are offered"));
        }
        sockets.push(received);
    }
    Ok(Some(sockets))
}

/// Receives one socket; `None` at the end of the list.
fn receive(from: BorrowedFd<'_>) -> io::Result<Option<NamedSocket>> {
    let mut bytes = [0; MAX_NAME + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(
        from,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut received = control.drain().filter_map(|message| {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            fds.next()
        } else {
            None
        }
    });
    let socket = received.next();
    if message.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let Some(socket) = socket else {
        return Ok(None);
    };
    let truncated = message
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    let name = std::str::from_utf8(&bytes[..message.bytes.min(MAX_NAME)]);
    match name {
        Ok(name) if !truncated && message.bytes <= MAX_NAME => Ok(Some((name.to_owned(), socket))),
        Ok(_) | Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn seqpacket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

fn limit(socket: &OwnedFd) -> io::Result<()> {
    use sockopt::Timeout::{Recv, Send};
    sockopt::set_socket_timeout(socket, Recv, Some(TIMEOUT))?;
    sockopt::set_socket_timeout(socket, Send, Some(TIMEOUT))?;
    Ok(())
}

/// Whether the other end is a process of this user or of root.
fn is_trusted(socket: &OwnedFd) -> io::Result<bool> {
    let peer = sockopt::socket_peercred(socket)?;
    Ok(peer.uid == geteuid() || peer.uid.is_root())
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, os::unix::fs::PermissionsExt as _, thread};

    use super::*;

    fn listeners(count: usize) -> Vec<NamedSocket> {
        let socket = || TcpListener::bind("127.0.0.1:0").unwrap().into();
        (0..count)
            .map(|n| (format!("port.{n}"), socket()))
            .collect()
    }

    fn addrs(sockets: Vec<NamedSocket>) -> Vec<(String, std::net::SocketAddr)> {
        let addr = |socket: OwnedFd| TcpListener::from(socket).local_addr().unwrap();
        sockets
            .into_iter()
            .map(|(name, socket)| (name, addr(socket)))
            .collect()
    }

    #[test]
    fn sockets_pass_with_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handover.sock");
        assert!(take_over(&path).unwrap().is_none());
        for count in [0, 1, 300] {
            let offer = Offer::bind(&path).unwrap();
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let offered = listeners(count);
            let passing = thread::spawn(move || {
                offer.accept().unwrap().send(&offered).unwrap();
                offered
            });
            let taken = take_over(&path).unwrap().unwrap();
            assert_eq!(addrs(taken), addrs(passing.join().unwrap()));
            assert!(!path.exists());
        }
    }

    #[test]
    fn socket_of_a_dead_process_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handover.sock");
        std::mem::forget(Offer::bind(&path).unwrap());
        Offer::bind(&path).unwrap();
        fs::write(&path, "").unwrap();
        let refused = Offer::bind(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn process_that_dies_meanwhile_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("handover.sock");
        let offer = Offer::bind(&path).unwrap();
        let passing = thread::spawn(move || drop(offer.accept().unwrap()));
        let error = take_over(&path).unwrap_err();
        passing.join().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
