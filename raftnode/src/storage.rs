//! Durable raft state and entities in one RocksDB directory.
//!
//! Three tables: `log` (raft entries), `meta` (hard state, conf state, applied index and the start
//! of the log) and `state` (one row per entity). An [`Update`] is one atomic write, so the entities
//! always match the applied index, and a restart applies no entry twice.
//!
//! Only the raft actor's thread writes; any thread may read.

mod error;
mod log;
mod log_cache;
mod log_size;
mod offline;
mod open;
mod options;
mod schema;
mod update;
mod watermark;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use jaco_proto::chain;
use jaco_state::State;
use raft::eraftpb::{ConfState, HardState};
use rocksdb::{ColumnFamily, DB};

pub use error::Error;
pub use log::LogView;
pub(crate) use offline::ReadOnlyStorage;
pub use offline::read_offline;
pub use open::{bootstrap, bootstrap_with_rows, create, restore};
pub use schema::Position;
pub use update::{Row, SnapshotRows, Update};

use log_cache::LogCache;
use log_size::LogSize;
use watermark::Watermark;

/// An open directory; holds the lock of the directory.
pub struct Storage {
    db: DB,
    path: PathBuf,
    raft_id: u64,
    watermark: Watermark,
    cursor: Mutex<Cursor>,
    /// States of snapshots that raft is about to send, by receiver.
    outgoing: Mutex<BTreeMap<u64, Arc<State>>>,
    failure: OnceLock<String>,
    writes: AtomicU64,
    synced_writes: AtomicU64,
    #[cfg(test)]
    fault: std::sync::atomic::AtomicBool,
    #[cfg(test)]
    hang: Mutex<Option<Hang>>,
}

/// Operation that hangs in a test, until the sender of the channel is dropped.
#[cfg(test)]
type Hang = (Operation, std::sync::mpsc::Receiver<()>);

/// Operations that a test can let hang.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Load,
    SyncedWrite,
}

/// Number of writes since the storage was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCounts {
    /// All writes.
    pub writes: u64,
    /// Writes that waited for the disk.
    pub synced: u64,
}

/// In-memory copy of the metadata of the rows on disk.
#[derive(Clone, Debug)]
struct Cursor {
    hard_state: HardState,
    conf_state: ConfState,
    truncated: Position,
    last: Position,
    applied: u64,
    log_cache: LogCache,
    log_size: LogSize,
    /// The applied state, for snapshots; set once the state machine is loaded.
    state: Option<Arc<State>>,
}

impl Storage {
    /// Opens a directory made by [`bootstrap`] or [`create`], and verifies all of it.
    ///
    /// # Errors
    /// [`Error::Locked`] while it is open elsewhere; any other error means that the directory
    /// must not be used. The directory is never re-created.
    pub fn open(path: &Path) -> Result<Arc<Self>, Error> {
        open::open(path).map(Arc::new)
    }

    /// Id of this node in the raft group.
    #[must_use]
    pub fn raft_id(&self) -> u64 {
        self.raft_id
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Index of the last applied entry.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.cursor().applied
    }

    /// Voters and learners as of the last applied entry.
    #[must_use]
    pub fn conf_state(&self) -> ConfState {
        self.cursor().conf_state.clone()
    }

    /// Term, vote and commit index of the last write.
    #[must_use]
    pub fn hard_state(&self) -> HardState {
        self.cursor().hard_state.clone()
    }

    /// Positions of the entry before the first stored one, and of the last one.
    #[must_use]
    pub fn log_range(&self) -> (Position, Position) {
        let cursor = self.cursor();
        (cursor.truncated, cursor.last)
    }

    /// Returns the index up to which to drop the log so that it holds clearly fewer than `bytes`
    /// bytes; `None` while it is within `bytes`. The entries up to it may not all be applied.
    #[must_use]
    pub fn log_excess(&self, bytes: u64) -> Option<u64> {
        self.cursor().log_size.excess(bytes)
    }

    /// Number of writes since opening; one batch of proposals costs one synced write.
    #[must_use]
    pub fn write_counts(&self) -> WriteCounts {
        WriteCounts {
            writes: self.writes.load(Ordering::Relaxed),
            synced: self.synced_writes.load(Ordering::Relaxed),
        }
    }

    /// The failure that ended this storage, if any.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Makes every later write fail as if the disk were full.
    #[cfg(test)]
    pub(crate) fn fail_writes(&self) {
        self.fault.store(true, Ordering::Relaxed);
    }

    /// Lets the next `operation` hang until the returned sender is dropped.
    #[cfg(test)]
    pub(crate) fn hang_in(&self, operation: Operation) -> std::sync::mpsc::Sender<()> {
        let (release, released) = std::sync::mpsc::channel();
        *self.hang.lock().unwrap() = Some((operation, released));
        release
    }

    #[cfg(test)]
    fn enter(&self, operation: Operation) {
        let entered = |hang: &mut Hang| hang.0 == operation;
        let hang = self.hang.lock().unwrap().take_if(entered);
        if let Some((_, released)) = hang {
            let _ = released.recv();
        }
    }

    /// Returns `result` and records a failure: no write follows it.
    fn guard<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            // The first failure is the cause; later ones follow from it.
            let _ = self.failure.set(chain(error));
        }
        result
    }

    fn cursor(&self) -> MutexGuard<'_, Cursor> {
        // The cursor is replaced in one step that cannot panic, after the write it describes, so it
        // is valid after a poisoning too.
        self.cursor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self, name: &str) -> Result<&ColumnFamily, Error> {
        self.db
            .cf_handle(name)
            .ok_or_else(|| Error::corrupt(format!("table {name}"), "it is missing"))
    }
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Storage")
            .field("path", &self.path)
            .field("raft_id", &self.raft_id)
            .finish_non_exhaustive()
    }
}
