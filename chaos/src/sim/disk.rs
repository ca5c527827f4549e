//! A disk with a page cache: written records, the synced part of them, and what survives a crash.
//!
//! It stores the same batches as the production storage. A batch is a record of a log: a power cut
//! keeps a prefix of the unsynced records, and a half-written record fails its checksum at recovery
//! and is dropped with everything after it.

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    sync::Arc,
};

use jaco_raftnode::storage::Row;
use jaco_state::{LoadError, State};
use raft::{
    GetEntriesContext, RaftState, StorageError,
    eraftpb::{ConfState, Entry, HardState, Snapshot, SnapshotMetadata},
};

use crate::Rng;

/// One atomic write.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    /// Position and rows of a received snapshot, which replace everything.
    pub(super) install: Option<(SnapshotMetadata, Vec<Row>)>,
    pub(super) entries: Vec<Entry>,
    pub(super) hard_state: Option<HardState>,
    pub(super) conf_state: Option<ConfState>,
    pub(super) rows: Vec<Row>,
    pub(super) applied: Option<u64>,
    pub(super) compact: Option<u64>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.install.is_none()
            && self.entries.is_empty()
            && self.hard_state.is_none()
            && self.conf_state.is_none()
            && self.rows.is_empty()
            && self.applied.is_none()
            && self.compact.is_none()
    }

    /// The first `parts` of the batch's seven parts, as a recovery without checksums would read a
    /// torn batch.
    fn torn(mut self, parts: u64) -> Self {
        let drop = |part: u64| parts <= part;
        if drop(1) {
            self.entries.clear();
        }
        if drop(2) {
            self.hard_state = None;
        }
        if drop(3) {
            self.conf_state = None;
        }
        if drop(4) {
            self.applied = None;
        }
        if drop(5) {
            self.rows.clear();
        }
        if drop(6) {
            self.compact = None;
        }
        self
    }
}

/// Logical content of a disk, as recovery would read it.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) hard_state: HardState,
    pub(super) conf_state: ConfState,
    /// Index and term of the entry before the first.
    pub(super) truncated: (u64, u64),
    pub(super) entries: VecDeque<Entry>,
    pub(super) applied: u64,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Content {
    /// Index and term of the last entry.
    pub(super) fn last(&self) -> (u64, u64) {
        let last = self.entries.back();
        last.map_or(self.truncated, |e| (e.index, e.term))
    }

    pub(super) fn entry(&self, index: u64) -> Option<&Entry> {
        let offset = index.checked_sub(self.truncated.0 + 1)?;
        self.entries.get(usize::try_from(offset).ok()?)
    }

    pub(super) fn term(&self, index: u64) -> Option<u64> {
        if index == self.truncated.0 {
            return Some(self.truncated.1);
        }
        self.entry(index).map(|entry| entry.term)
    }

    fn apply(&mut self, batch: &Batch) -> Result<(), String> {
        if let Some((metadata, rows)) = &batch.install {
            self.truncated = (metadata.index, metadata.term);
            self.applied = metadata.index;
            self.entries.clear();
            self.conf_state = metadata.conf_state.clone().unwrap_or_default();
            self.rows.clear();
            self.put(rows);
        }
        if let Some(first) = batch.entries.first() {
            let last = self.last().0;
            if first.index <= self.truncated.0 || first.index > last + 1 {
                let from = self.truncated.0;
                return Err(format!(
                    "append at {} does not continue {from}..={last}",
                    first.index
                ));
            }
            let kept = first.index - self.truncated.0 - 1;
            self.entries
                .truncate(usize::try_from(kept).unwrap_or(usize::MAX));
            self.entries.extend(batch.entries.iter().cloned());
        }
        if let Some(hard_state) = &batch.hard_state {
            self.hard_state = hard_state.clone();
        }
        if let Some(conf_state) = &batch.conf_state {
            self.conf_state = conf_state.clone();
        }
        self.put(&batch.rows);
        if let Some(applied) = batch.applied {
            self.applied = applied;
        }
        if let Some(index) = batch.compact.filter(|at| *at > self.truncated.0) {
            let term = self.term(index);
            let term = term.ok_or_else(|| format!("compacted beyond the log, to {index}"))?;
            self.entries.retain(|entry| entry.index > index);
            self.truncated = (index, term);
        }
        Ok(())
    }

    fn put(&mut self, rows: &[Row]) {
        for row in rows {
            match &row.value {
                Some(value) => self.rows.insert(row.key.clone(), value.clone()),
                None => self.rows.remove(&row.key),
            };
        }
    }

    /// The state that the rows hold.
    pub(super) fn load(&self) -> Result<State, LoadError> {
        let rows = self.rows.iter().map(|(k, v)| (k.clone(), v.clone()));
        let mut state = jaco_state::load(rows)?;
        state.applied_index = self.applied;
        Ok(state)
    }
}

#[derive(Clone, Debug)]
struct Record {
    batch: Rc<Batch>,
    /// Whether the operating system has the record; only such records survive the process.
    written: bool,
}

/// The disk of one machine.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// Content as the process sees it.
    current: Content,
    /// Content that a power cut leaves at the least.
    synced: Content,
    /// Records by which `current` is ahead of `synced`.
    records: Vec<Record>,
    /// Batch handed to the operating system whose write has not finished.
    in_flight: Option<Batch>,
    /// The applied state, for snapshots.
    pub(super) state: Option<Arc<State>>,
}

/// Way in which a daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crash {
    /// The process dies; the machine keeps running.
    Kill,
    /// The machine loses its power.
    PowerCut,
}

impl Disk {
    /// A disk that holds a bootstrapped cluster: everything as of index 1, term 1.
    pub(super) fn bootstrapped(state: &State, conf_state: ConfState) -> Self {
        let rows = state.rows().map(|(key, value)| Row {
            key,
            value: Some(value),
        });
        let mut content = Content {
            truncated: (1, 1),
            applied: 1,
            conf_state,
            ..Content::default()
        };
        (content.hard_state.term, content.hard_state.commit) = (1, 1);
        content.put(&rows.collect::<Vec<_>>());
        Self {
            current: content.clone(),
            synced: content,
            ..Self::default()
        }
    }

    pub(super) fn current(&self) -> &Content {
        &self.current
    }

    pub(super) fn synced(&self) -> &Content {
        &self.synced
    }

    /// Begins a write.
    pub(super) fn begin(&mut self, batch: Batch) {
        self.in_flight = Some(batch);
    }

    /// Finishes the write that was begun.
    pub(super) fn finish(&mut self, sync: bool) -> Result<(), String> {
        match self.in_flight.take() {
            Some(batch) => self.write(batch, sync),
            None => Ok(()),
        }
    }

    /// Writes a batch at once.
    pub(super) fn write(&mut self, batch: Batch, sync: bool) -> Result<(), String> {
        self.current.apply(&batch)?;
        self.records.push(Record {
            batch: Rc::new(batch),
            written: true,
        });
        if sync { self.sync() } else { Ok(()) }
    }

    /// Buffers a write that reaches the operating system only with [`Disk::flush`].
    pub(super) fn write_behind(&mut self, batch: Batch) -> Result<(), String> {
        self.current.apply(&batch)?;
        self.records.push(Record {
            batch: Rc::new(batch),
            written: false,
        });
        Ok(())
    }

    /// Writes and syncs all buffered records.
    pub(super) fn flush(&mut self) -> Result<(), String> {
        for record in &mut self.records {
            record.written = true;
        }
        self.sync()
    }

    /// Opens the database after its process died: its log is moved into tables, which are synced
    /// before any read.
    pub(super) fn recover(&mut self) -> Result<(), String> {
        self.sync()
    }

    /// Syncs the records that the operating system has.
    fn sync(&mut self) -> Result<(), String> {
        let mut behind = Vec::new();
        for record in std::mem::take(&mut self.records) {
            if record.written {
                self.synced.apply(&record.batch)?;
            } else {
                behind.push(record);
            }
        }
        self.records = behind;
        Ok(())
    }

    /// Reduces the disk to what the crash leaves. `checked` is whether recovery detects a torn
    /// record.
    pub(super) fn crash(
        &mut self,
        crash: Crash,
        chance: &mut Rng,
        checked: bool,
    ) -> Result<(), String> {
        let mut left: Vec<Record> = std::mem::take(&mut self.records);
        left.retain(|record| record.written);
        let in_flight = self.in_flight.take().filter(|_| chance.within(0..2) == 0);
        left.extend(in_flight.map(|batch| Record {
            batch: Rc::new(batch),
            written: true,
        }));
        if crash == Crash::PowerCut {
            let kept = chance.within(0..left.len() as u64 + 1);
            let torn = left.get(usize::try_from(kept).unwrap_or(0)).cloned();
            left.truncate(usize::try_from(kept).unwrap_or(0));
            let parts = chance.within(0..8);
            if let (false, Some(torn)) = (checked, torn) {
                left.push(Record {
                    batch: Rc::new(Batch::clone(&torn.batch).torn(parts)),
                    written: true,
                });
            }
        }
        self.current = self.synced.clone();
        for record in &left {
            self.current.apply(&record.batch)?;
        }
        match crash {
            // Recovery writes the recovered content to a new place, and syncs it.
            Crash::PowerCut => self.synced = self.current.clone(),
            Crash::Kill => self.records = left,
        }
        self.state = None;
        Ok(())
    }
}

/// The disk as raft reads it.
#[derive(Clone, Debug)]
pub(super) struct View(pub(super) Rc<RefCell<Disk>>);

impl raft::Storage for View {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let disk = self.0.borrow();
        Ok(RaftState {
            hard_state: disk.current.hard_state.clone(),
            conf_state: disk.current.conf_state.clone(),
        })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let content = &self.0.borrow().current;
        if low <= content.truncated.0 {
            return Err(StorageError::Compacted.into());
        }
        let entries = (low..high).map(|index| content.entry(index).cloned());
        let entries: Option<Vec<Entry>> = entries.collect();
        let mut entries = entries.ok_or(StorageError::Unavailable)?;
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let content = &self.0.borrow().current;
        if index < content.truncated.0 {
            return Err(StorageError::Compacted.into());
        }
        content
            .term(index)
            .ok_or_else(|| StorageError::Unavailable.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.0.borrow().current.truncated.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.0.borrow().current.last().0)
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let disk = self.0.borrow();
        let unavailable = StorageError::SnapshotTemporarilyUnavailable;
        let Some(state) = disk.state.as_ref() else {
            return Err(unavailable.into());
        };
        let index = state.applied_index;
        match disk.current.term(index) {
            Some(term) if index >= request_index => Ok(Snapshot {
                data: state.encode_snapshot(),
                metadata: Some(SnapshotMetadata {
                    conf_state: Some(disk.current.conf_state.clone()),
                    index,
                    term,
                }),
            }),
            _ => Err(unavailable.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64) -> Batch {
        Batch {
            entries: vec![Entry {
                index,
                term: 1,
                ..Entry::default()
            }],
            ..Batch::default()
        }
    }

    fn last_after(crash: Crash, seed: u64) -> u64 {
        let mut disk = Disk::default();
        disk.write(entry(1), true).unwrap();
        disk.write(entry(2), false).unwrap();
        disk.begin(entry(3));
        disk.crash(crash, &mut Rng::new(seed), true).unwrap();
        disk.current().last().0
    }

    #[test]
    fn power_cut_keeps_a_prefix_of_unsynced_writes() {
        let lasts: Vec<u64> = (0..64).map(|s| last_after(Crash::PowerCut, s)).collect();
        assert!(lasts.iter().all(|last| (1..=3).contains(last)));
        for last in 1..=3 {
            assert!(lasts.contains(&last), "never {last}");
        }
    }

    #[test]
    fn finished_writes_survive_process_death() {
        let lasts: Vec<u64> = (0..64).map(|s| last_after(Crash::Kill, s)).collect();
        assert!(lasts.iter().all(|last| (2..=3).contains(last)));
        assert!(lasts.contains(&2) && lasts.contains(&3));
    }

    #[test]
    fn unsynced_writes_stay_unsynced_until_recovery() {
        let mut disk = Disk::default();
        disk.write(entry(1), false).unwrap();
        disk.crash(Crash::Kill, &mut Rng::new(1), true).unwrap();
        assert_eq!((disk.current().last().0, disk.synced().last().0), (1, 0));
        disk.recover().unwrap();
        assert_eq!(disk.synced().last().0, 1, "synced at the next start");
    }
}
