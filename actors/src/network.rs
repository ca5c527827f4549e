//! Network vertical: address blocks and bridges.
//!
//! - [`ipam`]: allocates an address block to each network on each host; the leader decides.
//! - [`bridge`]: the engine's bridge network of one (deployment, network) on this host.
//! - [`manager`]: one bridge actor per network with a block on this host; the runtime requests
//!   networks through [`BridgeDirectory`].

pub mod bridge;
pub mod ipam;
pub mod manager;

use std::sync::Arc;

use jaco_engine::NetworkEngine;
use jaco_policy::network::bridge::refused_blocks::RefusedBlocks;
use jaco_raftnode::LeaderProposer;
use jaco_supervision::{ChildSpec, Strategy, SupervisorHandle, SupervisorSpec};
use tokio::sync::watch;

pub use bridge::BridgeReady;
pub use jaco_engine::cidr;
pub use manager::BridgeDirectory;

use crate::clock::Clock;

/// Shared handle to a network engine.
pub type SharedEngine = Arc<dyn NetworkEngine>;

/// Arguments of a node's network vertical.
#[derive(Clone)]
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
    /// Address pool of the cluster.
    pub pool: ipam::Pool,
    /// Container engine that holds the networks.
    pub engine: SharedEngine,
    /// Allocator used while another node leads.
    pub remote: ipam::SharedAllocator,
}

/// Creates the network subtree of a node; also returns its bridge directory and the local
/// allocator, which serves while this node leads.
#[must_use]
pub fn supervisor(
    args: Args,
) -> (
    ChildSpec,
    SupervisorHandle,
    BridgeDirectory,
    ipam::SharedAllocator,
) {
    let ipam = ipam::Args {
        raft: Arc::clone(&args.raft),
        is_leader: args.is_leader.clone(),
        clock: args.clock,
        pool: args.pool,
    };
    let (ipam, local) = ChildSpec::worker::<ipam::IpamActor>("ipam", ipam);
    let local = ipam::allocator(local);
    let env = bridge::BridgeContext {
        cluster_id: args.cluster_id,
        host: args.host,
        raft: args.raft,
        engine: args.engine,
        allocator: ipam::leader_allocator(local.clone(), args.remote, args.is_leader),
        refused_blocks: RefusedBlocks::default(),
    };
    let (manager, handle) = ChildSpec::worker::<manager::BridgeManager>("bridges", env);
    let spec = SupervisorSpec::new(Strategy::OneForOne)
        .child(ipam)
        .child(manager);
    let (spec, supervisor) = ChildSpec::supervisor("network", spec);
    (spec, supervisor, BridgeDirectory::new(handle), local)
}
