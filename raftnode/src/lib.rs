//! The replicated state of JACO, changed only by committed commands.
//!
//! - [`state`]: the typed state; a snapshot is an `Arc` and costs O(1).
//! - [`mod@command`]: constructors and names of commands.
//! - [`fsm`]: the effect of a committed command on the state.
//! - [`event`]: changes of entities, typed and in their wire format.
//! - [`watch`]: the stream of events, with replay and bounded queues.
//! - [`propose`]: the interface to propose commands, with its errors.
//! - [`storage`]: raft's log and the state's rows on disk.
//! - [`mod@core`]: raft without I/O; [`apply`]: the state machine driven by it.
//! - [`archive`]: reads and writes backups.
//! - [`actor`]: the raft thread, and the handle to it.
//! - [`snapshot`]: transfer of the state to a node that lags far behind.
//! - [`mod@restore`]: the initial state of a restored cluster.
//! - [`registry`]: canonical keys of image registries.
//! - [`testing`]: a test double that applies proposals at once.

pub mod actor;
pub mod apply;
pub mod archive;
pub mod command;
pub mod core;
pub mod event;
pub mod fsm;
pub mod propose;
pub mod registry;
pub mod restore;
pub mod snapshot;
pub mod state;
pub mod storage;
pub mod testing;
pub mod watch;

pub use crate::core::{ChangeRefused, MemberChange, Progress, RaftStatus, Role, Writes};
pub use actor::{
    Applied, ChangeError, IncomingSnapshot, Inlet, Limits, NoTransport, Observe, RaftArgs,
    RaftHandle, ReadError, SpawnError, Transport, Unfit,
};
pub use command::{batch, command, command_name};
pub use event::{Change, Delta, EntityType, Event};
pub use propose::{Committed, Propose, ProposeError};
pub use snapshot::{OutgoingSnapshot, SnapshotRefused};
pub use state::State;
pub use storage::Storage;
pub use watch::WatchHub;
