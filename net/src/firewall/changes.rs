//! Notifications of changes of the packet filter.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};
use tokio::io::unix::AsyncFd;

use super::{Error, socket::Socket};

/// Mask of the event group of nf_tables (`NFNLGRP_NFTABLES`).
const GROUP: u32 = 1 << (7 - 1);

/// Most notifications that are taken at once.
const MAX_DRAINED: usize = 1000;

/// Notifications of changes of any table in one network namespace, including our own.
///
/// The descriptor is readable when there is one.
#[derive(Debug)]
pub struct Changes(OwnedFd);

impl Changes {
    /// Subscribes to the changes in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Without the capability `CAP_NET_ADMIN`, or without nf_tables.
    pub fn subscribe() -> Result<Self, Error> {
        let fd = Socket::open(GROUP)?.into_fd();
        let subscribe = || {
            let flags = rustix::fs::fcntl_getfl(&fd)?;
            rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)
        };
        subscribe().map_err(|errno: Errno| Error::Refused("notify of changes", errno.into()))?;
        Ok(Self(fd))
    }

    /// Takes pending notifications, of which there may be more than it takes; returns whether there were
    /// any. Lost ones count.
    ///
    /// # Errors
    /// When the socket cannot be used any more.
    pub fn drain(&self) -> io::Result<bool> {
        drain(&self.0)
    }
}

fn drain(fd: &OwnedFd) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    let mut any = false;
    // A program that changes tables all the time must not hold the caller.
    for _ in 0..MAX_DRAINED {
        // Only the arrival matters; the rest of a long notification is cut off.
        match recv(fd, &mut buffer, RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::NOBUFS) => any = true,
            Err(Errno::AGAIN) => return Ok(any),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(any)
}

/// [`Changes`] on tokio's reactor.
#[derive(Debug)]
pub struct AsyncChanges(AsyncFd<OwnedFd>);

impl AsyncChanges {
    /// Subscribes as [`Changes::subscribe`]; to be called within a runtime.
    ///
    /// # Errors
    /// As [`Changes::subscribe`].
    pub fn subscribe() -> Result<Self, Error> {
        let fd = Changes::subscribe()?.0;
        #[expect(unsafe_code, reason = "tokio's registration of descriptors is unsafe")]
        // SAFETY: an owned descriptor stays the same one, and stays open until it is dropped.
        let fd = unsafe { AsyncFd::register(fd) };
        let fd = fd.map_err(|error| Error::Refused("notify of changes", error.into()))?;
        Ok(Self(fd))
    }

    /// Waits for a change.
    ///
    /// # Errors
    /// When the socket cannot be used any more.
    ///
    /// # Cancel safety
    /// No change is lost.
    pub async fn wait(&self) -> io::Result<()> {
        loop {
            let mut ready = self.0.readable().await?;
            if drain(self.0.get_ref())? {
                return Ok(());
            }
            ready.clear_ready();
        }
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
