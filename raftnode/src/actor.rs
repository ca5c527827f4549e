//! The raft actor: the one thing that writes the replicated state of this node.
//!
//! It runs on a thread of its own, because its writes wait for the disk. Proposals that arrive
//! while one write is under way form the next one (group commit): all are appended in one raft
//! step and one synced write, applied in one further write, then answered. While a majority is
//! still to confirm entries, a few proposals wait for more (`pace`).
//!
//! A [`RaftHandle`] outlives the actor. When the actor dies, its supervisor [`spawn()`]s another
//! with the same [`RaftArgs`], which reloads everything from the storage; proposals that were
//! under way are answered as unknown, because they may have been written.

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
