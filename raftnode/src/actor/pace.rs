//! Group commit delay: when to write a batch of proposals.
//!
//! A raft step costs each member a synced write and the group a round of messages, for one entry as
//! for a hundred. While earlier entries wait for a majority, a small batch therefore waits for more
//! proposals: a loaded leader writes less often, and an idle one writes at once. (Compare
//! `commit_delay` of Postgres and Nagle's algorithm of TCP.)

use std::time::{Duration, Instant};

/// Number of proposals that are written without delay.
const ENOUGH: usize = 128;
/// Bytes of proposals that are written without delay.
const ENOUGH_BYTES: usize = 64 << 10;

/// Decision about the pending proposals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Propose them now.
    Go,
    /// Delay them for at most this long, unless a majority answers earlier.
    Hold(Duration),
}

/// Decides how long the proposals of one node are held. Pure.
#[derive(Debug)]
pub(super) struct Pace {
    longest: Duration,
    /// Time at which the pending proposals were first held.
    since: Option<Instant>,
}

impl Pace {
    /// Creates a pace that holds no proposal longer than `longest`, however slow the majority is.
    pub(super) fn new(longest: Duration) -> Self {
        let since = None;
        Self { longest, since }
    }

    /// Decides about a batch of `proposals` commands and `bytes` bytes; `on_the_way` says whether
    /// earlier entries await a majority.
    pub(super) fn judge(
        &mut self,
        proposals: usize,
        bytes: usize,
        on_the_way: bool,
        now: Instant,
    ) -> Verdict {
        let waited = self.since.map_or(Duration::ZERO, |since| now - since);
        let left = self.longest.saturating_sub(waited);
        let few = proposals < ENOUGH && bytes < ENOUGH_BYTES;
        if proposals == 0 || !on_the_way || !few || left.is_zero() {
            self.since = None;
            return Verdict::Go;
        }
        self.since.get_or_insert(now);
        Verdict::Hold(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_millis(2);

    #[test]
    fn proposals_without_pending_entries_are_written_at_once() {
        let mut pace = Pace::new(LONGEST);
        let now = Instant::now();
        assert_eq!(pace.judge(1, 100, false, now), Verdict::Go);
        assert_eq!(pace.judge(0, 0, true, now), Verdict::Go);
    }

    #[test]
    fn small_batch_waits_for_majority_or_limit() {
        let mut pace = Pace::new(LONGEST);
        let now = Instant::now();
        assert_eq!(pace.judge(1, 100, true, now), Verdict::Hold(LONGEST));
        let later = now + LONGEST / 2;
        assert_eq!(pace.judge(2, 200, true, later), Verdict::Hold(LONGEST / 2));
        assert_eq!(pace.judge(3, 300, true, now + LONGEST), Verdict::Go);
        // The next batch has a limit of its own.
        let next = pace.judge(1, 100, true, now + LONGEST);
        assert_eq!(next, Verdict::Hold(LONGEST));
        assert_eq!(pace.judge(1, 100, false, now + LONGEST), Verdict::Go);
        let next = pace.judge(1, 100, true, now + 2 * LONGEST);
        assert_eq!(next, Verdict::Hold(LONGEST));
    }

    #[test]
    fn large_batches_are_written_at_once() {
        let mut pace = Pace::new(LONGEST);
        let now = Instant::now();
        assert_eq!(pace.judge(ENOUGH, 100, true, now), Verdict::Go);
        assert_eq!(pace.judge(1, ENOUGH_BYTES, true, now), Verdict::Go);
        let mut never = Pace::new(Duration::ZERO);
        assert_eq!(never.judge(1, 100, true, now), Verdict::Go);
    }
}
