//! The port to a container engine, and what stands behind it.
//!
//! [`Engine`] is the port to containers, [`NetworkEngine`] the one to networks: two traits, since
//! no part of JACO uses both, and one type implements both.
//!
//! - [`spec`]: parameters of a container to create.
//! - [`cidr`]: address blocks of networks.
//! - [`labels`]: the labels that identify containers and networks.
//! - `docker`: Docker and Podman behind the port (feature `docker`).
//! - `fake`: an engine in memory, for tests (feature `testing`).

mod container;
mod credential;
mod error;
mod network;

pub mod cidr;
#[cfg(feature = "docker")]
pub mod docker;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
pub mod labels;
pub mod spec;

pub use container::{
    CommandExit, DEFAULT_GRACE, Engine, Event, EventKind, Found, Health, Inspected, LogFrame,
    LogRequest, LogStream, NetworkNamespace, StartSlot, Status,
};
pub use credential::Credential;
pub use error::{EngineError, printable};
pub use network::{
    Endpoint, EngineNetwork, EngineResult, NetworkEngine, NetworkEvent, NetworkSpec,
    NetworkedContainer,
};
