//! Supervision.
mod context;
mod core;
mod foreign;
mod gate;
mod handle;
mod report;
mod spec;
mod supervisor;
mod tree;
mod window;
mod worker;

pub use context::{Context, TaskHandle};
pub use handle::{CallError, Handle, Reply, Unavailable};
pub use report::{ActorInfo, ActorState, ChildReport};
pub use spec::{ChildSpec, OnExhausted, Restart, Strategy, SupervisorSpec};
pub use supervisor::{ChildError, StartChildError, SupervisorHandle};
pub use tree::{GaveUp, KillError, KillMode, StartTreeError, Tree};
pub use window::{Backoff, Intensity};
pub use worker::{Failure, Worker};
