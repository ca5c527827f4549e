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
use crate::limit::{LimitedRoute, Limiter};

/// A route table, the meters and limits of its requests, and the addresses it forwards to; immutable.
pub(super) struct ActiveTable {
    pub(super) table: Arc<RouteTable>,
    observer: Arc<dyn Observe>,
    unknown: OnceLock<Arc<dyn Meter>>,
    /// By domain, in the order of the table.
    slots: Box<[DomainSlots]>,
    addrs: HashSet<SocketAddr>,
}

/// Meters and limits of one domain; meters are looked up from the observer when a request needs
/// them, so that installing a large table is fast.
struct DomainSlots {
    unanswered: OnceLock<Arc<dyn Meter>>,
    routes: Box<[RouteSlot]>,
}

struct RouteSlot {
    meter: OnceLock<Arc<dyn Meter>>,
    limit: Option<LimitedRoute>,
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
    pub(super) fn new(table: RouteTable, observer: Arc<dyn Observe>, limiter: &Limiter) -> Self {
        let slot = |domain: &str, route: &Route| RouteSlot {
            meter: OnceLock::new(),
            limit: route
                .limits()
                .map(|limits| limiter.route(domain, route.path(), *limits)),
        };
        let domains = table.domains().zip(table.all_routes());
        let slots = domains.map(|(domain, routes)| DomainSlots {
            unanswered: OnceLock::new(),
            routes: routes.iter().map(|route| slot(domain, route)).collect(),
        });
        Self {
            slots: slots.collect(),
            addrs: table.upstreams().map(|upstream| upstream.addr).collect(),
            table: Arc::new(table),
            observer,
            unknown: OnceLock::new(),
        }
    }

    /// The limits of a route.
    pub(super) fn limit(&self, id: RouteId) -> Option<&LimitedRoute> {
        self.slot(id)?.limit.as_ref()
    }

    /// Counts a request that the limits of a route refused.
    pub(super) fn count_limited(&self, id: RouteId) {
        if let Some(route) = self.table.route(id) {
            self.observer.limited(route.deployment(), route.service());
        }
    }

    fn slot(&self, id: RouteId) -> Option<&RouteSlot> {
        self.slots.get(id.domain)?.routes.get(id.route)
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
            MeterId::Unanswered { domain } => match self.slots.get(domain) {
                Some(slots) => &**slots.unanswered.get_or_init(|| of(domain, "")),
                None => unknown(),
            },
            MeterId::Route(id) => match (self.slot(id), self.table.route(id)) {
                (Some(slot), Some(route)) => {
                    &**slot.meter.get_or_init(|| of(id.domain, route.service()))
                }
                (_, _) => unknown(),
            },
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
