//! The replicated state of JACO, changed only by committed commands.
//!
//! The typed state and its state machine are in [`jaco_state`].
//!
//! - [`watch`]: the stream of events, with replay and bounded queues.
//! - [`propose`]: the interfaces to read the state and to propose commands, with their errors.
//! - [`storage`]: raft's log and the state's rows on disk.
//! - [`mod@core`]: raft without I/O; [`apply`]: the state machine driven by it.
//! - [`archive`]: reads and writes backups; [`offline`]: the state of a stopped node.
//! - [`actor`]: the raft thread, and the handle to it.
//! - [`snapshot`]: transfer of the state to a node that lags far behind.
//! - [`testing`]: a test double that applies proposals at once.

pub mod actor;
pub mod apply;
pub mod archive;
pub mod core;
pub mod offline;
pub mod propose;
pub mod snapshot;
pub mod storage;
pub mod testing;
pub mod watch;

#[cfg(test)]
mod test_entries;

pub use crate::core::{ChangeRefused, MemberChange, Progress, RaftStatus, Role, Writes};
pub use actor::{
    Applied, ChangeError, Hung, IncomingSnapshot, InvalidMessage, NoTransport, Observe, OnFatal,
    PeerReceiver, RaftArgs, RaftHandle, RaftLimits, ReadError, SpawnError, Transport,
};
pub use jaco_state::{Change, Delta, EntityType, Event, State, batch, command, command_name};
pub use propose::{
    Committed, ForwardingProposer, LeaderProposer, ProposalGuard, ProposeError, StateReader,
};
pub use snapshot::{OutgoingSnapshot, SnapshotContent, SnapshotRefused, SnapshotReport};
pub use storage::Storage;
pub use watch::WatchHub;
