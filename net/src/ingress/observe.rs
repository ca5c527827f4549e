//! Counting of finished requests.

use std::{sync::Arc, time::Duration};

use http::{StatusCode, Version};
use tokio::time::Instant;

use super::{
    access_log::Logged,
    active::{MeterId, WorkerTable},
};

/// Provides the meters of a proxy.
pub trait Observe: Send + Sync + 'static {
    /// The meter of requests for `domain` that `service` serves; called by a worker for the first
    /// such request after a change of the table.
    ///
    /// `None` stands for every host without a route, an empty service for requests to a declared
    /// domain that no service serves.
    fn meter(&self, domain: Option<&str>, service: &str) -> Arc<dyn Meter>;

    /// Records that a request to `service` of `deployment` was refused because its client is beyond
    /// a limit. It is a finished request as well. Called by workers, so it must not wait.
    fn limited(&self, deployment: &str, service: &str);
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

    fn limited(&self, _deployment: &str, _service: &str) {}
}

impl Meter for () {
    fn finished(&self, _finished: &Finished) {}
}

/// Counts one request when it is dropped.
pub(super) struct Measured {
    pub(super) table: Arc<WorkerTable>,
    pub(super) meter: MeterId,
    pub(super) status: StatusCode,
    /// Whether the response begins another protocol: a 101, or the success of an extended CONNECT.
    pub(super) switched: bool,
    pub(super) version: Version,
    pub(super) since: Instant,
    /// Fields for the log of requests, if there is one.
    pub(super) logged: Option<Box<Logged>>,
}

impl Drop for Measured {
    fn drop(&mut self) {
        let finished = Finished {
            status: self.status,
            version: self.version,
            took: (!self.switched).then(|| self.since.elapsed()),
        };
        self.table.0.meter(self.meter).finished(&finished);
        if let Some(logged) = self.logged.take() {
            logged.write(&finished);
        }
    }
}
