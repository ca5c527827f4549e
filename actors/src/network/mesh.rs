//! The encrypted mesh: one device with the peers and routes to the containers of other hosts.
//!
//! [`jaco_policy::network::mesh`] decides; [`MeshActor`] carries its steps out over a
//! [`MeshPort`]. The device belongs to the port, which outlives the actor: a restarted actor finds
//! the device and its peers as they are, and no session is lost. WireGuard runs in the kernel where
//! it has it, and else in user space.
//!
//! When the daemon stops, containers keep running, and so does what carries their packets: the
//! kernel's device stays, and a device in user space works until the process ends, or until its
//! successor has taken it over ([`Resumed`]). The blackhole routes stay in any case, as packets to other
//! hosts must not leave the machine unencrypted. [`leave`] removes all when the node leaves its cluster.

mod actor;
mod device;
mod handover;
mod kernel;
mod port;
mod slot;

pub use actor::{Args, MeshActor, Msg};
pub use handover::Resumed;
pub use jaco_policy::network::{mesh::plan, readiness::MeshStatus};
pub use kernel::{DEVICE, KernelPort, leave};
pub use port::{MeshPort, PortError, SharedPort};
