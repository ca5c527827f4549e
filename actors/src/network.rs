//! Network vertical: address blocks and bridges.
//!
//! - [`firewall`]: the ruleset that isolates deployments from each other.
//! - [`gate`]: no container starts before the ruleset isolates its block.
//! - [`ipam`]: allocates an address block to each network on each host; the leader decides.
//! - [`bridge`]: the engine's bridge network of one (deployment, network) on this host.
//! - [`interfaces`]: the interfaces of the host.
//! - [`dns`]: names of the containers.
//! - [`responders`]: how bridges request the DNS responders of their networks.
//! - [`mesh`]: the encrypted device to the other members, and the routes over it.
//! - [`manager`]: one bridge actor per network with a block on this host; the runtime requests
//!   networks through [`BridgeDirectory`].
//! - [`probe`]: tests which paths between networks work, and reports it to the other members.
//! - [`reports`]: the newest report of each member about its networks.

pub mod bridge;
pub mod dns;
pub mod firewall;
pub mod gate;
pub mod interfaces;
pub mod ipam;
pub mod manager;
pub mod mesh;
pub mod probe;
pub mod reports;
pub mod responders;

use std::sync::Arc;

use jaco_engine::NetworkEngine;
use jaco_policy::network::{
    bridge::{addresses::KnownAddresses, refused_blocks::RefusedBlocks, sight::BridgeSight},
    firewall::local::LocalNetworks,
};
use jaco_raftnode::{ForwardingProposer, LeaderProposer};
use jaco_supervision::{ChildSpec, Strategy, SupervisorHandle, SupervisorSpec};
use tokio::sync::watch;

pub use bridge::BridgeReady;
pub use jaco_engine::cidr;
pub use manager::BridgeDirectory;

use crate::clock::Clock;

/// Shared handle to a network engine.
pub type SharedEngine = Arc<dyn NetworkEngine>;

/// Arguments of a node's network vertical.
pub struct Args {
    /// Cluster this host belongs to.
    pub cluster_id: String,
    /// This host.
    pub host: String,
    /// Reads and changes the replicated state.
    pub raft: Arc<dyn LeaderProposer>,
    /// Whether this node leads and has applied an entry of its own term.
    pub is_leader: watch::Receiver<bool>,
    /// Source of the commands' timestamps.
    pub clock: Clock,
    /// Address pool of a cluster whose state names none.
    pub pool: ipam::Pool,
    /// Container engine that holds the networks.
    pub engine: SharedEngine,
    /// Submits audit events to the leader.
    pub cluster: Arc<dyn ForwardingProposer>,
    /// Allocator used while another node leads.
    pub remote: ipam::SharedAllocator,
    /// Lists the host's interfaces.
    pub interfaces: interfaces::SharedInterfaces,
    /// Isolates address blocks; no network is ready before.
    pub gate: gate::SharedGate,
    /// Firewall behind the gate, if deployments are isolated.
    pub firewall: Option<ChildSpec>,
    /// Receives the networks of the engine, for the firewall.
    pub local: watch::Sender<Option<Arc<LocalNetworks>>>,
    /// DNS responders of the networks.
    pub responders: Arc<dyn responders::Responders>,
    /// The encrypted mesh, if there is one.
    pub mesh: Option<mesh::Args>,
    /// Name resolution for the containers, if there is any.
    pub dns: Option<dns::Args>,
}

/// Result of [`supervisor`].
type Network = (
    ChildSpec,
    SupervisorHandle,
    BridgeDirectory,
    ipam::SharedAllocator,
);

/// Creates the network subtree of a node; also returns its bridge directory and the local
/// allocator, which serves while this node leads.
#[must_use]
pub fn supervisor(args: Args) -> Network {
    let ipam = ipam::Args {
        raft: Arc::clone(&args.raft),
        is_leader: args.is_leader.clone(),
        clock: args.clock.clone(),
        pool: args.pool,
    };
    let (ipam, local) = ChildSpec::worker::<ipam::IpamActor>("ipam", ipam);
    let local = ipam::allocator(local);
    let env = bridge::BridgeContext {
        cluster_id: args.cluster_id,
        host: args.host,
        raft: args.raft,
        cluster: args.cluster,
        clock: args.clock,
        engine: args.engine,
        allocator: ipam::leader_allocator(local.clone(), args.remote, args.is_leader),
        refused_blocks: RefusedBlocks::default(),
        interfaces: args.interfaces,
        sight: BridgeSight::default(),
        local: args.local,
        addresses: KnownAddresses::default(),
        gate: args.gate,
        responders: args.responders,
        documents: Arc::default(),
        repairs: watch::Sender::new(0),
    };
    let repairs = env.repairs.subscribe();
    let (manager, handle) = ChildSpec::worker::<manager::BridgeManager>("bridges", env);
    let mut spec = SupervisorSpec::new(Strategy::OneForOne).child(ipam);
    if let Some(mesh) = args.mesh {
        spec = spec.child(ChildSpec::worker::<mesh::MeshActor>("mesh", mesh).0);
    }
    if let Some(firewall) = args.firewall {
        spec = spec.child(firewall);
    }
    spec = spec.child(manager);
    if let Some(dns) = args.dns {
        spec = dns::children(dns)
            .into_iter()
            .fold(spec, SupervisorSpec::child);
    }
    let (spec, supervisor) = ChildSpec::supervisor("network", spec);
    (
        spec,
        supervisor,
        BridgeDirectory::new(handle, repairs),
        local,
    )
}
