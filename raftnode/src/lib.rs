//! The replicated state of JACO: one truth, changed only by committed commands.
//!
//! - [`state`]: the typed state; a snapshot is an `Arc` and costs O(1).
//! - [`mod@command`]: how commands are built and named.
//! - [`fsm`]: what a committed command does to the state.
//! - [`event`]: what changed, typed, and as it is streamed to clients.
//! - [`watch`]: the stream of events, with replay and bounded queues.
//! - [`propose`]: how a change is asked for, and how it can fail.
//! - [`storage`]: raft's log and the state's rows on disk.
//! - [`mod@core`]: raft without I/O; [`apply`]: the state machine driven by it.
//! - [`archive`]: backups, written and read.
//! - [`actor`]: the thread that ties them together, and the handle everybody holds.
//! - [`snapshot`]: the state on its way to a node that lags far behind.
//! - [`mod@restore`]: what of a state lives on in a restored cluster.
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
