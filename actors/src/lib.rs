//! JACO as a library: the supervision kit, every vertical's actors and the embedding API.

pub mod api;
pub mod clock;
mod commit;
pub mod ingress;
pub mod network;
pub mod node;
pub mod runtime;
pub mod scheduler;
pub mod supervision;
