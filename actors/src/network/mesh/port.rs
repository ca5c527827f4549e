//! Access to the kernel and the device.

use std::{collections::BTreeSet, io, net::Ipv4Addr, sync::Arc};

use futures::future::BoxFuture;
use jaco_engine::cidr::Cidr;
use jaco_net::wireguard;
use jaco_policy::network::{
    mesh::plan::{Observed, Step},
    probe::drops::Drops,
};
use jaco_proto::chain;
use tokio::sync::watch;

/// Reason why the mesh cannot be read or changed, with its causes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PortError(pub String);

pub(super) fn of(error: impl std::error::Error) -> PortError {
    PortError(chain(&error))
}

/// Kernel and device of a node's mesh.
pub trait MeshPort: Send + Sync + 'static {
    /// Reads the mesh that the kernel has, and which routes of other programs take packets to these
    /// networks. From then on, changes of such routes count as [`MeshPort::changes`].
    fn look(&self, networks: BTreeSet<Cidr>) -> BoxFuture<'static, Result<Observed, PortError>>;

    /// Carries out a step of a plan that was made of the last [`MeshPort::look`].
    fn apply(&self, step: Step) -> BoxFuture<'static, Result<(), PortError>>;

    /// Returns an IPv4 address of a host; `None` if the name does not resolve.
    fn resolve(&self, name: String) -> BoxFuture<'static, Option<Ipv4Addr>>;

    /// Changes whenever the kernel announces a change that concerns the mesh.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Networks of peers whose packets the device admits, also one of an earlier process; empty without
    /// a device.
    fn admitted(&self) -> BoxFuture<'static, BTreeSet<Cidr>>;

    /// Closes the device. Blackhole routes stay.
    fn close(&self) -> BoxFuture<'static, ()>;
}

/// Shared access to a [`MeshPort`].
pub type SharedPort = Arc<dyn MeshPort>;

/// WireGuard device of a node. Its methods may wait for threads or for the kernel.
pub(super) trait Device: Send + Sync {
    /// Replaces the set of peers; those that stay keep their sessions.
    ///
    /// # Errors
    /// See [`wireguard::Device::set_peers`].
    fn set_peers(&self, peers: Vec<wireguard::Peer>) -> Result<(), wireguard::Error>;

    /// State of the tunnel to each peer, ordered by key.
    fn stats(&self) -> Vec<wireguard::PeerStats>;

    /// Packets dropped since the device was opened; empty if it does not count them.
    fn drops(&self) -> Drops;

    /// Descriptors with which another process carries on; `None` if it needs none.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    fn descriptors(&self) -> io::Result<Option<wireguard::Descriptors>>;

    /// Whether the device does not have the peers any more that were set.
    fn is_altered(&self) -> bool;

    /// Reason why the device no longer works and is to be opened again.
    fn failure(&self) -> Option<String>;
}
