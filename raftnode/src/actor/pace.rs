//! When proposals are worth a write.
//!
//! A step costs the whole group a synced write each and a round of messages, whether it holds one
//! entry or a hundred. So while earlier entries wait for their majority, the few proposals that
//! came since wait with them, for company: a loaded leader writes less often, and an idle one at
//! once. (Postgres calls it `commit_delay`, TCP has Nagle's algorithm.)

use std::time::{Duration, Instant};

/// So many proposals are company enough.
const ENOUGH: usize = 128;
/// So many bytes of proposals are worth a write of their own.
const ENOUGH_BYTES: usize = 64 << 10;

/// What becomes of the proposals at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Propose them.
    Go,
    /// Keep them, at least for this long unless the majority answers.
    Hold(Duration),
}

/// Paces the proposals of one node. Pure.
#[derive(Debug)]
pub(super) struct Pace {
    longest: Duration,
    /// Since when proposals are held.
    since: Option<Instant>,
}

impl Pace {
    /// Nothing is held longer than `longest`, however slow the majority is.
    pub(super) fn new(longest: Duration) -> Self {
        let since = None;
        Self { longest, since }
    }

    /// What becomes of so many proposals, of so many bytes, while earlier ones are on their way to
    /// a majority or are not.
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
    fn nothing_waits_while_nothing_is_on_the_way() {
        let mut pace = Pace::new(LONGEST);
        let now = Instant::now();
        assert_eq!(pace.judge(1, 100, false, now), Verdict::Go);
        assert_eq!(pace.judge(0, 0, true, now), Verdict::Go);
    }

    #[test]
    fn few_wait_until_the_majority_answers_or_for_as_long_as_allowed() {
        let mut pace = Pace::new(LONGEST);
        let now = Instant::now();
        assert_eq!(pace.judge(1, 100, true, now), Verdict::Hold(LONGEST));
        let later = now + LONGEST / 2;
        assert_eq!(pace.judge(2, 200, true, later), Verdict::Hold(LONGEST / 2));
        assert_eq!(pace.judge(3, 300, true, now + LONGEST), Verdict::Go);
        // The next ones begin anew.
        let next = pace.judge(1, 100, true, now + LONGEST);
        assert_eq!(next, Verdict::Hold(LONGEST));
        assert_eq!(pace.judge(1, 100, false, now + LONGEST), Verdict::Go);
        let next = pace.judge(1, 100, true, now + 2 * LONGEST);
        assert_eq!(next, Verdict::Hold(LONGEST));
    }

    #[test]
    fn many_proposals_or_large_ones_do_not_wait() {
        let mut pace = Pace::new(LONGEST);
        let now = Instant::now();
        assert_eq!(pace.judge(ENOUGH, 100, true, now), Verdict::Go);
        assert_eq!(pace.judge(1, ENOUGH_BYTES, true, now), Verdict::Go);
        let mut never = Pace::new(Duration::ZERO);
        assert_eq!(never.judge(1, 100, true, now), Verdict::Go);
    }
}
