//! Atomic writes. Every write to an open storage goes through [`Storage::write`].

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use jaco_state::{State, fsm::Mutation};
use raft::eraftpb::{ConfState, Entry, HardState, SnapshotMetadata};
use rocksdb::WriteBatch;

use super::{
    Cursor, Error, LogSize, Storage, options,
    schema::{
        self, KEY_APPLIED, KEY_CONF_STATE, KEY_HARD_STATE, KEY_TRUNCATED, LOG, META, Position,
        STATE, log_key,
    },
};

/// One entity row of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Key, encoded by the state machine.
    pub key: Vec<u8>,
    /// New value; `None` deletes.
    pub value: Option<Vec<u8>>,
}

impl From<Mutation> for Row {
    fn from(mutation: Mutation) -> Self {
        Self {
            key: mutation.key,
            value: mutation.value,
        }
    }
}

/// All rows of a received snapshot, prepared as one write batch.
pub struct SnapshotRows(WriteBatch);

impl SnapshotRows {
    /// Size of the rows in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.size_in_bytes() as u64
    }
}

impl fmt::Debug for SnapshotRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotRows")
            .field("rows", &self.0.len())
            .finish()
    }
}

/// A change of the storage; written atomically.
#[derive(Debug, Default)]
pub struct Update {
    /// Position and configuration of a received snapshot, and its rows. Log and entities are
    /// deleted first; `state` must be the snapshot's content.
    pub install: Option<(SnapshotMetadata, SnapshotRows)>,
    /// Entries to append; they replace stored entries at and after their first index.
    pub entries: Vec<Entry>,
    /// Term, vote and commit index.
    pub hard_state: Option<HardState>,
    /// Voters and learners as of the applied index of `state`.
    pub conf_state: Option<ConfState>,
    /// Entity rows, in the order they were changed.
    pub rows: Vec<Row>,
    /// State after `rows`; its `applied_index` is written with them.
    pub state: Option<Arc<State>>,
    /// Drops entries up to and including this index, which must be applied.
    pub compact: Option<u64>,
    /// Whether the write must be on disk before it returns.
    pub sync: bool,
}

impl Update {
    /// Whether the update has no content.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.install.is_none()
            && self.entries.is_empty()
            && self.hard_state.is_none()
            && self.conf_state.is_none()
            && self.rows.is_empty()
            && self.state.is_none()
            && self.compact.is_none()
    }
}

impl Storage {
    /// Writes `update` atomically; an empty one is a no-op.
    ///
    /// An unsynced update survives a crash of the process but not a power cut; the next synced
    /// write makes it durable.
    ///
    /// # Errors
    /// Any error ends the storage: it is unknown whether the write is on disk, and every later call
    /// fails.
    pub fn write(&self, update: Update) -> Result<(), Error> {
        if update.is_empty() {
            return Ok(());
        }
        if let Some(failure) = self.failure() {
            return Err(Error::Failed(failure.to_owned()));
        }
        self.guard(self.write_through(update))
    }

    fn write_through(&self, mut update: Update) -> Result<(), Error> {
        let sync = update.sync;
        let mut cursor = self.cursor().clone_without_caches();
        let install = update.install.take();
        let installed = install.is_some();
        let batch = self.plan(&update, install, &mut cursor)?;
        #[cfg(test)]
        if self.fault.load(Ordering::Relaxed) {
            return Err(Error::io("write", std::io::ErrorKind::StorageFull.into()));
        }
        #[cfg(test)]
        if sync {
            self.enter(super::Operation::SyncedWrite);
        }
        self.db
            .write_opt(batch, &options::write(sync))
            .map_err(Error::Write)?;
        self.writes.fetch_add(1, Ordering::Relaxed);
        if sync {
            self.synced_writes.fetch_add(1, Ordering::Relaxed);
            self.watermark.raise(self.db.latest_sequence_number())?;
        }
        self.commit_cursor(update, installed, cursor);
        Ok(())
    }

    /// Prepares the rows of `state`, which was received as a snapshot, so that the writing thread
    /// does not have to. Any thread may call this.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a table is missing.
    pub fn prepare(&self, state: &State) -> Result<SnapshotRows, Error> {
        let table = self.table(STATE)?;
        let mut batch = WriteBatch::default();
        // Entity keys start with a small tag byte; 0xff sorts after all of them.
        batch.delete_range_cf(table, &[][..], &[0xff][..]);
        for (key, value) in state.rows() {
            batch.put_cf(table, key, value);
        }
        Ok(SnapshotRows(batch))
    }

    /// Translates `update` into rows, and advances `cursor` to its value after them.
    fn plan(
        &self,
        update: &Update,
        install: Option<(SnapshotMetadata, SnapshotRows)>,
        cursor: &mut Cursor,
    ) -> Result<WriteBatch, Error> {
        let (log, meta, state) = (self.table(LOG)?, self.table(META)?, self.table(STATE)?);
        let mut batch = WriteBatch::default();
        if let Some((snapshot, rows)) = install {
            batch = rows.0;
            let position = Position {
                index: snapshot.index,
                term: snapshot.term,
            };
            batch.delete_range_cf(log, log_key(0), log_key(u64::MAX));
            batch.put_cf(meta, KEY_TRUNCATED, position.encode());
            (cursor.truncated, cursor.last) = (position, position);
            cursor.conf_state = snapshot.conf_state.unwrap_or_default();
            let conf_state = schema::encode_conf_state(&cursor.conf_state)?;
            batch.put_cf(meta, KEY_CONF_STATE, conf_state);
        }
        if let (Some(first), Some(last)) = (update.entries.first(), update.entries.last()) {
            if first.index <= cursor.truncated.index || first.index > cursor.last.index + 1 {
                let reason = format!(
                    "append at {} does not continue {}..={}",
                    first.index, cursor.truncated.index, cursor.last.index
                );
                return Err(Error::corrupt("log", reason));
            }
            if last.index < cursor.last.index {
                let beyond = (log_key(last.index + 1), log_key(cursor.last.index + 1));
                batch.delete_range_cf(log, beyond.0, beyond.1);
            }
            for entry in &update.entries {
                batch.put_cf(log, log_key(entry.index), schema::encode_entry(entry)?);
            }
            cursor.last = Position {
                index: last.index,
                term: last.term,
            };
        }
        if let Some(hard_state) = &update.hard_state {
            batch.put_cf(meta, KEY_HARD_STATE, schema::encode_hard_state(hard_state)?);
            cursor.hard_state = hard_state.clone();
        }
        if let Some(conf_state) = &update.conf_state {
            batch.put_cf(meta, KEY_CONF_STATE, schema::encode_conf_state(conf_state)?);
            cursor.conf_state = conf_state.clone();
        }
        for row in &update.rows {
            match &row.value {
                Some(value) => batch.put_cf(state, &row.key, value),
                None => batch.delete_cf(state, &row.key),
            }
        }
        if let Some(new) = &update.state {
            batch.put_cf(meta, KEY_APPLIED, new.applied_index.to_be_bytes());
            cursor.applied = new.applied_index;
        }
        if let Some(index) = update.compact.filter(|&at| at > cursor.truncated.index) {
            let position = Position {
                index,
                term: self.term_at(index)?,
            };
            batch.delete_range_cf(log, log_key(0), log_key(index + 1));
            batch.put_cf(meta, KEY_TRUNCATED, position.encode());
            cursor.truncated = position;
        }
        Ok(batch)
    }

    fn commit_cursor(&self, update: Update, installed: bool, new: Cursor) {
        let mut cursor = self.cursor();
        let mut log_cache = std::mem::take(&mut cursor.log_cache);
        let mut log_size = std::mem::take(&mut cursor.log_size);
        if installed {
            log_cache.clear();
            log_size = LogSize::default();
        }
        log_size.append(&update.entries);
        log_size.drop_to(new.truncated.index);
        log_cache.append(update.entries);
        *cursor = Cursor {
            log_cache,
            log_size,
            state: update.state.or_else(|| cursor.state.take()),
            ..new
        };
    }
}

impl Cursor {
    fn clone_without_caches(&self) -> Self {
        Self {
            hard_state: self.hard_state.clone(),
            conf_state: self.conf_state.clone(),
            truncated: self.truncated,
            last: self.last,
            applied: self.applied,
            log_cache: super::LogCache::default(),
            log_size: LogSize::default(),
            state: None,
        }
    }
}
