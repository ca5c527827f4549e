//! The HTTP data plane of the ingress.
//!
//! A [`RouteTable`] is an immutable value. [`Proxy`] holds the current table and the state that
//! outlives a table: health marks, idle connections, running requests. A [`ProxyServer`] is one
//! listener that serves a `Proxy`. Tables are swapped atomically: a request finishes on the table
//! it was matched with.
//!
//! - [`table`]: route matching, pure.
//! - [`upstream`]: replica selection within a route, pure.
//! - `forward`: handling of one request: replica selection, retries, upgrade, response.
//! - `server`: accepting connections, client timeouts, draining.

mod body;
mod forward;
mod headers;
mod observe;
mod path;
mod pool;
mod relay;
mod server;
pub mod table;
mod timeouts;
pub mod upstream;

pub use observe::{Finished, Meter, Observe};
pub use server::ProxyServer;
pub use table::{Match, Route, RouteTable, Rule};
pub use upstream::Upstream;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use self::{
    observe::Meters,
    pool::Pool,
    upstream::{Health, SplitMix64},
};

/// Limits and timeouts of the proxy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Timeout of connecting to a replica.
    pub connect_timeout: Duration,
    /// Time within which a client must send the head of a request.
    pub request_head_timeout: Duration,
    /// Time after which a client connection without a request is closed.
    pub idle_timeout: Duration,
    /// Time a replica may take until its response begins, counted from the last part of the
    /// request.
    pub response_timeout: Duration,
    /// Time for which a replica that failed gets no requests.
    pub down_for: Duration,
    /// Time for which an unused connection to a replica is kept.
    pub pool_idle_timeout: Duration,
    /// Maximum length of a request or response head, in bytes.
    pub max_head_bytes: usize,
    /// Source of the wall time that [`Upstream::fresh_until`] is compared with.
    pub wall_clock: fn() -> SystemTime,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            request_head_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(300),
            response_timeout: Duration::from_secs(300),
            down_for: Duration::from_secs(10),
            pool_idle_timeout: Duration::from_secs(60),
            max_head_bytes: 64 * 1024,
            wall_clock: SystemTime::now,
        }
    }
}

/// Shutdown phase of the proxy, watched by its listeners and connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Running requests finish; no new ones are accepted.
    Draining,
    /// Everything is closed immediately.
    Closed,
}

/// The data plane shared by all listeners; clones share it.
///
/// It outlives its listeners: closing a listener and binding it again loses neither running
/// requests nor the health marks of replicas.
#[derive(Clone)]
pub struct Proxy(Arc<ProxyState>);

struct ProxyState {
    live: ArcSwap<ActiveTable>,
    observer: Arc<dyn Observe>,
    settings: Settings,
    health: Health,
    rng: SplitMix64,
    pool: Pool,
    /// Phase of the current connections. A drain replaces the channel, so it affects only
    /// connections accepted before.
    phase: Mutex<watch::Sender<Phase>>,
}

/// A route table and the meters of its requests.
struct ActiveTable {
    table: Arc<RouteTable>,
    meters: Meters,
}

impl ActiveTable {
    fn new(table: Arc<RouteTable>, observer: &dyn Observe) -> Self {
        let meters = Meters::new(observer, &table);
        Self { table, meters }
    }
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
        Self(Arc::new(ProxyState {
            live: ArcSwap::from_pointee(ActiveTable::new(Arc::default(), &*observer)),
            observer,
            health: Health::new(settings.down_for),
            rng: SplitMix64::new(),
            pool: Pool::new(&settings),
            phase: Mutex::new(watch::Sender::new(Phase::Serving)),
            settings,
        }))
    }

    /// Replaces the table unless it equals the current one; returns whether it did.
    pub fn swap(&self, table: RouteTable) -> bool {
        if *self.0.live.load().table == table {
            return false;
        }
        let table = Arc::new(table);
        let live = ActiveTable::new(table.clone(), &*self.0.observer);
        self.0.live.store(Arc::new(live));
        self.0
            .pool
            .retain(|addr| table.upstreams().any(|upstream| upstream.addr == addr));
        true
    }

    /// The current table.
    #[must_use]
    pub fn table(&self) -> Arc<RouteTable> {
        self.0.live.load().table.clone()
    }

    /// Closes every listener and idle connection, lets running requests finish for at most `grace`,
    /// then ends the rest. Listeners bound later serve as usual.
    ///
    /// # Cancel safety
    /// Cancelled, it ends everything that is still running immediately.
    pub async fn drain(&self, grace: Duration) {
        let old = {
            let mut phase = self.0.phase.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *phase, watch::Sender::new(Phase::Serving))
        };
        old.send_replace(Phase::Draining);
        if tokio::time::timeout(grace, old.closed()).await.is_err() {
            old.send_replace(Phase::Closed);
            old.closed().await;
        }
    }

    fn phase(&self) -> watch::Receiver<Phase> {
        self.0
            .phase
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .subscribe()
    }
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy")
            .field("table", &self.0.live.load().table)
            .finish_non_exhaustive()
    }
}
