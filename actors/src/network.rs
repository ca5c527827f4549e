//! The network vertical: address blocks and bridges.
//!
//! - [`ipam`]: which block a network has on a host; decided by the leader.
//! - [`bridge`]: the engine's bridge network of one (deployment, network) on this host.
//! - [`manager`]: one bridge actor per network this host has a part of; [`BridgeDirectory`] is
//!   where the runtime asks for them.

pub mod bridge;
pub mod cidr;
pub mod engine;
pub mod ipam;
pub mod manager;
pub mod names;

use std::sync::Arc;

use jaco_raftnode::Propose;
use jaco_supervision::{ChildSpec, Strategy, SupervisorHandle, SupervisorSpec};
use tokio::sync::watch;

pub use bridge::BridgeReady;
pub use manager::BridgeDirectory;

use crate::clock::Clock;

/// What the network vertical of a node needs.
#[derive(Clone)]
pub struct Args {
    /// Cluster this host belongs to.
    pub cluster_id: String,
    /// This host.
    pub host: String,
    /// Where the state is read and changed.
    pub raft: Arc<dyn Propose>,
    /// Whether this node leads and has applied an entry of its own term.
    pub is_leader: watch::Receiver<bool>,
    /// Time of the commands.
    pub clock: Clock,
    /// Addresses the cluster hands out.
    pub pool: ipam::Pool,
    /// Where the networks live.
    pub engine: engine::SharedEngine,
    /// What gives networks their blocks while another node leads.
    pub elsewhere: ipam::SharedAllocator,
}

/// The network part of a node's tree, where to ask for networks, and what gives them their blocks
/// while this node leads.
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
    let (ipam, here) = ChildSpec::worker::<ipam::IpamActor>("ipam", ipam);
    let here = ipam::allocator(here);
    let env = bridge::Env {
        cluster_id: args.cluster_id,
        host: args.host,
        raft: args.raft,
        engine: args.engine,
        allocator: ipam::leaders(here.clone(), args.elsewhere, args.is_leader),
        refused: bridge::Refused::default(),
    };
    let (manager, handle) = ChildSpec::worker::<manager::BridgeManager>("bridges", env);
    let spec = SupervisorSpec::new(Strategy::OneForOne)
        .child(ipam)
        .child(manager);
    let (spec, supervisor) = ChildSpec::supervisor("network", spec);
    (spec, supervisor, BridgeDirectory::new(handle), here)
}
