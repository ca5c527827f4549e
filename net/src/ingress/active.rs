//! The route table in use, with what is derived from it for serving.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use super::{
    Meter, Observe, Route, RouteTable, Upstream,
    table::{Found, RouteId},
};

/// A route table, the meters of its requests and the addresses it forwards to; immutable.
pub(super) struct ActiveTable {
    pub(super) table: Arc<RouteTable>,
    observer: Arc<dyn Observe>,
    unknown: OnceLock<Arc<dyn Meter>>,
    /// By domain, in the order of the table.
    meters: Box<[DomainMeters]>,
    addrs: HashSet<SocketAddr>,
}

/// Meters of one domain; looked up from the observer when a request needs them, so that installing
/// a large table is fast.
struct DomainMeters {
    unanswered: OnceLock<Arc<dyn Meter>>,
    routes: Box<[OnceLock<Arc<dyn Meter>>]>,
}

/// The meter that counts a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MeterId {
    /// For hosts without a route.
    Unknown,
    /// For requests to a declared domain that no service serves.
    Unanswered { domain: usize },
    /// For requests matched by a route.
    Route(RouteId),
}

impl From<Option<Found>> for MeterId {
    fn from(found: Option<Found>) -> Self {
        match found {
            None => Self::Unknown,
            Some(Found {
                domain,
                route: None,
                ..
            }) => Self::Unanswered { domain },
            Some(Found {
                route: Some(route), ..
            }) => Self::Route(route),
        }
    }
}

impl ActiveTable {
    pub(super) fn new(table: RouteTable, observer: Arc<dyn Observe>) -> Self {
        let meters = table.all_routes().map(|routes| DomainMeters {
            unanswered: OnceLock::new(),
            routes: routes.iter().map(|_| OnceLock::new()).collect(),
        });
        Self {
            meters: meters.collect(),
            addrs: table.upstreams().map(|upstream| upstream.addr).collect(),
            table: Arc::new(table),
            observer,
            unknown: OnceLock::new(),
        }
    }

    /// Whether a replica listens on `addr`.
    pub(super) fn forwards_to(&self, addr: SocketAddr) -> bool {
        self.addrs.contains(&addr)
    }

    /// The meter of a request.
    pub(super) fn meter(&self, id: MeterId) -> &dyn Meter {
        let unknown = || &**self.unknown.get_or_init(|| self.observer.meter(None, ""));
        let of = |domain: usize, service: &str| {
            let name = self.table.domain_name(domain);
            self.observer.meter(name, service)
        };
        match id {
            MeterId::Unknown => unknown(),
            MeterId::Unanswered { domain } => match self.meters.get(domain) {
                Some(meters) => &**meters.unanswered.get_or_init(|| of(domain, "")),
                None => unknown(),
            },
            MeterId::Route(id) => {
                let slot = self.meters.get(id.domain);
                let slot = slot.and_then(|meters| meters.routes.get(id.route));
                match (slot, self.table.route(id)) {
                    (Some(slot), Some(route)) => {
                        &**slot.get_or_init(|| of(id.domain, route.service()))
                    }
                    (_, _) => unknown(),
                }
            }
        }
    }
}

/// A worker's own reference to the table in use.
///
/// Requests count references to this value and not to the [`ActiveTable`] that all workers share,
/// so their counts stay in the cache of one core.
pub(super) struct WorkerTable(pub(super) Arc<ActiveTable>);

/// A replica of the table that a request was matched with.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) table: Arc<WorkerTable>,
    pub(super) route: RouteId,
    /// Position among the replicas of the route.
    pub(super) upstream: usize,
}

impl Target {
    /// The replica; always present in the table it was picked from.
    pub(super) fn upstream(&self) -> Option<&Upstream> {
        let route: &Route = self.table.0.table.route(self.route)?;
        route.upstreams().get(self.upstream)
    }
}
