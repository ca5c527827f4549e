//! JACO as a library: the supervision kit, every vertical's actors and the embedding API.
//!
//! The daemon `jacod` is a thin shell around this crate. A program that wants the orchestrator
//! inside starts a [`node::Node`] and gets everything the daemon has: the replicated state, the
//! scheduler, the containers of this machine, the ingress, and the gRPC API on a unix socket
//! and over TLS.
//!
//! ```no_run
//! use jaco_actors::Node;
//! use jaco_raftnode::Propose;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let node = Node::builder("/var/lib/example/jaco").start().await?;
//!
//! if let Some(raft) = node.raft() {
//!     for deployment in raft.state().deployments.values() {
//!         println!("{} is at revision {}", deployment.name, deployment.applied_revision);
//!     }
//! }
//! node.stop().await; // containers keep running
//! # Ok(())
//! # }
//! ```
//!
//! Nodes share nothing but what their configurations share, so several can run in one process.
//! A data directory belongs to one of them at a time.
//!
//! # The parts
//!
//! - [`node`]: one node from start to stop: files, init, the tree.
//! - [`api`]: the gRPC services and who may call them.
//! - [`scheduler`]: which replica runs where, as a pure function of the state.
//! - [`runtime`]: one actor per container of this machine.
//! - [`network`]: one actor per bridge; addresses.
//! - [`ingress`]: the route table and its proxy.
//! - [`telemetry`]: what is counted, and the listener that shows it.
//! - [`supervision`]: the kit all of them are built with; usable on its own.
//! - [`labels`]: how containers and networks are found again.
//! - [`clock`]: wall-clock time as a dependency.
//! - [`testing`]: the gRPC API without a node behind it, for tests.
//!
//! An actor holds no truth: it looks at the replicated state and at the world when it starts,
//! and drives one to the other. Any of them can be killed at any moment; its supervisor starts
//! it again, nothing acknowledged is lost and no healthy container is disturbed.

pub mod api;
pub mod clock;
mod commit;
mod docker;
pub mod ingress;
pub mod labels;
pub mod network;
pub mod node;
mod repeat;
pub mod runtime;
pub mod scheduler;
pub mod supervision;
pub mod telemetry;
pub mod testing;

pub use api::Client;
pub use node::{ConfigError, Node, NodeBuilder, NodeConfig, StartError};
