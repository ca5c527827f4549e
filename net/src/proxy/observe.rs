//! Counting of finished requests.

use std::{collections::HashMap, sync::Arc, time::Duration};

use http::{StatusCode, Version};
use tokio::time::Instant;

use super::{RouteTable, table::fold_case};

/// Provides the meters of a proxy.
pub trait Observe: Send + Sync + 'static {
    /// The meter of requests for `domain` that `service` serves; called once per table.
    ///
    /// `None` stands for every host without a route, an empty service for requests to a declared
    /// domain that no service serves.
    fn meter(&self, domain: Option<&str>, service: &str) -> Arc<dyn Meter>;
}

/// Counts the requests of one service of one domain. Called for every request, so it must be fast.
pub trait Meter: Send + Sync + 'static {
    /// Records that the response of a request was completed or aborted.
    fn finished(&self, finished: &Finished);
}

/// One request whose response is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Status of the response.
    pub status: StatusCode,
    /// Protocol version of the client.
    pub version: Version,
    /// Time from the request's head to the end of the response; `None` for a switch of protocols,
    /// which has no such end.
    pub took: Option<Duration>,
}

/// Counts nothing.
impl Observe for () {
    fn meter(&self, _domain: Option<&str>, _service: &str) -> Arc<dyn Meter> {
        Arc::new(())
    }
}

impl Meter for () {
    fn finished(&self, _finished: &Finished) {}
}

/// The meters of one table, looked up from the observer once.
pub(super) struct Meters {
    unknown: Arc<dyn Meter>,
    domains: HashMap<String, Domain>,
}

struct Domain {
    unanswered: Arc<dyn Meter>,
    services: HashMap<String, Arc<dyn Meter>>,
}

impl Meters {
    pub(super) fn new(observer: &dyn Observe, table: &RouteTable) -> Self {
        let domains = table.domains().map(|domain| {
            let meter = |service: &str| observer.meter(Some(domain), service);
            let services = table.routes(domain).iter().map(|route| {
                let service = route.service();
                (service.to_owned(), meter(service))
            });
            let meters = Domain {
                unanswered: meter(""),
                services: services.collect(),
            };
            (domain.to_owned(), meters)
        });
        Self {
            unknown: observer.meter(None, ""),
            domains: domains.collect(),
        }
    }

    /// The meter of requests to hosts without a route.
    pub(super) fn unknown(&self) -> Arc<dyn Meter> {
        self.unknown.clone()
    }

    /// The meter of a request for `host` that `service` serves, if any.
    pub(super) fn of(&self, host: &str, service: Option<&str>) -> Arc<dyn Meter> {
        let Some(domain) = self.domains.get(fold_case(host).as_ref()) else {
            return self.unknown();
        };
        let found = service.and_then(|service| domain.services.get(service));
        found.unwrap_or(&domain.unanswered).clone()
    }
}

/// Counts one request when it is dropped.
pub(super) struct Measured {
    pub(super) meter: Arc<dyn Meter>,
    pub(super) status: StatusCode,
    pub(super) version: Version,
    pub(super) since: Instant,
}

impl Drop for Measured {
    fn drop(&mut self) {
        let switched = self.status == StatusCode::SWITCHING_PROTOCOLS;
        self.meter.finished(&Finished {
            status: self.status,
            version: self.version,
            took: (!switched).then(|| self.since.elapsed()),
        });
    }
}
