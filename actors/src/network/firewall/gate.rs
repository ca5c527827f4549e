//! Gate between the containers and the ruleset and routes that isolate them.

use std::time::Duration;

use futures::future::BoxFuture;
use jaco_engine::cidr::Cidr;
use jaco_policy::network::{names::NetworkId, readiness::MeshStatus};
use jaco_supervision::Handle;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{IsolationStatus, Msg, Status};
use crate::network::gate::{IsolationGate, NotEnforced};

/// Longest wait for routes and ruleset; the start of the container is retried.
const WAIT: Duration = Duration::from_secs(30);

/// Opens for a block once the kernel's ruleset includes it and the mesh's routes are set.
pub struct FirewallGate {
    firewall: Handle<Msg>,
    status: watch::Receiver<Status>,
    mesh: Option<watch::Receiver<MeshStatus>>,
}

impl FirewallGate {
    /// Creates the gate of the firewall behind `firewall`, which publishes `status`, on a node
    /// whose mesh, if it has one, publishes `mesh`.
    #[must_use]
    pub fn new(
        firewall: Handle<Msg>,
        status: watch::Receiver<Status>,
        mesh: Option<watch::Receiver<MeshStatus>>,
    ) -> Self {
        Self {
            firewall,
            status,
            mesh,
        }
    }
}

/// Waits until the mesh's routes discard the packets that must not leave unencrypted.
async fn wait_protected(
    mut mesh: watch::Receiver<MeshStatus>,
    deadline: Instant,
) -> Result<(), NotEnforced> {
    // The last status decides after the deadline, or without a mesh that changes it.
    let _ = timeout_at(deadline, mesh.wait_for(MeshStatus::is_protected)).await;
    let status = mesh.borrow();
    if status.is_protected() {
        return Ok(());
    }
    Err(NotEnforced::Unprotected(status.fault().unwrap_or_default()))
}

impl IsolationGate for FirewallGate {
    fn wait_enforced<'a>(
        &'a self,
        network: &'a NetworkId,
        block: Cidr,
    ) -> BoxFuture<'a, Result<(), NotEnforced>> {
        // Connections of the block's former network are ended before anything starts on it. If that
        // fails until the deadline, the ruleset alone has to do.
        let opens = move |status: &Status, stale: bool| match &status.isolation {
            IsolationStatus::Unavailable(reason) => {
                Some(Err(NotEnforced::Unavailable(reason.clone())))
            }
            IsolationStatus::Off => Some(Ok(())),
            IsolationStatus::Pending => None,
            IsolationStatus::Enforced => {
                let isolated = status.isolates(network, block);
                (isolated && (stale || !status.has_stale_flows)).then_some(Ok(()))
            }
        };
        let (mut status, mesh) = (self.status.clone(), self.mesh.clone());
        Box::pin(async move {
            let deadline = Instant::now() + WAIT;
            if let Some(mesh) = mesh {
                wait_protected(mesh, deadline).await?;
            }
            if let Some(outcome) = opens(&status.borrow(), false) {
                return outcome;
            }
            // A restarting actor passes soon anyway.
            let _ = self.firewall.cast(Msg::Wanted(network.clone(), block));
            let opened = status.wait_for(|status| opens(status, false).is_some());
            // The last status decides after the deadline.
            let _ = timeout_at(deadline, opened).await;
            opens(&status.borrow(), true).unwrap_or(Err(NotEnforced::Pending(block)))
        })
    }
}
