//! State of a node's API: the node, and the limits on its clients.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use jaco_policy::api::{
    connection_limits::{ConnectionLimiter, ConnectionLimits},
    rate_limits::{FailureLimiter, JoinLimiter},
};
use rustix::process::{Resource, getrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::methods::METHODS;
use crate::{lock::lock, node::NodeContext};

/// State shared by the listeners and handlers of one node; lives as long as the node, so that a
/// restarted listener continues with the same counts.
pub(crate) struct ApiContext {
    node: Arc<NodeContext>,
    /// Connections of the API listeners; they outlive the listener actor that accepted them.
    pub(super) limiter: Arc<Mutex<ConnectionLimiter>>,
    /// Permits for further concurrent calls, of the methods that have a limit.
    permits: BTreeMap<&'static str, (usize, Arc<Semaphore>)>,
    /// Failed token checks by client address.
    failures: Mutex<FailureLimiter>,
    /// Join attempts by client address.
    join_attempts: Mutex<JoinLimiter>,
}

impl ApiContext {
    /// Creates the state of the API of `node`; one per node.
    pub(crate) fn new(node: Arc<NodeContext>) -> Self {
        let limits = ConnectionLimits::of(getrlimit(Resource::Nofile).current);
        let permits = METHODS.iter().filter_map(|method| {
            let limit = method.concurrency?;
            Some((method.name, (limit, Arc::new(Semaphore::new(limit)))))
        });
        Self {
            node,
            limiter: Arc::new(Mutex::new(ConnectionLimiter::new(limits))),
            permits: permits.collect(),
            failures: Mutex::default(),
            join_attempts: Mutex::default(),
        }
    }

    /// State of the node.
    pub(crate) fn node(&self) -> &Arc<NodeContext> {
        &self.node
    }

    /// Takes one of the permits for concurrent calls of the method `name`, such as
    /// `Cluster/Backup`; `None` if the method has no limit.
    ///
    /// # Errors
    /// The limit, if no permit is left.
    pub(super) fn try_permit(&self, name: &str) -> Result<Option<OwnedSemaphorePermit>, usize> {
        let Some((limit, permits)) = self.permits.get(name) else {
            return Ok(None);
        };
        let permit = permits.clone().try_acquire_owned();
        permit.map(Some).map_err(|_| *limit)
    }

    /// Records a failed token check and returns the delay of its answer.
    pub(super) fn failed_token_check(&self, address: IpAddr, now: Instant) -> Duration {
        lock(&self.failures).failed(now, address)
    }

    /// Counts an attempt to join from `address`; the error is the time until the next attempt is
    /// allowed.
    pub(super) fn join_attempt(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        lock(&self.join_attempts).attempt(now, address)
    }

    /// Uncounts the last attempt from `address`: its token was valid.
    pub(super) fn joined_from(&self, address: IpAddr) {
        lock(&self.join_attempts).uncount(address);
    }
}
