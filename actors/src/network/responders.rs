//! Interface between the bridges of this host and their DNS responders.

use jaco_engine::cidr::Cidr;
use jaco_policy::network::names::NetworkId;

/// Starts and stops the DNS responder of each network that has a bridge on this host.
///
/// No method waits: a responder that cannot bind yet retries on its own, because the bridge gets its
/// address only once the engine has created it.
pub trait Responders: Send + Sync {
    /// Serves the names of `network` to the containers of `block`, at its gateway; idempotent. A
    /// responder of another block moves.
    fn ensure(&self, network: &NetworkId, block: Cidr);

    /// Stops the responder of `network`, if there is one.
    fn remove(&self, network: &NetworkId);
}

/// Implementation for a node that serves no names.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoResponders;

impl Responders for NoResponders {
    fn ensure(&self, _: &NetworkId, _: Cidr) {}

    fn remove(&self, _: &NetworkId) {}
}
