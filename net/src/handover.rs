//! Listening sockets that outlive a process: its successor accepts on the same sockets, so that no
//! connection is refused in between, and none that waits in an accept queue is lost.
//!
//! Passed are duplicates of one open socket each. A socket of its own with `SO_REUSEPORT` would not
//! do: the kernel resets the connections in the queue of a socket that is closed. Of the UDP sockets
//! of HTTP/3 a successor reads others than this process, so that both can serve at the same time.
//!
//! - [`Inherited`]: the sockets that an earlier process left, by name.
//! - [`store`]: the service manager keeps them while the service restarts.
//! - [`channel`]: passing them to a process that replaces the running one.

pub mod channel;
pub mod store;

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Largest number of sockets that one process takes over; more are closed.
pub const MAX_SOCKETS: usize = 4096;

/// A socket and the name under which the successor looks for it. Several sockets may share a name.
pub type NamedSocket = (String, OwnedFd);

/// Sockets that an earlier process left; clones share them. Each socket is taken once.
///
/// A socket that is not taken must be closed soon ([`Inherited::close`]): connections in its queue are
/// not accepted.
#[derive(Clone, Default)]
pub struct Inherited(Arc<Mutex<BTreeMap<String, Vec<OwnedFd>>>>);

impl Inherited {
    /// Creates the set of sockets that were passed to this process, at most [`MAX_SOCKETS`].
    #[must_use]
    pub fn new(sockets: impl IntoIterator<Item = NamedSocket>) -> Self {
        let inherited = Self::default();
        inherited.add(sockets);
        inherited
    }

    /// Adds sockets that were passed later, at most [`MAX_SOCKETS`].
    pub fn add(&self, sockets: impl IntoIterator<Item = NamedSocket>) {
        let mut named = self.lock();
        for (name, socket) in sockets.into_iter().take(MAX_SOCKETS) {
            named.entry(name).or_default().push(socket);
        }
    }

    /// Takes the sockets of a name, in the order in which they were passed; none if there are none.
    #[must_use]
    pub fn take(&self, name: &str) -> Vec<OwnedFd> {
        self.lock().remove(name).unwrap_or_default()
    }

    /// Names of the sockets that were not taken.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Closes the sockets that were not taken, and returns their names.
    pub fn close(&self) -> Vec<String> {
        std::mem::take(&mut *self.lock()).into_keys().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<OwnedFd>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Inherited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Inherited").field(&self.names()).finish()
    }
}

/// Whether a socket bound to `addr` listens on `port` of all addresses.
pub(crate) fn is_on_all_addresses(addr: SocketAddr, port: u16) -> bool {
    addr.ip().is_unspecified() && addr.port() == port
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn sockets_are_taken_once_and_the_rest_closed() {
        let socket = || TcpListener::bind("127.0.0.1:0").unwrap();
        let left = socket();
        let addr = left.local_addr().unwrap();
        let sockets = [("a", socket()), ("b", left), ("a", socket())];
        let inherited =
            Inherited::new(sockets.map(|(name, socket)| (name.to_owned(), socket.into())));
        let shared = inherited.clone();
        assert_eq!(shared.take("a").len(), 2);
        assert!(inherited.take("a").is_empty());
        std::net::TcpStream::connect(addr).unwrap();
        assert_eq!(inherited.close(), ["b"]);
        std::net::TcpStream::connect(addr).unwrap_err();
    }
}
