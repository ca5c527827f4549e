//! The raft actor: the only writer of this node's replicated state.
//!
//! It runs on its own thread because its writes block on the disk. Proposals that arrive during a
//! write form the next batch (group commit): one raft step and one synced write append all of them,
//! one further write applies them, then they are answered. While earlier entries wait for a
//! majority, a small batch waits for more proposals (`batch_delay`).
//!
//! A [`RaftHandle`] outlives the actor. When the actor fails, its supervisor [`spawn()`]s another
//! with the same [`RaftArgs`], which reloads everything from the storage. Proposals in flight at
//! that time are answered as unknown, because they may have been written.
//!
//! A disk that does not answer holds the thread up. A watchdog then publishes that this node
//! neither leads nor follows the log, and reports the failure when that lasts (`watchdog`).

mod args;
mod batch_delay;
mod digest;
mod driver;
mod handle;
mod incoming;
mod logger;
mod members;
mod memory;
mod msg;
mod observe;
mod peer_receiver;
mod proposal;
mod spawn;
mod stall;
mod state_at;
mod tick_clock;
mod watchdog;

#[cfg(test)]
mod tests;

pub use args::{NoTransport, OnFatal, RaftArgs, RaftLimits, Transport};
pub use handle::{RaftHandle, ReadError};
pub use incoming::IncomingSnapshot;
pub use members::ChangeError;
pub use memory::MemoryGroup;
pub(crate) use memory::serve as serve_in_memory;
pub use observe::{Applied, Observe};
pub use peer_receiver::{InvalidMessage, PeerReceiver};
pub use spawn::{SpawnError, spawn};
pub use watchdog::Hung;
