//! The newest log entries, cached in memory.
//!
//! Raft reads every entry back once, right after it was written, to return it as committed.

use std::collections::VecDeque;

use raft::eraftpb::Entry;

/// Maximum of cached payload bytes.
const LIMIT: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
pub(crate) struct LogCache {
    entries: VecDeque<Entry>,
    bytes: usize,
}

impl LogCache {
    /// Returns the index of the first cached entry.
    pub(crate) fn first(&self) -> Option<u64> {
        self.entries.front().map(|entry| entry.index)
    }

    pub(crate) fn entry(&self, index: u64) -> Option<&Entry> {
        let offset = index.checked_sub(self.first()?)?;
        self.entries.get(usize::try_from(offset).ok()?)
    }

    /// Appends `new`, drops conflicting entries and evicts the oldest beyond the limit.
    pub(crate) fn append(&mut self, new: Vec<Entry>) {
        let Some(from) = new.first().map(|entry| entry.index) else {
            return;
        };
        while let Some(last) = self.entries.back().filter(|last| last.index >= from) {
            self.bytes -= size(last);
            self.entries.pop_back();
        }
        if self
            .entries
            .back()
            .is_some_and(|last| last.index + 1 != from)
        {
            self.clear();
        }
        for entry in new {
            self.bytes += size(&entry);
            self.entries.push_back(entry);
        }
        while self.bytes > LIMIT && self.entries.len() > 1 {
            if let Some(old) = self.entries.pop_front() {
                self.bytes -= size(&old);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }
}

/// Returns the size of an entry, as counted against raft's size limits.
pub(crate) fn size(entry: &Entry) -> usize {
    entry.data.len() + entry.context.len() + 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(indexes: std::ops::Range<u64>, term: u64, bytes: usize) -> Vec<Entry> {
        let entry = |index| Entry {
            index,
            term,
            data: vec![0; bytes],
            ..Entry::default()
        };
        indexes.map(entry).collect()
    }

    #[test]
    fn later_entries_replace_conflicting_ones() {
        let mut log_cache = LogCache::default();
        log_cache.append(entries(1..6, 1, 10));
        log_cache.append(entries(3..4, 2, 10));
        assert_eq!(log_cache.entry(2).unwrap().term, 1);
        assert_eq!(log_cache.entry(3).unwrap().term, 2);
        assert_eq!(log_cache.entry(4), None);
        assert_eq!(log_cache.bytes, 3 * 42);
    }

    #[test]
    fn oldest_entries_are_evicted_and_newest_stays() {
        let mut log_cache = LogCache::default();
        log_cache.append(entries(1..5, 1, LIMIT / 3));
        assert_eq!(log_cache.first(), Some(3));
        log_cache.append(entries(5..6, 1, 2 * LIMIT));
        assert_eq!(
            (log_cache.first(), log_cache.entry(5).is_some()),
            (Some(5), true)
        );
    }

    #[test]
    fn gap_empties_the_cache() {
        let mut log_cache = LogCache::default();
        log_cache.append(entries(1..3, 1, 1));
        log_cache.append(entries(9..10, 1, 1));
        assert_eq!((log_cache.entry(2), log_cache.first()), (None, Some(9)));
    }
}
