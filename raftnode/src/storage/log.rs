//! The log, as raft reads it.

use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard, PoisonError},
};

use jaco_state::State;
use raft::{
    GetEntriesContext, RaftState, StorageError,
    eraftpb::{Entry, Snapshot, SnapshotMetadata},
};
use rocksdb::{Direction, IteratorMode, ReadOptions};

use super::{
    Error, Storage, log_cache,
    schema::{self, LOG, log_key, parse_log_key},
};

/// Read access for raft; cloning shares the storage.
#[derive(Clone, Debug)]
pub struct LogView(pub Arc<Storage>);

impl Storage {
    /// Returns the term of the entry at `index`, which must be stored or be the last one dropped.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is neither, [`Error::Read`] if reading fails.
    pub fn term_at(&self, index: u64) -> Result<u64, Error> {
        {
            let cursor = self.cursor();
            if index == cursor.truncated.index {
                return Ok(cursor.truncated.term);
            }
            if let Some(entry) = cursor.log_cache.entry(index) {
                return Ok(entry.term);
            }
        }
        let bytes = self
            .db
            .get_pinned_cf(self.table(LOG)?, log_key(index))
            .map_err(Error::Read)?
            .ok_or_else(|| Error::corrupt(format!("log entry {index}"), "it is missing"))?;
        Ok(schema::decode_entry(index, &bytes)?.term)
    }

    /// Returns the entries `low..high`, as many as fit into `max_bytes` but at least one.
    fn range(&self, low: u64, high: u64, max_bytes: u64) -> Result<Vec<Entry>, Error> {
        let mut budget = max_bytes;
        let mut fits = |entry: &Entry| {
            let size = log_cache::size(entry) as u64;
            let fits = size <= budget;
            budget = budget.saturating_sub(size);
            fits
        };
        let mut entries = Vec::new();
        {
            let cursor = self.cursor();
            if cursor.log_cache.first().is_some_and(|first| first <= low) {
                for entry in (low..high).map_while(|index| cursor.log_cache.entry(index)) {
                    if !fits(entry) && !entries.is_empty() {
                        break;
                    }
                    entries.push(entry.clone());
                }
                return Ok(entries);
            }
        }
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(log_key(high));
        let start = log_key(low);
        let from = IteratorMode::From(&start, Direction::Forward);
        let rows = self.db.iterator_cf_opt(self.table(LOG)?, options, from);
        for (row, expected) in rows.zip(low..high) {
            let (key, value) = row.map_err(Error::Read)?;
            if parse_log_key(&key)? != expected {
                break;
            }
            let entry = schema::decode_entry(expected, &value)?;
            if !fits(&entry) && !entries.is_empty() {
                return Ok(entries);
            }
            entries.push(entry);
        }
        let next = low + entries.len() as u64;
        if next < high {
            return Err(Error::corrupt(format!("log entry {next}"), "it is missing"));
        }
        Ok(entries)
    }

    /// Returns the applied state as a raft snapshot for node `to`, without its content, which
    /// [`Storage::take_outgoing`] returns. `None` before the state machine is loaded.
    fn applied_snapshot(&self, to: u64) -> Result<Option<Snapshot>, Error> {
        let (state, conf_state) = {
            let cursor = self.cursor();
            let Some(state) = cursor.state.clone() else {
                return Ok(None);
            };
            (state, cursor.conf_state.clone())
        };
        let metadata = SnapshotMetadata {
            conf_state: Some(conf_state),
            index: state.applied_index,
            term: self.term_at(state.applied_index)?,
        };
        self.outgoing().insert(to, state);
        Ok(Some(Snapshot {
            data: Vec::new(),
            metadata: Some(metadata),
        }))
    }

    /// Takes the state of the last snapshot that raft got for node `to`, if it is the one at
    /// `index`.
    pub(crate) fn take_outgoing(&self, to: u64, index: u64) -> Option<Arc<State>> {
        let mut outgoing = self.outgoing();
        let state = outgoing.get(&to)?;
        if state.applied_index != index {
            return None;
        }
        outgoing.remove(&to)
    }

    fn outgoing(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<State>>> {
        // A panic in a change of the map can at most lose an entry.
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl raft::Storage for LogView {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let cursor = self.0.cursor();
        Ok(RaftState {
            hard_state: cursor.hard_state.clone(),
            conf_state: cursor.conf_state.clone(),
        })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let (truncated, last) = self.0.log_range();
        if low <= truncated.index {
            return Err(StorageError::Compacted.into());
        }
        if high > last.index + 1 {
            return Err(StorageError::Unavailable.into());
        }
        let max_bytes = max_size.into().unwrap_or(u64::MAX);
        reading(&self.0, self.0.range(low, high, max_bytes))
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let (truncated, last) = self.0.log_range();
        if index < truncated.index {
            return Err(StorageError::Compacted.into());
        }
        if index > last.index {
            return Err(StorageError::Unavailable.into());
        }
        if index == last.index {
            return Ok(last.term);
        }
        reading(&self.0, self.0.term_at(index))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.0.log_range().0.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.0.log_range().1.index)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        match reading(&self.0, self.0.applied_snapshot(to))? {
            Some(snapshot) if snapshot.get_metadata().index >= request_index => Ok(snapshot),
            _ => Err(StorageError::SnapshotTemporarilyUnavailable.into()),
        }
    }
}

/// Converts the result of a read for raft. raft-rs panics on an error, so the failure is recorded
/// here: the next actor finds it and ends the process instead of retrying.
fn reading<T>(storage: &Storage, result: Result<T, Error>) -> raft::Result<T> {
    storage
        .guard(result)
        .map_err(|error| StorageError::Other(Box::new(error)).into())
}
