//! Continuous test of reachability and isolation, and the report of this node to the others.
//!
//! [`jaco_policy::network::probe`] decides which path is probed and what the answers mean; the
//! [`Prober`] sends the probes, and `actor` drives both. Reports travel on the peer connections and
//! are never stored: a cluster at rest writes nothing.

mod actor;
mod kernel;
mod mesh;

use std::{collections::BTreeMap, fmt, net::Ipv4Addr, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jaco_engine::cidr::Cidr;
use jaco_policy::network::{
    names::NetworkId,
    probe::{
        core::Outcome,
        drops::Drops,
        report::{BridgeView, MeshView},
    },
};
use jaco_raftnode::ForwardingProposer;
use jaco_supervision::ChildSpec;

pub use actor::{Msg, ProbeActor};
pub use kernel::KernelProber;
pub use mesh::DeviceStats;

use super::reports::NetworkReports;
use crate::{clock::Clock, peer::Peers};

/// Longest interval between two reports to the other members; a change of a verdict is reported
/// within [`REPORT_INTERVAL`].
pub const LONGEST_SILENCE: Duration = Duration::from_secs(30);
/// Interval of the checks of bridges and of changes to report.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// State of the mesh, as its data plane sees it.
pub trait MeshStats: Send + Sync + 'static {
    /// Returns the present state.
    fn mesh(&self) -> BoxFuture<'static, MeshView>;
}

/// Mesh of a node that has none, or does not report it.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMeshStats;

impl MeshStats for NoMeshStats {
    fn mesh(&self) -> BoxFuture<'static, MeshView> {
        Box::pin(std::future::ready(MeshView::default()))
    }
}

/// Reads the packets that the rules of the packet filter dropped; it blocks.
///
/// # Errors
/// The reason, for an operator.
pub type DropReader = Arc<dyn Fn() -> Result<Drops, String> + Send + Sync>;

/// A network of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalNetwork {
    /// Its name.
    pub id: NetworkId,
    /// This host's block.
    pub block: Cidr,
}

/// Sends probes from the networks of this host, and answers those of others.
pub trait Prober: Send + Sync + 'static {
    /// Makes the network able to send and answer probes, repairs what another program changed, and
    /// returns what was found. Idempotent; calls for one network do not overlap.
    fn ensure(&self, network: LocalNetwork) -> BoxFuture<'static, BridgeView>;

    /// Releases what [`Prober::ensure`] made.
    fn remove(&self, id: &NetworkId);

    /// Releases what [`Prober::ensure`] made for networks other than these.
    fn retain(&self, networks: &BTreeMap<NetworkId, LocalNetwork>);

    /// Sends one probe from the endpoint of a network.
    fn probe(&self, from: &NetworkId, to: Ipv4Addr) -> BoxFuture<'static, Outcome>;
}

/// Arguments of a [`ProbeActor`]; kept across restarts.
#[derive(Clone)]
pub struct Args {
    /// This host.
    pub host: String,
    /// Reads the state, and writes audit events.
    pub cluster: Arc<dyn ForwardingProposer>,
    /// Connections that reports are sent over.
    pub peers: Peers,
    /// Reports of the other members, and of this one.
    pub reports: NetworkReports,
    /// State of the mesh.
    pub mesh: Arc<dyn MeshStats>,
    /// Reads what the packet filter dropped.
    pub drops: DropReader,
    /// Sends and answers probes.
    pub prober: Arc<dyn Prober>,
    /// Source of the commands' timestamps.
    pub clock: Clock,
}

impl fmt::Debug for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Args")
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// Creates the actor.
#[must_use]
pub fn worker(args: Args) -> ChildSpec {
    ChildSpec::worker::<ProbeActor>("network-probe", args).0
}
