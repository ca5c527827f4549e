//! JACO as a library: an embeddable container orchestrator, and the supervision kit it is built
//! with.
//!
//! The daemon `jacod` is a thin wrapper around this crate. A program that embeds a [`Node`] has
//! everything the daemon has: the replicated state, the scheduler, the containers of this machine,
//! the ingress and the API. A program that only needs supervised actors can use [`supervision`]
//! alone.
//!
//! # A first program
//!
//! A directory is all a node needs. By default it opens no port and no socket (see
//! [`NodeBuilder`]); its own process operates it through [`Node::client`].
//!
//! ```no_run
//! use jaco_actors::Node;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let node = Node::builder("/var/lib/example/jaco").start().await?;
//! let client = node.client();
//! if !client.status().await?.initialized {
//!     client.init("example").await?; // once in the life of the directory
//! }
//!
//! let jaco = "deployment: hello";
//! let compose = "services: {web: {image: nginx, deploy: {replicas: 2}}}";
//! client.apply(jaco, compose).await?;
//!
//! tokio::select! {
//!     ended = node.join() => ended?, // an error that a restart cannot fix
//!     _ = tokio::signal::ctrl_c() => node.stop().await, // containers keep running
//! }
//! # Ok(())
//! # }
//! ```
//!
//! After a restart, the node finds its cluster in the directory and its containers by their labels,
//! and continues. `examples/embed.rs` watches replicas come up, prints their output and its own
//! tree, and removes everything.
//!
//! Nodes share nothing but what their configurations share, so several can run in one process. A
//! data directory belongs to one node at a time. Nodes that share an engine need address pools that
//! do not overlap ([`NodeBuilder::ipam`]).
//!
//! # Reading the state
//!
//! The replicated state is an immutable snapshot behind an `Arc`; taking one is cheap, and a
//! [`watch`](jaco_raftnode::StateReader::subscribe) channel announces newer ones.
//!
//! ```
//! use jaco_actors::{Node, raftnode::StateReader};
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # let node = Node::builder(dir.path().join("data"))
//! #     .docker_socket(dir.path().join("none"))
//! #     .hostname("one")
//! #     .start()
//! #     .await?;
//! # node.client().init("example").await?;
//! if let Some(raft) = node.raft() {
//!     let mut states = raft.subscribe();
//!     node.client().apply("deployment: hello", "services: {web: {image: nginx}}").await?;
//!     let state = states.wait_for(|state| !state.replicas_desired.is_empty()).await?.clone();
//!     assert_eq!(state.replicas_desired["hello-web-0"].host, "one");
//! }
//! # node.stop().await;
//! # Ok::<_, Box<dyn std::error::Error>>(()) })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # An actor of your own
//!
//! Each part of a node with external effects is an actor that owns one resource and may be killed
//! at any time. An actor of the embedding program can work the same way. This one owns a file and
//! restores its content, whatever else writes to it and however often the actor dies:
//!
//! ```
//! use std::{path::PathBuf, time::Duration};
//!
//! use jaco_actors::supervision::{
//!     ChildSpec, Context, Failure, KillMode, Strategy, SupervisorSpec, Tree, Worker,
//! };
//!
//! struct FileKeeper(PathBuf);
//!
//! enum Msg {
//!     Look,
//! }
//!
//! impl Worker for FileKeeper {
//!     type Msg = Msg;
//!     type Args = PathBuf; // all that a restart needs
//!     const KIND: &'static str = "FileKeeper";
//!
//!     // A start looks at the world first, so a restart is a repair.
//!     async fn start(ctx: &Context<Self>, path: PathBuf) -> Result<Self, Failure> {
//!         ctx.send_to_self(Msg::Look);
//!         Ok(Self(path))
//!     }
//!
//!     async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
//!         match msg {
//!             Msg::Look => {
//!                 // `?` ends this instance; its supervisor decides what follows.
//!                 if tokio::fs::read(&self.0).await.ok().as_deref() != Some(b"welcome".as_slice()) {
//!                     tokio::fs::write(&self.0, "welcome").await?;
//!                 }
//!                 ctx.send_after(Duration::from_millis(10), Msg::Look);
//!             }
//!         }
//!         Ok(())
//!     }
//! }
//!
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("motd");
//! let (keeper, _) = ChildSpec::worker::<FileKeeper>("keeper", path.clone());
//! let tree = Tree::start("mine", SupervisorSpec::new(Strategy::OneForOne).child(keeper)).await?;
//! # let kept = || async { while std::fs::read(&path).ok().as_deref() != Some(b"welcome".as_slice()) {
//! #     tokio::time::sleep(Duration::from_millis(1)).await;
//! # } };
//! # kept().await;
//! tree.kill("mine/keeper", KillMode::Panic)?;
//! std::fs::remove_file(&path)?;
//! # kept().await; // It is back, and so is the file.
//! tree.stop().await;
//! # Ok::<_, Box<dyn std::error::Error>>(()) })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! [`supervision`] documents strategies, restart intensities, and handles that survive restarts.
//!
//! # Crash-only rules
//!
//! The rules that let any actor die at any time, without losing an acknowledged change or
//! disturbing a healthy container:
//!
//! 1. The replicated state is the only persistent truth. It changes by commands that raft
//!    committed.
//! 2. An actor owns one external resource and reconciles it with the state.
//! 3. It holds no truth of its own: at its start it reads the state and the resource, adopts what
//!    matches and repairs the rest. Every effect is idempotent.
//! 4. It fails rather than continue with a state it does not trust. A caller's error goes into
//!    the reply instead.
//! 5. Its supervisor handles a failure; other actors do not notice, since they hold handles and
//!    retry.
//! 6. Decisions are pure functions of their inputs and the time, in `jaco-policy`, tested without
//!    the actor.
//!
//! # The parts
//!
//! - [`Node`]: one node from start to stop: builder, the API, the verticals, the tree.
//! - [`node`]: the state of a node: files, init, join, membership.
//! - [`api`]: the gRPC services, their admission, and the in-process client.
//! - [`peer`]: connections and calls to the other members.
//! - [`scheduler`]: placement of replicas, decided by `jaco-policy`.
//! - [`runtime`]: one actor per container of this machine; log tails.
//! - [`network`]: one actor per bridge; addresses.
//! - [`ingress`]: the route table and its proxy.
//! - [`serving`]: how far the data planes of the nodes have followed the state.
//! - [`secrets`]: the key that seals values of the replicated state.
//! - [`telemetry`]: metrics, and the listener that serves them.
//! - [`supervision`]: the supervision kit of all of them; usable on its own.
//! - [`engine`]: the port to the container engine.
//! - [`clock`]: wall-clock time as a dependency.
//! - [`proto`] and [`raftnode`]: the crates below this one, for programs that depend on it alone.
//! - `testing`, a feature: the gRPC API without a node behind it, and addresses, for tests.

pub mod api;
mod assembly;
pub mod clock;
mod commit;
pub mod health;
mod identity;
pub mod ingress;
mod lock;
mod log_dedup;
pub mod membership;
pub mod network;
pub mod node;
pub mod peer;
pub mod runtime;
pub mod scheduler;
pub mod secrets;
pub mod serving;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use api::Client;
pub use assembly::{ConfigError, Node, NodeBuilder, StartError};
pub use node::{MeshSettings, NodeConfig};

/// The port to the container engine.
pub use jaco_engine as engine;
/// Messages, manifests and error codes.
pub use jaco_proto as proto;
/// The replicated state.
pub use jaco_raftnode as raftnode;
/// Actors that may fail, and supervisors that restart them.
pub use jaco_supervision as supervision;
