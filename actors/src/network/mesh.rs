//! The encrypted mesh: one device with the peers and routes to the containers of other hosts.
//!
//! [`jaco_policy::network::mesh`] decides; [`MeshActor`] carries its steps out over a
//! [`MeshPort`]. The device belongs to the port, which outlives the actor: a restarted actor finds
//! the device and its peers as they are, and no session is lost. WireGuard runs in the kernel where
//! it has it, and else in user space.
//!
//! When the daemon stops, the device goes and the blackhole routes stay: containers keep running,
//! and their packets to other hosts must not leave the machine unencrypted. [`leave`] removes them
//! when the node leaves its cluster.

mod actor;
mod device;
mod kernel;
mod port;
mod slot;

pub use actor::{Args, MeshActor, Msg};
pub use jaco_policy::network::{mesh::plan, readiness::MeshStatus};
pub use kernel::{DEVICE, KernelPort, leave};
pub use port::{MeshPort, PortError, SharedPort};
