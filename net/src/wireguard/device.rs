//! The parts that the threads of a device share.

mod receive;
mod transmit;
mod worker;

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use boringtun::{noise::rate_limiter::RateLimiter, x25519};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
};

use super::{
    Config, Descriptors, Drops, Error, Peer, PeerStats, PublicKey, Settings,
    socket::{self, Socket},
    table::Table,
    tunnel::{MESSAGE_ROOM, Tunnel},
};
use crate::tun::{self, Queues};

/// Interval of the timers of all sessions; they count in seconds.
const TICK: Duration = Duration::from_millis(250);
/// Handshake messages in a second that are answered without a cookie. The limiter counts a message
/// twice: before the key of its sender is computed, and in the session.
const HANDSHAKES: u64 = 2 * 256;
/// Most threads that carry packets, by default.
const MAX_WORKERS: usize = 8;

/// State that all threads share.
#[derive(Debug)]
pub(super) struct Shared {
    table: ArcSwap<Table<Tunnel>>,
    identity: Identity,
    drops: Counters,
    stopping: Stop,
    failure: Mutex<Option<String>>,
}

/// The keys of the device, and its defence against floods of handshakes.
struct Identity {
    secret: x25519::StaticSecret,
    public: x25519::PublicKey,
    limiter: Arc<RateLimiter>,
}

#[derive(Debug, Default)]
struct Counters {
    unroutable: AtomicU64,
    no_endpoint: AtomicU64,
    wrong_source: AtomicU64,
    invalid: AtomicU64,
    unknown_peer: AtomicU64,
    refused: AtomicU64,
}

/// Wakes threads that wait for packets.
#[derive(Debug)]
struct Stop {
    event: OwnedFd,
    stopped: AtomicBool,
}

/// The running threads.
#[derive(Debug)]
pub(super) struct Threads {
    shared: Arc<Shared>,
    queues: Arc<[File]>,
    sockets: Arc<[Socket]>,
    port: u16,
    /// Serialises changes of the peers.
    changing: Mutex<()>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts the threads of a new interface and of new sockets.
    pub(super) fn start(config: &Config, settings: Settings) -> Result<Self, Error> {
        let cores = || {
            thread::available_parallelism()
                .map_or(1, usize::from)
                .min(MAX_WORKERS)
        };
        let workers = config.workers.map_or_else(cores, usize::from);
        let sockets = socket::open(config.port, workers).map_err(no_socket(config))?;
        let queues = tun::open_queues(&config.name, workers).map_err(no_interface(config))?;
        Self::run(config, settings, sockets, queues)
    }

    /// Starts the threads of the interface and of the sockets of another process.
    pub(super) fn resume(config: &Config, descriptors: Descriptors) -> Result<Self, Error> {
        let Descriptors { queues, sockets } = descriptors;
        if queues.len() != sockets.len() {
            return Err(no_socket(config)(io::ErrorKind::InvalidInput.into()));
        }
        let sockets = socket::resume(config.port, sockets).map_err(no_socket(config))?;
        let queues = tun::resume_queues(&config.name, queues).map_err(no_interface(config))?;
        Self::run(config, Settings::default(), sockets, queues)
    }

    /// Starts the threads, one for each queue and its socket.
    fn run(
        config: &Config,
        settings: Settings,
        sockets: Vec<Socket>,
        queues: Queues,
    ) -> Result<Self, Error> {
        let sockets: Arc<[Socket]> = sockets.into();
        let port = sockets[0].port().map_err(no_socket(config))?;
        tun::set_mtu(&config.name, config.mtu).map_err(no_interface(config))?;
        let shared = Arc::new(Shared::new(config).map_err(Error::Threads)?);
        let udp = queues.udp;
        let mut threads = Self {
            shared,
            queues: queues.files.into(),
            sockets,
            port,
            changing: Mutex::new(()),
            handles: Vec::new(),
        };
        for at in 0..threads.queues.len() {
            let (queues, sockets) = (Arc::clone(&threads.queues), Arc::clone(&threads.sockets));
            let shared = Arc::clone(&threads.shared);
            threads.spawn(format!("wg-worker-{at}"), move || {
                worker::run(&shared, &queues[at], &sockets[at], udp)
            })?;
        }
        let (shared, sockets) = (Arc::clone(&threads.shared), Arc::clone(&threads.sockets));
        threads.spawn("wg-timer".to_owned(), move || {
            shared.run_timers(&sockets[0], settings)
        })?;
        Ok(threads)
    }

    pub(super) fn descriptors(&self) -> io::Result<Descriptors> {
        let queues = self
            .queues
            .iter()
            .map(|queue| Ok(queue.try_clone()?.into()));
        Ok(Descriptors {
            queues: queues.collect::<io::Result<_>>()?,
            sockets: self
                .sockets
                .iter()
                .map(Socket::descriptor)
                .collect::<io::Result<_>>()?,
        })
    }

    /// Starts a thread whose end, for any reason, makes the device fail.
    fn spawn(
        &mut self,
        name: String,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(name.clone()).spawn(move || {
            let work = std::panic::AssertUnwindSafe(work);
            match std::panic::catch_unwind(work) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => shared.fail(format!("{name}: {error}")),
                Err(_) => shared.fail(format!("{name} panicked")),
            }
        });
        self.handles.push(thread.map_err(Error::Threads)?);
        Ok(())
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn set_peers(&self, peers: Vec<Peer>) -> Result<(), Error> {
        let _guard = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let identity = &self.shared.identity;
        let old = self.shared.table.load();
        // The key exchange is the dearest part of a change; the keys of peers that stay are good.
        identity.check(
            peers
                .iter()
                .filter(|peer| old.by_key(peer.public_key).is_none()),
        )?;
        let own = PublicKey(identity.public.to_bytes());
        let make = |peer: &Peer, index| {
            Tunnel::new(
                identity.secret.clone(),
                peer,
                index,
                Arc::clone(&identity.limiter),
            )
        };
        let (table, changes) = old.replace(peers, own, make)?;
        let table = Arc::new(table);
        self.shared.table.store(Arc::clone(&table));
        for key in &changes.moved {
            if let Some(entry) = table.by_key(*key) {
                entry.tunnel.set_endpoint(entry.peer.endpoint);
            }
        }
        for key in changes.added.iter().chain(&changes.moved) {
            if let Some(entry) = table.by_key(*key) {
                self.greet(&entry.tunnel, false);
            }
        }
        Ok(())
    }

    /// Begins a handshake with a peer whose address is known; retries are up to the timers.
    fn greet(&self, tunnel: &Tunnel, force: bool) {
        let mut buffer = [0; MESSAGE_ROOM];
        if let Some(endpoint) = tunnel.endpoint()
            && let Some(message) = tunnel.initiate(force, &mut buffer)
        {
            let _ = self.sockets[0].send(endpoint, message);
        }
    }

    pub(super) fn force_handshakes(&self) {
        for entry in self.shared.table.load().iter() {
            self.greet(&entry.tunnel, true);
        }
    }

    pub(super) fn stats(&self) -> Vec<PeerStats> {
        let table = self.shared.table.load_full();
        table
            .iter()
            .map(|entry| entry.tunnel.stats(&entry.peer))
            .collect()
    }

    pub(super) fn drops(&self) -> Drops {
        let drops = &self.shared.drops;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Drops {
            unroutable: read(&drops.unroutable),
            no_endpoint: read(&drops.no_endpoint),
            wrong_source: read(&drops.wrong_source),
            invalid: read(&drops.invalid),
            unknown_peer: read(&drops.unknown_peer),
            refused: read(&drops.refused),
        }
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.shared
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stopping.stop();
        for handle in self.handles.drain(..) {
            // A panic was noted as the failure.
            let _ = handle.join();
        }
    }
}

fn no_interface(config: &Config) -> impl FnOnce(io::Error) -> Error {
    let name = config.name.clone();
    |source| Error::Tun { name, source }
}

fn no_socket(config: &Config) -> impl FnOnce(io::Error) -> Error {
    let port = config.port;
    move |source| Error::Socket { port, source }
}

impl Identity {
    /// Refuses keys whose shared secret would be known to all (RFC 7748, section 6.1).
    fn check<'a>(&self, peers: impl Iterator<Item = &'a Peer>) -> Result<(), Error> {
        for peer in peers {
            let key = x25519::PublicKey::from(peer.public_key.0);
            if !self.secret.diffie_hellman(&key).was_contributory() {
                return Err(Error::InvalidPeer(peer.public_key));
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", PublicKey(self.public.to_bytes()))
    }
}

impl Shared {
    fn new(config: &Config) -> io::Result<Self> {
        let secret = config.private_key.secret();
        let public = x25519::PublicKey::from(&secret);
        let limiter = Arc::new(RateLimiter::new(&public, HANDSHAKES));
        Ok(Self {
            table: ArcSwap::default(),
            identity: Identity {
                secret,
                public,
                limiter,
            },
            drops: Counters::default(),
            stopping: Stop {
                event: eventfd(0, EventfdFlags::CLOEXEC)?,
                stopped: AtomicBool::new(false),
            },
            failure: Mutex::new(None),
        })
    }

    /// Keeps the first failure, and stops the other threads: half a device serves nothing.
    fn fail(&self, reason: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(reason);
        self.stopping.stop();
    }

    fn run_timers(&self, socket: &Socket, settings: Settings) -> io::Result<()> {
        let mut buffer = [0; MESSAGE_ROOM];
        while !self.stopping.wait(TICK)? {
            let now = Instant::now();
            self.identity.limiter.reset_count();
            for entry in self.table.load_full().iter() {
                let Some(endpoint) = entry.tunnel.endpoint() else {
                    continue;
                };
                let tunnel = &entry.tunnel;
                if let Some(message) = tunnel.tick(entry.peer.keepalive, now, &mut buffer) {
                    let _ = socket.send(endpoint, message);
                }
                if let Some(age) = settings.rekey_after
                    && let Some(message) = tunnel.rekey(age, now, &mut buffer)
                {
                    let _ = socket.send(endpoint, message);
                }
            }
        }
        Ok(())
    }
}

impl Stop {
    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // The counter is never read, so it stays readable for every thread.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Waits for a time; `true` if the device stops.
    fn wait(&self, timeout: Duration) -> io::Result<bool> {
        self.wait_for([self.poll_fd()], timeout)
    }

    /// Waits for a packet of either direction; `true` if the device stops.
    fn wait_readable(&self, queue: impl AsFd, socket: impl AsFd) -> io::Result<bool> {
        let queue = PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN);
        let socket = PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN);
        let all = [self.poll_fd(), queue, socket];
        self.wait_for(all, Duration::from_secs(3600))
    }

    /// Waits for room in the kernel's buffer; `true` if the device stops.
    fn wait_writable(&self, socket: impl AsFd) -> io::Result<bool> {
        let socket = PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT);
        self.wait_for([self.poll_fd(), socket], Duration::from_secs(1))
    }

    fn wait_for<const N: usize>(
        &self,
        mut descriptors: [PollFd<'_>; N],
        timeout: Duration,
    ) -> io::Result<bool> {
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(self.is_stopped()),
            Err(error) => Err(error.into()),
        }
    }

    fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.event, PollFlags::IN)
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Whether a call on a TUN descriptor failed because the interface no longer exists.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::BADFD | Errno::FAULT | Errno::NODEV)
    )
}

/// Writes one frame to the interface. Refused packets are counted: there is no sender to tell.
fn write_frame(queue: &File, frame: &[u8], shared: &Shared) -> io::Result<()> {
    match io::Write::write(&mut &*queue, frame) {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) => Err(error),
        Err(_) => {
            count(&shared.drops.refused);
            Ok(())
        }
    }
}
