//! Sockets that the service manager keeps while a service restarts.
//!
//! It passes them to the next process of the service as it passes its own sockets
//! ([`crate::process::passed_descriptors`]), and closes them when the service stops for good.
//!
//! Source: sd_pid_notify_with_fds(3), `FileDescriptorStoreMax=` in systemd.service(5).

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg_addr, socket_with,
};

use super::NamedSocket;

/// The service manager of this process.
#[derive(Clone, Debug)]
pub struct FdStore(OsString);

impl FdStore {
    /// The service manager that `NOTIFY_SOCKET` names; `None` if none started this process.
    #[must_use]
    pub fn from_env() -> Option<Self> {
        env::var_os("NOTIFY_SOCKET").map(Self)
    }

    /// Has sockets kept for the next process. A manager that keeps none for this service ignores
    /// this.
    ///
    /// # Errors
    /// If a name cannot be one, or the manager cannot be reached; it may keep some of them then.
    pub fn keep(&self, sockets: &[NamedSocket]) -> io::Result<()> {
        for (name, socket) in sockets {
            // A listening socket reports a hang-up only when it is shut down.
            let message = format!("FDSTORE=1\nFDNAME={}\nFDPOLL=0", check(name)?);
            self.send(&message, Some(socket.as_fd()))?;
        }
        Ok(())
    }

    /// Has the sockets of a name closed, because this process has them.
    ///
    /// # Errors
    /// If the name cannot be one, or the manager cannot be reached.
    pub fn forget(&self, name: &str) -> io::Result<()> {
        let message = format!("FDSTOREREMOVE=1\nFDNAME={}", check(name)?);
        self.send(&message, None)
    }

    /// Reports a state of this process to the manager, such as `READY=1`.
    ///
    /// # Errors
    /// If the manager cannot be reached.
    pub fn notify(&self, state: &str) -> io::Result<()> {
        self.send(state, None)
    }

    fn send(&self, message: &str, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let flags = SocketFlags::CLOEXEC;
        let from = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let sockets = socket.as_slice();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !sockets.is_empty() && !control.push(SendAncillaryMessage::ScmRights(sockets)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let message = [IoSlice::new(message.as_bytes())];
        sendmsg_addr(
            &from,
            &address(&self.0)?,
            &message,
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }
}

/// Address of the manager's socket; `@` begins the name of an abstract one.
fn address(path: &OsStr) -> io::Result<SocketAddrUnix> {
    Ok(match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(path)?,
    })
}

/// A name of at most 255 printable ASCII characters without a colon.
fn check(name: &str) -> io::Result<&str> {
    let printable = |byte: u8| byte.is_ascii_graphic() && byte != b':';
    let valid = (1..=255).contains(&name.len()) && name.bytes().all(printable);
    valid
        .then_some(name)
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use std::{
        io::IoSliceMut,
        net::TcpListener,
        os::{fd::OwnedFd, unix::net::UnixDatagram},
    };

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;

    fn received(manager: &UnixDatagram) -> (String, Option<OwnedFd>) {
        let (mut bytes, mut space) = ([0; 512], [MaybeUninit::uninit(); 64]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut message = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let length = recvmsg(manager, &mut message, &mut control, flags)
            .unwrap()
            .bytes;
        let socket = control.drain().find_map(|message| {
            if let RecvAncillaryMessage::ScmRights(mut fds) = message {
                fds.next()
            } else {
                None
            }
        });
        (String::from_utf8(bytes[..length].to_vec()).unwrap(), socket)
    }

    #[test]
    fn sockets_reach_the_service_manager() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let store = FdStore(path.into_os_string());
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = socket.local_addr().unwrap();
        store
            .keep(&[("port.80.tcp".to_owned(), socket.into())])
            .unwrap();
        let (message, kept) = received(&manager);
        assert_eq!(message, "FDSTORE=1\nFDNAME=port.80.tcp\nFDPOLL=0");
        let kept = TcpListener::from(kept.unwrap());
        assert_eq!(kept.local_addr().unwrap(), addr);
        store.forget("port.80.tcp").unwrap();
        let (message, none) = received(&manager);
        assert_eq!(message, "FDSTOREREMOVE=1\nFDNAME=port.80.tcp");
        assert!(none.is_none());
    }

    #[test]
    fn abstract_address_of_the_manager_is_reached() {
        use std::os::{linux::net::SocketAddrExt as _, unix::net::SocketAddr};

        let name = format!("jaco-store-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let store = FdStore(format!("@{name}").into());
        store.notify("READY=1").unwrap();
        assert_eq!(received(&manager).0, "READY=1");
    }

    #[test]
    fn name_that_would_forge_a_field_is_refused() {
        for name in ["", "a:b", "a\nREADY=1", "ä", &"n".repeat(256)] {
            let refused = check(name).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }
}
