//! Group commit delay: when to write a batch of proposals.
//!
//! A raft step costs each member a synced write and the group a round of messages, for one entry as
//! for a hundred. While earlier entries wait for a majority, a small batch therefore waits for more
//! proposals: a loaded leader writes less often, and an idle one writes at once. (Compare
//! `commit_delay` of Postgres and Nagle's algorithm of TCP.)

use std::time::{Duration, Instant};

/// Number of proposals that are written without delay.
const BATCH_PROPOSALS: usize = 128;
/// Bytes of proposals that are written without delay.
const BATCH_BYTES: usize = 64 << 10;

/// Decision about the pending proposals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchDecision {
    /// Propose them now.
    Flush,
    /// Delay them for at most this long, unless a majority answers earlier.
    Wait(Duration),
}

/// Decides how long the proposals of one node are held. Pure.
#[derive(Debug)]
pub(super) struct BatchDelay {
    longest: Duration,
    /// Time at which the pending proposals were first held.
    since: Option<Instant>,
}

impl BatchDelay {
    /// Creates a delay that holds no proposal longer than `longest`, however slow the majority is.
    pub(super) fn new(longest: Duration) -> Self {
        let since = None;
        Self { longest, since }
    }

    /// Decides about a batch of `proposals` commands and `bytes` bytes; `awaiting_majority` says
    /// whether earlier entries await a majority.
    pub(super) fn decide(
        &mut self,
        proposals: usize,
        bytes: usize,
        awaiting_majority: bool,
        now: Instant,
    ) -> BatchDecision {
        let waited = self.since.map_or(Duration::ZERO, |since| now - since);
        let left = self.longest.saturating_sub(waited);
        let few = proposals < BATCH_PROPOSALS && bytes < BATCH_BYTES;
        if proposals == 0 || !awaiting_majority || !few || left.is_zero() {
            self.since = None;
            return BatchDecision::Flush;
        }
        self.since.get_or_insert(now);
        BatchDecision::Wait(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_millis(2);

    #[test]
    fn proposals_without_pending_entries_are_written_at_once() {
        let mut batch_delay = BatchDelay::new(LONGEST);
        let now = Instant::now();
        assert_eq!(batch_delay.decide(1, 100, false, now), BatchDecision::Flush);
        assert_eq!(batch_delay.decide(0, 0, true, now), BatchDecision::Flush);
    }

    #[test]
    fn small_batch_waits_for_majority_or_limit() {
        let mut batch_delay = BatchDelay::new(LONGEST);
        let now = Instant::now();
        assert_eq!(
            batch_delay.decide(1, 100, true, now),
            BatchDecision::Wait(LONGEST)
        );
        let later = now + LONGEST / 2;
        assert_eq!(
            batch_delay.decide(2, 200, true, later),
            BatchDecision::Wait(LONGEST / 2)
        );
        assert_eq!(
            batch_delay.decide(3, 300, true, now + LONGEST),
            BatchDecision::Flush
        );
        // The next batch has a limit of its own.
        let next = batch_delay.decide(1, 100, true, now + LONGEST);
        assert_eq!(next, BatchDecision::Wait(LONGEST));
        assert_eq!(
            batch_delay.decide(1, 100, false, now + LONGEST),
            BatchDecision::Flush
        );
        let next = batch_delay.decide(1, 100, true, now + 2 * LONGEST);
        assert_eq!(next, BatchDecision::Wait(LONGEST));
    }

    #[test]
    fn large_batches_are_written_at_once() {
        let mut batch_delay = BatchDelay::new(LONGEST);
        let now = Instant::now();
        assert_eq!(
            batch_delay.decide(BATCH_PROPOSALS, 100, true, now),
            BatchDecision::Flush
        );
        assert_eq!(
            batch_delay.decide(1, BATCH_BYTES, true, now),
            BatchDecision::Flush
        );
        let mut never = BatchDelay::new(Duration::ZERO);
        assert_eq!(never.decide(1, 100, true, now), BatchDecision::Flush);
    }
}
