//! Gate between the ruleset and the containers that it isolates.

use std::time::Duration;

use futures::future::BoxFuture;
use jaco_engine::cidr::Cidr;
use jaco_policy::network::names::NetworkId;
use jaco_supervision::Handle;
use tokio::{sync::watch, time::timeout};

use super::{IsolationStatus, Msg, Status};
use crate::network::gate::{IsolationGate, NotEnforced};

/// Longest wait for a ruleset; the start of the container is retried.
const WAIT: Duration = Duration::from_secs(30);

/// Opens for a block once the kernel's ruleset includes it.
pub struct FirewallGate {
    firewall: Handle<Msg>,
    status: watch::Receiver<Status>,
}

impl FirewallGate {
    /// Creates the gate of the firewall behind `firewall`, which publishes `status`.
    #[must_use]
    pub fn new(firewall: Handle<Msg>, status: watch::Receiver<Status>) -> Self {
        Self { firewall, status }
    }
}

impl IsolationGate for FirewallGate {
    fn wait_enforced<'a>(
        &'a self,
        network: &'a NetworkId,
        block: Cidr,
    ) -> BoxFuture<'a, Result<(), NotEnforced>> {
        let opens = move |status: &Status| match &status.isolation {
            IsolationStatus::Unavailable(reason) => {
                Some(Err(NotEnforced::Unavailable(reason.clone())))
            }
            IsolationStatus::Off => Some(Ok(())),
            IsolationStatus::Pending => None,
            IsolationStatus::Enforced => {
                let enforced = status.enforced.as_ref()?;
                enforced.includes(network, block).then_some(Ok(()))
            }
        };
        let mut status = self.status.clone();
        Box::pin(async move {
            if let Some(outcome) = opens(&status.borrow()) {
                return outcome;
            }
            // A restarting actor passes soon anyway.
            let _ = self.firewall.cast(Msg::Wanted(network.clone(), block));
            let opened = status.wait_for(|status| opens(status).is_some());
            match timeout(WAIT, opened).await {
                Ok(Ok(status)) => opens(&status).unwrap_or(Err(NotEnforced::Pending(block))),
                Ok(Err(_)) | Err(_) => Err(NotEnforced::Pending(block)),
            }
        })
    }
}
