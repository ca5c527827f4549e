//! The raft actor: the only writer of this node's replicated state.
//!
//! It runs on its own thread because its writes block on the disk. Proposals that arrive during a
//! write form the next batch (group commit): one raft step and one synced write append all of them,
//! one further write applies them, then they are answered. While earlier entries wait for a
//! majority, a small batch waits for more proposals (`pace`).
//!
//! A [`RaftHandle`] outlives the actor. When the actor fails, its supervisor [`spawn()`]s another
//! with the same [`RaftArgs`], which reloads everything from the storage. Proposals in flight at
//! that time are answered as unknown, because they may have been written.

mod args;
mod captures;
mod digest;
mod handle;
mod incoming;
mod inlet;
mod logger;
mod members;
mod memory;
mod msg;
mod observe;
mod pace;
mod shell;
mod spawn;

#[cfg(test)]
mod tests;

pub use args::{Limits, NoTransport, RaftArgs, Transport};
pub use handle::{RaftHandle, ReadError};
pub use incoming::IncomingSnapshot;
pub use inlet::{Inlet, Unfit};
pub use members::ChangeError;
pub use memory::MemoryGroup;
pub(crate) use memory::serve as serve_in_memory;
pub use observe::{Applied, Observe};
pub use spawn::{SpawnError, spawn};
