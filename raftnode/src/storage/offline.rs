//! Reads a directory that is not in use, without writing.
//!
//! Opening it like a node would create files owned by the calling user, which the node may not be
//! allowed to change later.

use std::path::Path;

use jaco_state::State;
use raft::eraftpb::{ConfState, Entry};
use rocksdb::{ColumnFamily, DB, Direction, IteratorMode};

use super::{
    Cursor, Error, Position, open, options,
    schema::{self, LOG, log_key, parse_log_key},
    watermark::Watermark,
};

/// A directory opened for reading; holds the lock of the directory.
pub(crate) struct ReadOnlyStorage {
    db: DB,
    raft_id: u64,
    cursor: Cursor,
    _lock: Watermark,
}

impl ReadOnlyStorage {
    /// Opens a directory and verifies its metadata and its log.
    ///
    /// # Errors
    /// Same as [`Storage::open`](super::Storage::open).
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        open::check_files(path)?;
        let (lock, synced) = Watermark::open_read_only(path)?;
        let db =
            DB::open_cf_descriptors_read_only(&options::database(), path, options::tables(), false)
                .map_err(|e| open::opening(path, e))?;
        let (raft_id, cursor) = open::verify(&db, synced)?;
        Ok(Self {
            db,
            raft_id,
            cursor,
            _lock: lock,
        })
    }

    /// Id of the node in the raft group.
    pub(crate) fn raft_id(&self) -> u64 {
        self.raft_id
    }

    /// Voters and learners as of the applied state.
    pub(crate) fn conf_state(&self) -> &ConfState {
        &self.cursor.conf_state
    }

    /// Index up to which the node knew its entries to be committed.
    pub(crate) fn commit(&self) -> u64 {
        self.cursor.hard_state.commit
    }

    /// Position of the last entry in the log.
    pub(crate) fn last(&self) -> Position {
        self.cursor.last
    }

    /// Returns the applied state and its position.
    ///
    /// # Errors
    /// [`Error::Corrupt`] names the first row that does not decode.
    pub(crate) fn applied(&self) -> Result<(State, Position), Error> {
        let mut state = open::read_state(&self.db, || ())?;
        let index = self.cursor.applied;
        state.applied_index = index;
        if index == self.cursor.truncated.index {
            return Ok((state, self.cursor.truncated));
        }
        let name = || format!("log entry {index}");
        let bytes = self
            .db
            .get_cf(self.log()?, log_key(index))
            .map_err(|e| Error::corrupt(name(), e))?
            .ok_or_else(|| Error::corrupt(name(), "it is missing"))?;
        let term = schema::decode_entry(index, &bytes)?.term;
        Ok((state, Position { index, term }))
    }

    /// Returns the entries after the applied index, in order.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the table is missing; an entry that cannot be read is an error too.
    pub(crate) fn unapplied(
        &self,
    ) -> Result<impl Iterator<Item = Result<Entry, Error>> + '_, Error> {
        let start = log_key(self.cursor.applied + 1);
        let from = IteratorMode::From(&start, Direction::Forward);
        let rows = self.db.iterator_cf(self.log()?, from);
        Ok(rows.map(|row| {
            let (key, value) = row.map_err(Error::Read)?;
            schema::decode_entry(parse_log_key(&key)?, &value)
        }))
    }

    fn log(&self) -> Result<&ColumnFamily, Error> {
        self.db
            .cf_handle(LOG)
            .ok_or_else(|| Error::corrupt("table log", "it is missing"))
    }
}

/// Reads the applied state of a directory that is not in use, without writing. Later entries of its
/// log are left out; see [`offline::read`](crate::offline::read).
///
/// # Errors
/// Same as [`Storage::open`](super::Storage::open).
pub fn read_offline(path: &Path) -> Result<(State, Position), Error> {
    ReadOnlyStorage::open(path)?.applied()
}
