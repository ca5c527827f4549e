//! The open ports of a node.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::SocketAddr,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, task::AbortHandle, time::timeout};

use crate::handover::{Inherited, NamedSocket};

use super::{
    Backends, Port, Protocol, Settings, bind, relay::Pipes, tcp::Acceptor, udp::Forwarder,
};

/// Whether replicas on a host may get new connections; called for each one, so it must not block.
pub type FreshHost = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// Open ports with their listeners and connections; clones share them.
///
/// They outlive the caller: a port stays open until [`Ports::close`], and a TCP connection until a
/// side closes it or [`Ports::drain`].
#[derive(Clone)]
pub struct Ports(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    listeners: Mutex<BTreeMap<Port, Listener>>,
    /// Sockets of an earlier process.
    inherited: Inherited,
    /// Set to true when the streams have to end. A drain replaces the channel, so it affects only
    /// streams accepted before.
    closed: Mutex<watch::Sender<bool>>,
    /// Open TCP connections by port number; they may outlive their listener.
    connections: Mutex<BTreeMap<u16, Arc<AtomicUsize>>>,
}

/// State shared by the listeners and their connections.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) is_fresh: FreshHost,
    pub(super) pipes: Pipes,
}

struct Listener {
    /// Its task has the only receiver, which it drops after the socket.
    backends: watch::Sender<Arc<Backends>>,
    local: SocketAddr,
    /// Duplicate of the socket, for a successor of this process; closed before the task ends, so
    /// that the port is.
    socket: Option<OwnedFd>,
    task: AbortHandle,
    /// The task was aborted and may still hold the socket.
    closing: bool,
}

impl Ports {
    /// Creates a data plane without open ports.
    #[must_use]
    pub fn new(settings: Settings, is_fresh: FreshHost) -> Self {
        Self::inheriting(settings, is_fresh, Inherited::default())
    }

    /// As [`Ports::new`]; a port that an earlier process left open is opened with its socket.
    #[must_use]
    pub fn inheriting(settings: Settings, is_fresh: FreshHost, inherited: Inherited) -> Self {
        let shared = Shared {
            settings,
            is_fresh,
            pipes: Pipes::default(),
        };
        Self(Arc::new(Inner {
            shared: Arc::new(shared),
            listeners: Mutex::default(),
            inherited,
            closed: Mutex::new(watch::Sender::new(false)),
            connections: Mutex::default(),
        }))
    }

    /// Listens on a port of all addresses and forwards to `backends`; replaces the upstreams if the
    /// port is open. Returns the address of the listener.
    ///
    /// # Errors
    /// The system's error, most often that the address is in use; the port stays closed.
    ///
    /// # Cancel safety
    /// Cancelled, the port is as it was.
    pub async fn open(&self, port: Port, backends: Backends) -> io::Result<SocketAddr> {
        loop {
            let ending = {
                let mut listeners = lock(&self.0.listeners);
                match listeners.get(&port) {
                    Some(listener) if listener.closing => listener.backends.clone(),
                    Some(listener) if !listener.backends.is_closed() => {
                        listener.replace(backends);
                        return Ok(listener.local);
                    }
                    Some(_) | None => {
                        // One that ended by a fault may hold the port.
                        listeners.remove(&port);
                        let listener = self.listen(port, backends)?;
                        let local = listener.local;
                        listeners.insert(port, listener);
                        return Ok(local);
                    }
                }
            };
            ending.closed().await;
            let mut listeners = lock(&self.0.listeners);
            if listeners.get(&port).is_some_and(Listener::has_ended) {
                listeners.remove(&port);
            }
        }
    }

    /// Replaces the upstreams of a port that is open; new connections use them from now on. Without
    /// any, they are reset. Returns whether the port is open.
    pub fn replace(&self, port: Port, backends: Backends) -> bool {
        let listeners = lock(&self.0.listeners);
        let open = |listener: &&Listener| !listener.closing && !listener.has_ended();
        let Some(listener) = listeners.get(&port).filter(open) else {
            return false;
        };
        listener.replace(backends);
        true
    }

    /// Closes a port: new TCP connections are refused while established ones stay, and UDP sessions
    /// end. Does nothing if the port is not open. Returns whether it was open.
    pub fn close(&self, port: Port) -> bool {
        let mut listeners = lock(&self.0.listeners);
        listeners.retain(|_, listener| !listener.has_ended());
        let Some(listener) = listeners.get_mut(&port).filter(|found| !found.closing) else {
            return false;
        };
        listener.closing = true;
        listener.socket = None;
        listener.task.abort();
        true
    }

    /// Duplicates of the sockets of all open ports, to be handed to another process.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn sockets(&self) -> io::Result<Vec<NamedSocket>> {
        let listeners = lock(&self.0.listeners);
        let sockets = listeners.iter().filter_map(|(port, listener)| {
            let socket = listener.socket.as_ref()?;
            Some((port, socket))
        });
        let named = sockets.map(|(port, socket)| Ok((port.socket_name(), socket.try_clone()?)));
        named.collect()
    }

    /// Address of an open port.
    #[must_use]
    pub fn local_addr(&self, port: Port) -> Option<SocketAddr> {
        let listeners = lock(&self.0.listeners);
        let listener = listeners.get(&port)?;
        (!listener.closing && !listener.backends.is_closed()).then_some(listener.local)
    }

    /// The open ports.
    #[must_use]
    pub fn open_ports(&self) -> Vec<Port> {
        let listeners = lock(&self.0.listeners);
        let open = listeners.iter().filter(|(_, listener)| !listener.closing);
        open.map(|(port, _)| *port).collect()
    }

    /// Number of TCP connections of each port that is open or still has some, by port number.
    #[must_use]
    pub fn tcp_connections(&self) -> Vec<(u16, usize)> {
        let mut connections = lock(&self.0.connections);
        // The listener and each connection hold the count.
        connections.retain(|_, count| Arc::strong_count(count) > 1);
        let counts = connections.iter();
        counts
            .map(|(number, count)| (*number, count.load(Ordering::Relaxed)))
            .collect()
    }

    /// Waits until a port is closed, by [`Ports::close`] or by a fault of its listener.
    ///
    /// # Cancel safety
    /// Cancelled, it has no effect.
    pub async fn closed(&self, port: Port) {
        let listener = lock(&self.0.listeners)
            .get(&port)
            .map(|listener| listener.backends.clone());
        if let Some(backends) = listener {
            backends.closed().await;
        }
    }

    /// Closes all ports, lets established connections go on for at most `grace`, then resets the
    /// rest. Ports opened later are not affected.
    ///
    /// # Cancel safety
    /// Cancelled, connections still open are ended at once.
    pub async fn drain(&self, grace: Duration) {
        for port in self.open_ports() {
            self.close(port);
        }
        let old = std::mem::replace(&mut *lock(&self.0.closed), watch::Sender::new(false));
        if timeout(grace, old.closed()).await.is_err() {
            old.send_replace(true);
            old.closed().await;
        }
    }

    fn listen(&self, port: Port, backends: Backends) -> io::Result<Listener> {
        let (sender, receiver) = watch::channel(Arc::new(backends));
        let (shared, closed) = (self.0.shared.clone(), lock(&self.0.closed).subscribe());
        let (local, socket, task) = match port.protocol {
            Protocol::Tcp => {
                let listener = match self.inherited(port, bind::inherited_tcp) {
                    Some(listener) => listener,
                    None => bind::tcp(port.number)?,
                };
                let local = listener.local_addr()?;
                let socket = listener.as_fd().try_clone_to_owned()?;
                let connections = lock(&self.0.connections)
                    .entry(port.number)
                    .or_default()
                    .clone();
                let acceptor = Acceptor {
                    connections,
                    listener,
                    port,
                    shared,
                    closed,
                    backends: receiver,
                };
                (local, socket, tokio::spawn(acceptor.run()))
            }
            Protocol::Udp => {
                let socket = match self.inherited(port, bind::inherited_udp) {
                    Some(socket) => socket,
                    None => bind::udp(port.number)?,
                };
                let local = socket.local_addr()?;
                let duplicate = socket.as_fd().try_clone_to_owned()?;
                let forwarder = Forwarder::new(socket, port, shared, receiver)?;
                (local, duplicate, tokio::spawn(forwarder.run()))
            }
        };
        Ok(Listener {
            backends: sender,
            local,
            socket: Some(socket),
            task: task.abort_handle(),
            closing: false,
        })
    }

    /// The socket of a port that an earlier process left open, if it fits; another is closed.
    fn inherited<T>(&self, port: Port, adopt: fn(OwnedFd, u16) -> io::Result<T>) -> Option<T> {
        let socket = self.0.inherited.take(&port.socket_name()).pop()?;
        match adopt(socket, port.number) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(subsystem = "ingress", %port, %error, "inherited socket closed");
                None
            }
        }
    }
}

impl Listener {
    fn replace(&self, backends: Backends) {
        self.backends.send_if_modified(|current| {
            let differs = **current != backends;
            if differs {
                *current = Arc::new(backends);
            }
            differs
        });
    }

    /// Whether its socket is closed.
    fn has_ended(&self) -> bool {
        self.backends.is_closed()
    }
}

impl fmt::Debug for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ports").field(&self.open_ports()).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
