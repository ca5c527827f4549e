//! Interface between the bridges of this host and their DNS responders.

use std::net::Ipv4Addr;

use jaco_policy::network::names::NetworkId;

/// Starts and stops the DNS responder of each network that has a bridge on this host.
///
/// No method waits: a responder that cannot bind yet retries on its own, because the bridge gets its
/// address only once the engine has created it.
pub trait Responders: Send + Sync {
    /// Serves the names of `network` at `address`, the gateway of its bridge; idempotent. A
    /// responder at another address moves.
    fn ensure(&self, network: &NetworkId, address: Ipv4Addr);

    /// Stops the responder of `network`, if there is one.
    fn remove(&self, network: &NetworkId);
}

/// Implementation for a node that serves no names.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoResponders;

impl Responders for NoResponders {
    fn ensure(&self, _: &NetworkId, _: Ipv4Addr) {}

    fn remove(&self, _: &NetworkId) {}
}
