//! Fault injection for JACO: real daemons on a real container engine.
//!
//! A [`Daemon`] is a `jacod` process in a directory of its own that a test may kill, starve and
//! restart; an [`Api`] is a client of its operator API; an [`Engine`] lists the containers that
//! really run, and a [`ContainerLog`] records all container events of the engine. A [`History`]
//! records acknowledged writes, and [`disk`] reads the database of a stopped daemon.
//! A [`SecretScanner`] finds secrets that must not appear in any output.
//!
//! Every container, network and volume made here carries the cluster's id as a label and is removed
//! by that label when the daemon is dropped.

pub mod api;
pub mod container_log;
pub mod daemon;
pub mod disk;
pub mod engine;
pub mod fill;
pub mod history;
pub mod lab;
pub mod linear;
pub mod registers;
pub mod registry;
pub mod relay;
pub mod rng;
pub mod secret_scanner;
pub mod sim;
mod size;
pub mod test_permits;
pub mod time_limits;
pub mod upstream;
pub mod wait;
pub mod workload;

pub use api::Api;
pub use container_log::ContainerLog;
pub use daemon::{Daemon, Settings};
pub use engine::{Container, Engine};
pub use history::History;
pub use lab::Lab;
pub use registers::Registers;
pub use registry::Registry;
pub use relay::Relay;
pub use rng::Rng;
pub use secret_scanner::SecretScanner;
pub use size::size;
pub use wait::until;
pub use workload::{Service, Workload};
