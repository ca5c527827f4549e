//! Actors that may fail, and supervisors that decide what a failure means.
//!
//! The vocabulary is that of Erlang/OTP:
//!
//! - A **worker** ([`Worker`]) owns one thing in the outside world and has one mailbox. When an
//!   instance returns an error, panics or is killed, it is gone with all its state and tasks.
//! - A **supervisor** ([`SupervisorSpec`]) has children, workers or supervisors, and starts
//!   them again. Its [`Strategy`] says which: `one_for_one` only the failed child,
//!   `rest_for_one` also those after it, `one_for_all` all of them. Children start in order,
//!   each when the one before is up, and stop in reverse order.
//! - A **child specification** ([`ChildSpec`]) says how to start one child, and by its
//!   [`Restart`] which ends count: all (`permanent`), failures (`transient`) or none
//!   (`temporary`).
//! - The **intensity** ([`Intensity`]) is how many restarts a sliding period allows, 3 in 60
//!   seconds by default, each after a [`Backoff`]. Under `one_for_one` every child has its
//!   own; under the other strategies the children share the supervisor's. One failure more
//!   **exhausts** the child: its supervisor stops the others and fails too, which
//!   **escalates** the failure to the next supervisor up, or, with [`OnExhausted::Notify`],
//!   reports it and leaves the child down until it is revived.
//! - A **handle** ([`Handle`], [`SupervisorHandle`]) is an address that stays valid across
//!   restarts. In between it answers [`Unavailable`]; nothing is queued for an instance that
//!   does not exist yet.
//! - A **tree** ([`Tree`]) is a root supervisor and everything below. It can describe itself,
//!   make any of its actors fail, and be stopped. Names are paths within a tree, so any
//!   number of trees live in one process.
//!
//! What follows for a worker:
//!
//! - It starts by looking at the world, and repairs what it finds: a restart is a reconcile.
//! - Nothing but memory may depend on [`Worker::stop`] or `Drop` being reached: a kill skips
//!   the one, and a crash of the machine both.
//! - What takes long runs in [`Context::spawn`], and comes back as a message.
//! - Two instances of a child never overlap. The next one starts when the last one, its
//!   tasks and everything below it are gone.
//! - Dynamic children ([`SupervisorHandle::start_child`]) are not remembered by a supervisor
//!   that is itself restarted: a static child, their manager, starts them again.
//!
//! Decisions are made by a core without I/O, one per supervisor; everything else in this
//! module carries them out.
//!
//! ```
//! use std::time::Duration;
//!
//! use jaco_supervision::{
//!     ChildSpec, Context, Failure, Reply, Strategy, SupervisorSpec, Tree, Worker,
//! };
//!
//! struct Counter(u64);
//!
//! enum Msg {
//!     Add(u64),
//!     Total(Reply<u64>),
//! }
//!
//! impl Worker for Counter {
//!     type Msg = Msg;
//!     type Args = ();
//!     const KIND: &'static str = "Counter";
//!
//!     async fn start(_ctx: &Context<Self>, (): ()) -> Result<Self, Failure> {
//!         Ok(Self(0))
//!     }
//!
//!     async fn handle(&mut self, _ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
//!         match msg {
//!             Msg::Add(n) => self.0 = self.0.checked_add(n).ok_or("overflow")?,
//!             Msg::Total(reply) => reply.send(self.0),
//!         }
//!         Ok(())
//!     }
//! }
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let (spec, counter) = ChildSpec::worker::<Counter>("counter", ());
//! let tree = Tree::start("demo", SupervisorSpec::new(Strategy::OneForOne).child(spec)).await?;
//! counter.running().await;
//! counter.cast(Msg::Add(2))?;
//! assert_eq!(counter.call(Duration::from_secs(1), Msg::Total).await?, 2);
//!
//! counter.cast(Msg::Add(u64::MAX))?; // fails, is restarted, and has forgotten
//! while counter.call(Duration::from_secs(1), Msg::Total).await != Ok(0) {
//!     tokio::task::yield_now().await;
//! }
//! tree.stop().await;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

mod context;
mod core;
mod foreign;
mod gate;
mod handle;
mod report;
mod spec;
mod supervisor;
mod tally;
mod tree;
mod window;
mod worker;

pub use context::{Context, TaskHandle};
pub use handle::{CallError, Handle, Reply, Unavailable};
pub use report::{ActorInfo, ActorState, ChildReport};
pub use spec::{ChildSpec, OnExhausted, Restart, Strategy, SupervisorSpec};
pub use supervisor::{ChildError, StartChildError, SupervisorHandle};
pub use tally::KindTally;
pub use tree::{GaveUp, KillError, KillMode, StartTreeError, Tree};
pub use window::{Backoff, Intensity};
pub use worker::{Failure, Worker};

#[cfg(test)]
mod tests;
