//! The HTTP data plane of the ingress.
//!
//! A [`RouteTable`] is a value; [`Proxy`] holds the current one together with what outlives a
//! table (health marks, idle connections, running requests); a [`ProxyServer`] is one listener
//! that serves it. Tables are swapped atomically: a request finishes on the table it was
//! matched with.
//!
//! - [`table`]: which route a request belongs to, pure.
//! - [`upstream`]: which replica of it may serve the request, pure.
//! - `forward`: the life of one request: choice, retries, upgrade, answer.
//! - `server`: accepting, timeouts of idle clients, draining.

mod body;
mod clock;
mod forward;
mod headers;
mod observe;
mod path;
mod pool;
mod relay;
mod server;
pub mod table;
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
    upstream::{Dice, Health},
};

/// Limits and patience of the proxy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long connecting to a replica may take.
    pub connect_timeout: Duration,
    /// How long a client may take to send the head of a request.
    pub request_head_timeout: Duration,
    /// How long a client may stay connected without asking for anything.
    pub idle_timeout: Duration,
    /// How long a replica may be silent before its response begins.
    pub response_timeout: Duration,
    /// How long a replica that failed is left alone.
    pub down_for: Duration,
    /// How long an unused connection to a replica is kept.
    pub pool_idle_timeout: Duration,
    /// Longest request or response head, in bytes.
    pub max_head_bytes: usize,
    /// Wall clock that [`Upstream::fresh_until`] is compared with.
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

/// What a connection is told about the end of its proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Finish what runs, accept nothing new.
    Draining,
    /// End at once.
    Closed,
}

/// The data plane shared by all listeners; a clone is the same one.
///
/// It outlives its listeners, so a listener that is closed and bound again loses no request
/// that is running, and none of what was learnt about replicas.
#[derive(Clone)]
pub struct Proxy(Arc<Shared>);

struct Shared {
    live: ArcSwap<Live>,
    observer: Arc<dyn Observe>,
    settings: Settings,
    health: Health,
    dice: Dice,
    pool: Pool,
    /// The generation of connections that a drain will end.
    phase: Mutex<watch::Sender<Phase>>,
}

/// A table and where its requests are counted.
struct Live {
    table: Arc<RouteTable>,
    meters: Meters,
}

impl Live {
    fn new(table: Arc<RouteTable>, observer: &dyn Observe) -> Self {
        let meters = Meters::new(observer, &table);
        Self { table, meters }
    }
}

impl Proxy {
    /// A proxy that answers 404 until it is given a table, and counts nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::observed(settings, Arc::new(()))
    }

    /// As [`Proxy::new`], with `observer` to count requests.
    #[must_use]
    pub fn observed(settings: Settings, observer: Arc<dyn Observe>) -> Self {
        Self(Arc::new(Shared {
            live: ArcSwap::from_pointee(Live::new(Arc::default(), &*observer)),
            observer,
            health: Health::new(settings.down_for),
            dice: Dice::new(),
            pool: Pool::new(&settings),
            phase: Mutex::new(watch::Sender::new(Phase::Serving)),
            settings,
        }))
    }

    /// Replaces the table unless it is equal to the current one; tells whether it did.
    pub fn swap(&self, table: RouteTable) -> bool {
        if *self.0.live.load().table == table {
            return false;
        }
        let table = Arc::new(table);
        let live = Live::new(table.clone(), &*self.0.observer);
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

    /// Closes every listener and idle connection, lets running requests finish for at most
    /// `grace`, then ends the rest. Listeners bound later serve as usual.
    ///
    /// # Cancel safety
    /// Cancelled, everything that is still running ends at once.
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
