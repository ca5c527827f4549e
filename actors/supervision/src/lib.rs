//! Supervision of actors, in the terms of Erlang/OTP:
//!
//! - A **worker** ([`Worker`]) owns one resource and has one mailbox. When an instance returns an
//!   error, panics or is killed, its state and tasks are dropped.
//! - A **supervisor** ([`SupervisorSpec`]) starts and restarts its children, which are workers or
//!   supervisors. Its [`Strategy`] decides which children restart after a failure: `one_for_one`
//!   only the failed child, `rest_for_one` also those after it, `one_for_all` all of them. Children
//!   start in order, each once the one before is running, and stop in reverse order.
//! - A **child specification** ([`ChildSpec`]) describes how to start one child; its [`Restart`]
//!   type decides which ends lead to a restart: all (`permanent`), failures (`transient`) or none
//!   (`temporary`).
//! - The **intensity** ([`Intensity`]) is the number of restarts allowed in a sliding period, by
//!   default 3 in 60 seconds, each after a [`Backoff`]. Under `one_for_one` every child has its own
//!   limit; under the other strategies the children share the supervisor's. One failure more
//!   **exhausts** the child: its supervisor stops the others and fails too, which **escalates** the
//!   failure to the next supervisor up, or, with [`OnExhausted::Notify`], reports the failure and
//!   leaves the child down until it is revived.
//! - A **handle** ([`Handle`], [`SupervisorHandle`]) is an address that stays valid across
//!   restarts. Without a running instance it returns [`Unavailable`]; no message is queued for a
//!   later instance.
//! - A **tree** ([`Tree`]) is a root supervisor and everything below. It can be described and
//!   stopped, and any of its actors can be made to fail. Names are paths within a tree, so any
//!   number of trees can run in one process.
//!
//! Consequences for a worker:
//!
//! - It starts from the present state of its resource and repairs it: a restart is a
//!   reconciliation.
//! - Nothing but memory may depend on [`Worker::stop`] or `Drop`: a kill skips the former, a crash
//!   of the machine both.
//! - Slow work runs in [`Context::spawn`], and its result arrives as a message. So do the changes
//!   of a watch channel ([`Context::watch`]) and the worker's one deadline
//!   ([`Context::set_deadline`]).
//! - Two instances of a child never overlap. The next one starts when the last one, its tasks and
//!   everything below it have ended.
//! - Dynamic children ([`SupervisorHandle::start_child`]) are lost when their supervisor is
//!   restarted: a static child, their manager, starts them again. [`KeyedChildren`] is such a
//!   manager's set of children; a manager must not wait for the end of a child.
//!
//! Each supervisor has a core without I/O that makes its decisions; the rest of this module carries
//! them out.
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
//! counter.cast(Msg::Add(u64::MAX))?; // fails; the restart resets the total
//! while counter.call(Duration::from_secs(1), Msg::Total).await != Ok(0) {
//!     tokio::task::yield_now().await;
//! }
//! tree.stop().await;
//! # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
//! ```

mod children;
mod context;
mod core;
mod deadline;
mod external;
mod handle;
mod instance_lock;
mod report;
mod restart_stats;
mod spec;
mod supervisor;
mod tree;
mod watch;
mod window;
mod worker;

pub use children::{ChildDone, ChildEvent, KeyedChildren};
pub use context::{Context, TaskHandle};
pub use handle::{CallError, Handle, Reply, Unavailable};
pub use report::{ActorInfo, ActorState, ChildReport};
pub use restart_stats::KindRestarts;
pub use spec::{ChildSpec, OnExhausted, Restart, Strategy, SupervisorSpec};
pub use supervisor::{ChildError, StartChildError, SupervisorHandle};
pub use tree::{GaveUp, KillError, KillMode, StartTreeError, Tree};
pub use window::{Backoff, Intensity};
pub use worker::{Failure, Worker};

#[cfg(test)]
mod tests;
