//! Size of the log in bytes, and how much of its start to drop to stay below a limit.

use std::collections::VecDeque;

use raft::eraftpb::Entry;

use super::log_cache;

/// Sizes of the stored entries, by index.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogSize {
    /// Index of the first stored entry.
    first: u64,
    sizes: VecDeque<u32>,
    total: u64,
}

impl LogSize {
    /// Appends `new`, which must follow without a gap, in place of conflicting entries.
    pub(crate) fn append(&mut self, new: &[Entry]) {
        let Some(from) = new.first().map(|entry| entry.index) else {
            return;
        };
        if self.sizes.is_empty() {
            self.first = from;
        }
        while self.first + self.sizes.len() as u64 > from {
            let Some(size) = self.sizes.pop_back() else {
                break;
            };
            self.total -= u64::from(size);
        }
        for entry in new {
            let size = u32::try_from(log_cache::size(entry)).unwrap_or(u32::MAX);
            self.sizes.push_back(size);
            self.total += u64::from(size);
        }
    }

    /// Removes the entries up to and including `index`.
    pub(crate) fn drop_to(&mut self, index: u64) {
        while self.first <= index {
            let Some(size) = self.sizes.pop_front() else {
                break;
            };
            self.total -= u64::from(size);
            self.first += 1;
        }
    }

    /// Returns the index up to which to drop entries so that the log fits into `limit` bytes:
    /// `None` while it fits, and with a margin of an eighth so that the next entry does not trigger
    /// it again.
    pub(crate) fn excess(&self, limit: u64) -> Option<u64> {
        if self.total <= limit {
            return None;
        }
        let wanted = limit - limit / 8;
        let mut left = self.total;
        let over = self.sizes.iter().take_while(|size| {
            let over = left > wanted;
            left -= u64::from(**size);
            over
        });
        Some(self.first + over.count() as u64 - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(index: u64, bytes: usize) -> Entry {
        Entry {
            index,
            data: vec![0; bytes],
            ..Entry::default()
        }
    }

    proptest! {
        /// Compares with a model that keeps every entry and sums the sizes anew.
        #[test]
        fn log_size_is_sum_of_stored_entries(
            steps in prop::collection::vec((0..4u64, 0..6u64, 0..200usize), 1..60), limit in 0..2000u64
        ) {
            let (mut log_size, mut kept, mut dropped) = (LogSize::default(), Vec::<Entry>::new(), 10);
            for (back, many, bytes) in steps {
                if back == 3 {
                    dropped = kept.get(many as usize).map_or(dropped, |entry| entry.index);
                    kept.retain(|entry| entry.index > dropped);
                    log_size.drop_to(dropped);
                } else {
                    let next = kept.last().map_or(dropped, |entry| entry.index) + 1;
                    let from = next.saturating_sub(back).max(dropped + 1);
                    let new: Vec<_> = (from..from + many).map(|at| entry(at, bytes)).collect();
                    if !new.is_empty() {
                        kept.retain(|entry| entry.index < from);
                    }
                    log_size.append(&new);
                    kept.extend(new);
                }
                let sum = |over: u64| -> u64 {
                    let rest = kept.iter().filter(|entry| entry.index > over);
                    rest.map(|entry| log_cache::size(entry) as u64).sum()
                };
                prop_assert_eq!(log_size.total, sum(0));
                match log_size.excess(limit) {
                    None => prop_assert!(sum(0) <= limit),
                    Some(index) => {
                        let wanted = limit - limit / 8;
                        prop_assert!(sum(0) > limit && sum(index) <= wanted);
                        prop_assert!(sum(index - 1) > wanted, "too many entries dropped");
                    }
                }
            }
        }
    }
}
