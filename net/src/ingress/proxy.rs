//! The handle of the data plane.

use std::{
    fmt, io,
    net::SocketAddr,
    num::NonZeroUsize,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use futures::future::join_all;
use http::HeaderValue;

use super::{
    CLOSING_TIMEOUT, CertificateStore, ChallengeTable, DatagramSockets, ListenSockets, Observe,
    Phase, ProbeKey, RouteTable, Scheme, Settings,
    active::ActiveTable,
    certificates::server_config,
    handshake::Tls,
    http3::{Http3, Place},
    upstream::Health,
    worker::{Protocol, WorkerHandle},
};
use crate::limit::Limiter;

/// The data plane of a node; clones share it.
///
/// It owns the listening sockets and the worker threads, so an actor that drives it may be
/// restarted without closing a port or a connection. The threads start with the first listener.
#[derive(Clone)]
pub struct Proxy(Arc<DataPlane>);

struct DataPlane {
    shared: Arc<Shared>,
    control: Mutex<Control>,
}

/// State that all workers share; nothing in it is locked while a request is served.
pub(super) struct Shared {
    pub(super) live: ArcSwap<ActiveTable>,
    pub(super) challenges: ArcSwapOption<ChallengeTable>,
    pub(super) probe_key: ArcSwapOption<ProbeKey>,
    pub(super) settings: Settings,
    pub(super) health: Health,
    /// Kept for the lifetime of the proxy: a new table finds the counts of its routes in it.
    pub(super) limiter: Limiter,
    /// Announces HTTP/3 on TLS connections while it is served.
    pub(super) alt_svc: ArcSwapOption<HeaderValue>,
    observer: Arc<dyn Observe>,
    certificates: Arc<CertificateStore>,
}

#[derive(Default)]
struct Control {
    workers: Vec<WorkerHandle>,
    bound: Vec<(Scheme, ListenSockets)>,
    http3: Option<BoundHttp3>,
    /// Set with the first TLS listener and kept, so that sessions can be resumed on later ones.
    tls: Option<Tls>,
    /// Tables that were replaced. The last reference is dropped here and not by a worker, which
    /// would delay its requests while it frees a large table.
    retired: Vec<Arc<ActiveTable>>,
}

/// The sockets of HTTP/3.
struct BoundHttp3 {
    sockets: DatagramSockets,
    handed_over: Arc<AtomicBool>,
}

impl Proxy {
    /// A proxy with an empty table, which answers every request with 404, and without an observer.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::observed(settings, Arc::new(()))
    }

    /// As [`Proxy::new`], with `observer` counting the requests.
    #[must_use]
    pub fn observed(settings: Settings, observer: Arc<dyn Observe>) -> Self {
        let limiter = Limiter::new(settings.max_limited_clients);
        let empty = ActiveTable::new(RouteTable::default(), observer.clone(), &limiter);
        Self(Arc::new(DataPlane {
            shared: Arc::new(Shared {
                live: ArcSwap::from_pointee(empty),
                challenges: ArcSwapOption::empty(),
                alt_svc: ArcSwapOption::empty(),
                probe_key: ArcSwapOption::empty(),
                certificates: Arc::default(),
                health: Health::new(settings.down_for),
                limiter,
                settings,
                observer,
            }),
            control: Mutex::default(),
        }))
    }

    /// Serves connections to `sockets` until the next drain.
    ///
    /// # Errors
    /// If a worker thread cannot be started or the process is out of descriptors; nothing listens
    /// then.
    pub fn listen(&self, scheme: Scheme, sockets: ListenSockets) -> io::Result<()> {
        let mut control = self.control();
        self.start_workers(&mut control)?;
        let protocol = match scheme {
            Scheme::Http => Protocol::Http,
            Scheme::Https => Protocol::Https(self.tls(&mut control)?),
        };
        for (number, socket) in sockets.shares(control.workers.len())? {
            if let Some(worker) = control.workers.get(number) {
                worker.listen(socket, protocol.clone());
            }
        }
        control.bound.push((scheme, sockets));
        Ok(())
    }

    /// Serves HTTP/3 on `sockets` until the next drain, and announces it on TLS connections.
    ///
    /// # Errors
    /// If a worker thread cannot be started or the process is out of descriptors; nothing listens
    /// then.
    pub fn listen_http3(&self, sockets: DatagramSockets) -> io::Result<()> {
        let mut control = self.control();
        self.start_workers(&mut control)?;
        let (addr, store) = (sockets.local_addr(), self.0.shared.certificates.clone());
        let server = Http3::server_config(store, sockets.routes_by_connection());
        let server = server.map_err(io::Error::other)?;
        let field = format!("h3=\":{}\"; ma=2592000", addr.port());
        let field = HeaderValue::try_from(field).map_err(io::Error::other)?;
        let handed_over = Arc::new(AtomicBool::new(false));
        let shares = sockets.shares()?;
        let count = shares.len();
        for (number, (worker, socket)) in control.workers.iter().zip(shares).enumerate() {
            let place = Place {
                number,
                count,
                generation: sockets.generation(),
            };
            let http3 = Http3::of_worker(server.clone(), place, handed_over.clone());
            worker.listen_quic(socket, http3);
        }
        control.http3 = Some(BoundHttp3 {
            sockets,
            handed_over,
        });
        self.0.shared.alt_svc.store(Some(Arc::new(field)));
        Ok(())
    }

    /// The UDP address on which HTTP/3 is served, if it is.
    #[must_use]
    pub fn listening_http3(&self) -> Option<SocketAddr> {
        let control = self.control();
        control
            .http3
            .as_ref()
            .map(|http3| http3.sockets.local_addr())
    }

    /// Has new clients of HTTP/3 wait for another process, to which the returned duplicates of the
    /// sockets are handed. Those that are connected are served here until the drain. `None` if
    /// HTTP/3 is not served, or the kernel cannot tell packets of old and new connections apart.
    ///
    /// # Errors
    /// If the process is out of descriptors, or the kernel refuses.
    pub fn hand_over_http3(&self) -> io::Result<Option<DatagramSockets>> {
        let control = self.control();
        let Some(http3) = &control.http3 else {
            return Ok(None);
        };
        let next = http3.sockets.hand_over()?;
        http3.handed_over.store(next.is_some(), Ordering::Relaxed);
        Ok(next)
    }

    fn start_workers(&self, control: &mut Control) -> io::Result<()> {
        if control.workers.is_empty() {
            let numbers = 0..self.workers().get();
            let started = numbers.map(|n| WorkerHandle::start(n, self.0.shared.clone()));
            control.workers = started.collect::<io::Result<_>>()?;
        }
        Ok(())
    }

    fn tls(&self, control: &mut Control) -> io::Result<Tls> {
        if let Some(tls) = &control.tls {
            return Ok(tls.clone());
        }
        let store = self.0.shared.certificates.clone();
        let config = server_config(store.clone()).map_err(io::Error::other)?;
        Ok(control.tls.insert(Tls { config, store }).clone())
    }

    /// The certificates that the TLS listeners present.
    #[must_use]
    pub fn certificates(&self) -> &CertificateStore {
        &self.0.shared.certificates
    }

    /// Answers the paths of HTTP-01 challenges of any host on the plain listener from
    /// `challenges`; with `None` they are ordinary paths.
    pub fn swap_challenges(&self, challenges: Option<ChallengeTable>) {
        self.0.shared.challenges.store(challenges.map(Arc::new));
    }

    /// Answers probes of any host on the plain listener with `key`; without one their paths are
    /// ordinary ones.
    pub fn swap_probe_key(&self, key: Option<ProbeKey>) {
        self.0.shared.probe_key.store(key.map(Arc::new));
    }

    /// Number of worker threads; the best number of sockets per address.
    #[must_use]
    pub fn workers(&self) -> NonZeroUsize {
        self.0.shared.settings.workers
    }

    /// The address served as `scheme`, if there is one.
    #[must_use]
    pub fn listening(&self, scheme: Scheme) -> Option<SocketAddr> {
        let control = self.control();
        let mut bound = control.bound.iter();
        let (_, sockets) = bound.find(|(served, _)| *served == scheme)?;
        Some(sockets.local_addr())
    }

    /// Duplicates of all listening TCP sockets, to be handed to another process.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn sockets(&self) -> io::Result<Vec<(Scheme, ListenSockets)>> {
        let control = self.control();
        let cloned = |(scheme, sockets): &(Scheme, ListenSockets)| {
            io::Result::Ok((*scheme, sockets.try_clone()?))
        };
        control.bound.iter().map(cloned).collect()
    }

    /// Replaces the table unless it equals the current one; returns whether it did.
    pub fn swap(&self, table: RouteTable) -> bool {
        if *self.0.shared.live.load().table == table {
            return false;
        }
        let observer = self.0.shared.observer.clone();
        let next = ActiveTable::new(table, observer, &self.0.shared.limiter);
        let mut control = self.control();
        let previous = self.0.shared.live.swap(Arc::new(next));
        let in_use = |table: &Arc<ActiveTable>| Arc::strong_count(table) > 1;
        let unused: Vec<_> = control
            .retired
            .extract_if(.., |table| !in_use(table))
            .collect();
        control.retired.push(previous);
        for worker in &control.workers {
            worker.refresh();
        }
        drop(control);
        drop(unused);
        true
    }

    /// The current table.
    #[must_use]
    pub fn table(&self) -> Arc<RouteTable> {
        self.0.shared.live.load().table.clone()
    }

    /// The counts of limited clients.
    #[must_use]
    pub fn limiter(&self) -> &Limiter {
        &self.0.shared.limiter
    }

    /// Closes every listener and idle connection, lets running requests finish for at most `grace`,
    /// then closes WebSockets with the status 1001, within half a second, and ends the rest. Sockets bound later are served as usual.
    ///
    /// # Cancel safety
    /// Cancelled, it ends everything that is still running immediately.
    pub async fn drain(&self, grace: Duration) {
        let old: Vec<_> = {
            let mut control = self.control();
            control.bound.clear();
            control.http3 = None;
            self.0.shared.alt_svc.store(None);
            let workers = control.workers.iter_mut();
            workers.map(WorkerHandle::take_phase).collect()
        };
        for phase in &old {
            phase.send_replace(Phase::Draining);
        }
        let closed = || join_all(old.iter().map(|phase| phase.closed()));
        if tokio::time::timeout(grace, closed()).await.is_err() {
            for phase in &old {
                phase.send_replace(Phase::Closing);
            }
            let _ = tokio::time::timeout(CLOSING_TIMEOUT, closed()).await;
            for phase in &old {
                phase.send_replace(Phase::Closed);
            }
            closed().await;
        }
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.0
            .control
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("table", &self.0.shared.live.load().table)
            .finish_non_exhaustive()
    }
}
