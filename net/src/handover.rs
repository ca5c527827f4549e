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
    fmt, io,
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
/// not accepted. A process that ends before it has taken all of them passes the rest on
/// ([`Inherited::pass_on`]).
#[derive(Clone, Default)]
pub struct Inherited(Arc<Inner>);

#[derive(Default)]
struct Inner {
    sockets: Mutex<BTreeMap<String, Vec<OwnedFd>>>,
    /// Held while a socket is taken from the map above and not yet open in a data plane. Locked
    /// before the sockets and before a data plane.
    adoption: Mutex<()>,
}

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

    /// Replaces the sockets by those that another process passed later, at most [`MAX_SOCKETS`].
    pub fn replace(&self, sockets: impl IntoIterator<Item = NamedSocket>) {
        let former = std::mem::take(&mut *self.lock());
        self.add(sockets);
        drop(former); // a socket that was passed again stays open throughout
    }

    /// Runs `open`, which takes sockets and opens them in a data plane: [`Inherited::pass_on`] finds
    /// each of them in one of the two, never in between.
    pub fn adopt<T>(&self, open: impl FnOnce() -> T) -> T {
        let _adoption = guard(&self.0.adoption);
        open()
    }

    /// The sockets for the successor of this process: those that were not taken, unchanged, and
    /// those that are `open` in its data planes. Nothing is left to be taken.
    ///
    /// # Errors
    /// Those of `open`; nothing was passed on then.
    pub fn pass_on(
        &self,
        open: impl FnOnce() -> io::Result<Vec<NamedSocket>>,
    ) -> io::Result<Vec<NamedSocket>> {
        let _adoption = guard(&self.0.adoption);
        // Before those of the data planes: a socket taken after this one is not among both.
        let waiting = self.take_prefixed("");
        match open() {
            Ok(mut sockets) => {
                sockets.extend(waiting);
                Ok(sockets)
            }
            Err(error) => {
                self.add(waiting);
                Err(error)
            }
        }
    }

    /// Takes the sockets of a name, in the order in which they were passed; none if there are none.
    #[must_use]
    pub fn take(&self, name: &str) -> Vec<OwnedFd> {
        self.lock().remove(name).unwrap_or_default()
    }

    /// Takes the sockets whose names begin with `prefix`, with their names.
    #[must_use]
    pub fn take_prefixed(&self, prefix: &str) -> Vec<NamedSocket> {
        let mut named = self.lock();
        let names = named.keys().filter(|name| name.starts_with(prefix));
        let names: Vec<_> = names.cloned().collect();
        let taken = names
            .into_iter()
            .filter_map(|name| named.remove_entry(&name));
        taken
            .flat_map(|(name, sockets)| sockets.into_iter().map(move |it| (name.clone(), it)))
            .collect()
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
        guard(&self.0.sockets)
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Waits until connections to `addr` are refused. The port may stay open for a moment after the last
/// socket of this process is closed: a process that another test forked has a copy of each descriptor
/// until it executes its program.
#[cfg(test)]
pub(crate) fn wait_refused(addr: SocketAddr) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while std::net::TcpStream::connect(addr).is_ok() {
        assert!(std::time::Instant::now() < end, "{addr} is open");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, sync::mpsc, thread};

    use super::*;

    fn socket(addr: &str) -> TcpListener {
        TcpListener::bind(addr).unwrap()
    }

    fn named(name: &str, socket: TcpListener) -> NamedSocket {
        (name.to_owned(), socket.into())
    }

    fn names(sockets: &[NamedSocket]) -> Vec<&str> {
        sockets.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn sockets_are_taken_once_and_the_rest_closed() {
        // An address of its own: the port is given to no other test after it is closed.
        let left = socket("127.0.0.77:0");
        let addr = left.local_addr().unwrap();
        let other = || socket("127.0.0.1:0");
        let inherited =
            Inherited::new([named("a", other()), named("b", left), named("a", other())]);
        let shared = inherited.clone();
        assert_eq!(shared.take("a").len(), 2);
        assert!(inherited.take("a").is_empty());
        std::net::TcpStream::connect(addr).unwrap();
        assert_eq!(inherited.close(), ["b"]);
        wait_refused(addr);
    }

    #[test]
    fn untaken_sockets_are_passed_on() {
        let (left, open) = (socket("127.0.0.1:0"), socket("127.0.0.1:0"));
        let addr = left.local_addr().unwrap();
        let inherited = Inherited::new([named("port.1.tcp", left)]);
        // Out of descriptors: the sockets wait for the next attempt.
        let failed = inherited.pass_on(|| Err(io::ErrorKind::Other.into()));
        assert!(failed.is_err());
        assert_eq!(inherited.names(), ["port.1.tcp"]);
        let passed = inherited.pass_on(|| Ok(vec![named("ingress.http", open)]));
        let passed = passed.unwrap();
        assert_eq!(names(&passed), ["ingress.http", "port.1.tcp"]);
        assert!(inherited.names().is_empty());
        let (_, socket) = passed.into_iter().next_back().unwrap();
        assert_eq!(TcpListener::from(socket).local_addr().unwrap(), addr);
    }

    #[test]
    fn socket_being_adopted_is_passed_on_once() {
        let inherited = Inherited::new([named("ingress.http", socket("127.0.0.1:0"))]);
        let plane = Mutex::new(Vec::new());
        let (taken, was_taken) = mpsc::channel();
        let passed = thread::scope(|scope| {
            let adopting = scope.spawn(|| {
                inherited.adopt(|| {
                    let sockets = inherited.take("ingress.http");
                    taken.send(()).unwrap();
                    // Without the lock the successor would find the socket nowhere here.
                    thread::yield_now();
                    guard(&plane).extend(sockets);
                });
            });
            was_taken.recv().unwrap();
            let open = || {
                let sockets = guard(&plane).drain(..).collect::<Vec<_>>();
                Ok(sockets
                    .into_iter()
                    .map(|socket| ("ingress.http".to_owned(), socket))
                    .collect())
            };
            let passed = inherited.pass_on(open).unwrap();
            adopting.join().unwrap();
            passed
        });
        assert_eq!(names(&passed), ["ingress.http"]);
    }

    #[test]
    fn sockets_passed_later_replace_the_earlier() {
        let inherited = Inherited::new([
            named("a", socket("127.0.0.1:0")),
            named("b", socket("127.0.0.1:0")),
        ]);
        inherited.replace([named("a", socket("127.0.0.1:0"))]);
        assert_eq!(inherited.names(), ["a"]);
        assert_eq!(inherited.take("a").len(), 1);
    }
}
