//! Timing of the scheduler's passes.
//!
//! Changes are debounced because they arrive in bursts, but never delayed for long; a failed pass
//! is retried with exponential backoff; and only one pass is in flight at a time. After a pass
//! begins, [`Pace::deadline`] lies in the future or is `None`, so a driver that sleeps until then
//! never spins.

use std::time::{Duration, Instant};

/// Quiet time after the last change before a pass begins.
pub const QUIET: Duration = Duration::from_millis(50);
/// Longest delay of a pass by further changes.
pub const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// Interval of passes while nothing changes.
pub const SAFETY_TICK: Duration = Duration::from_secs(30);
/// First delay after a failed pass; doubles up to [`SAFETY_TICK`].
pub const FIRST_RETRY: Duration = Duration::from_millis(250);

/// Time during which a proposal with an unknown outcome may still commit. A pass before that would
/// issue the same replicas again.
pub const COMMIT_BUDGET: Duration = Duration::from_secs(5);

/// Outcome of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The batch is applied to the local state.
    Done,
    /// The batch is applied to the local state, and further commands are due at once.
    Partly,
    /// Nothing was committed.
    Failed,
    /// It may still be committed.
    Unknown,
}

/// Determines when a pass is due; see the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    leading: bool,
    running: bool,
    /// Times of the first and the last change not yet covered by a pass.
    changes: Option<(Instant, Instant)>,
    /// Time of the first change not yet covered by a finished pass, or of a pass begun without one.
    unanswered: Option<Instant>,
    /// Time of the next pass if nothing changes.
    tick: Option<Instant>,
    /// Earliest time of the next pass.
    not_before: Option<Instant>,
    failures: u32,
}

impl Pace {
    /// Handles a change of leadership; a new leader begins a pass at once.
    pub fn handle_leadership(&mut self, leading: bool, now: Instant) {
        if leading == self.leading {
            return;
        }
        *self = Self {
            leading,
            tick: leading.then_some(now),
            ..Self::default()
        };
    }

    /// Handles a change that a pass depends on.
    pub fn handle_change(&mut self, now: Instant) {
        if self.leading {
            let first = self.changes.map_or(now, |(first, _)| first);
            self.changes = Some((first, now));
        }
    }

    /// Returns whether to begin a pass now; if so, the pass covers all changes so far.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let due = self.deadline().is_some_and(|deadline| deadline <= now);
        if due {
            self.running = true;
            let first = self.changes.take().map_or(now, |(first, _)| first);
            self.unanswered.get_or_insert(first);
            self.tick = Some(now + SAFETY_TICK);
        }
        due
    }

    /// Handles the end of a pass; a failed or partial pass is followed by another.
    pub fn handle_finished(&mut self, outcome: Outcome, now: Instant) {
        if !self.running {
            return; // outcome of an earlier leadership epoch
        }
        self.running = false;
        let shortest = match outcome {
            Outcome::Done => {
                self.unanswered = None;
                self.failures = 0;
                self.not_before = None;
                return;
            }
            Outcome::Partly => {
                self.failures = 0;
                self.not_before = None;
                self.tick = Some(now);
                return;
            }
            Outcome::Failed => FIRST_RETRY,
            Outcome::Unknown => COMMIT_BUDGET,
        };
        let delay = FIRST_RETRY
            .saturating_mul(1 << self.failures.min(16))
            .clamp(shortest, SAFETY_TICK);
        self.failures += 1;
        self.not_before = Some(now + delay);
        self.tick = Some(now + delay);
    }

    /// Time of the first change that the pass in flight covers, including its earlier attempts.
    #[must_use]
    pub fn answers_since(&self) -> Option<Instant> {
        self.unanswered.filter(|_| self.running)
    }

    /// Time of the next pass; `None` while one is in flight or this node does not lead.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        if !self.leading || self.running {
            return None;
        }
        let settled = self
            .changes
            .map(|(first, last)| (last + QUIET).min(first + LONGEST_WAIT));
        let earliest = [settled, self.tick].into_iter().flatten().min()?;
        Some(
            self.not_before
                .map_or(earliest, |floor| earliest.max(floor)),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn settled(start: Instant) -> Pace {
        let mut pace = Pace::default();
        pace.handle_leadership(true, start);
        assert!(pace.handle_timeout(start));
        pace.handle_finished(Outcome::Done, start);
        pace
    }

    #[test]
    fn follower_never_has_a_deadline() {
        let now = Instant::now();
        let mut pace = Pace::default();
        pace.handle_change(now);
        pace.handle_leadership(false, now);
        assert_eq!(pace.deadline(), None);
        assert!(!pace.handle_timeout(now + SAFETY_TICK));
    }

    #[test]
    fn new_leader_passes_at_once_then_every_tick() {
        let now = Instant::now();
        let pace = settled(now);
        assert_eq!(pace.deadline(), Some(now + SAFETY_TICK));
    }

    #[test]
    fn partial_pass_is_continued_at_once() {
        let now = Instant::now();
        let mut pace = settled(now);
        pace.handle_change(now);
        assert!(pace.handle_timeout(now + QUIET));
        pace.handle_finished(Outcome::Partly, now + ms(90));
        assert_eq!(pace.deadline(), Some(now + ms(90)));
        assert!(pace.handle_timeout(now + ms(90)));
        assert_eq!(
            pace.answers_since(),
            Some(now),
            "several passes cover one change"
        );
        pace.handle_finished(Outcome::Done, now + ms(95));
        assert_eq!(pace.deadline(), Some(now + ms(90) + SAFETY_TICK));
    }

    #[test]
    fn changes_are_debounced() {
        let now = Instant::now();
        let mut pace = settled(now);
        pace.handle_change(now + ms(10));
        pace.handle_change(now + ms(40));
        assert_eq!(pace.deadline(), Some(now + ms(90)));
        assert!(!pace.handle_timeout(now + ms(89)));
        assert!(pace.handle_timeout(now + ms(90)));
    }

    #[test]
    fn steady_changes_delay_a_pass_up_to_limit() {
        let now = Instant::now();
        let mut pace = settled(now);
        let begun = (0..).map(|step| ms(step * 20)).find(|&at| {
            pace.handle_change(now + at);
            pace.handle_timeout(now + at)
        });
        assert_eq!(begun, Some(LONGEST_WAIT));
    }

    #[test]
    fn change_during_pass_waits_for_its_end() {
        let now = Instant::now();
        let mut pace = settled(now);
        pace.handle_change(now);
        assert!(pace.handle_timeout(now + QUIET));
        pace.handle_change(now + ms(60));
        assert_eq!(pace.deadline(), None);
        assert!(!pace.handle_timeout(now + ms(1000)));
        pace.handle_finished(Outcome::Done, now + ms(1000));
        assert_eq!(pace.deadline(), Some(now + ms(110)));
        assert!(pace.handle_timeout(now + ms(1000)));
    }

    #[test]
    fn failed_passes_are_retried_with_backoff() {
        let mut now = Instant::now();
        let mut pace = Pace::default();
        pace.handle_leadership(true, now);
        let mut delays = Vec::new();
        for _ in 0..9 {
            assert!(pace.handle_timeout(now));
            pace.handle_finished(Outcome::Failed, now);
            pace.handle_change(now); // must not shorten the delay
            let next = pace.deadline().unwrap();
            delays.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(
            delays,
            [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]
        );
    }

    #[test]
    fn retried_pass_counts_since_first_change() {
        let now = Instant::now();
        let mut pace = settled(now);
        assert_eq!(pace.answers_since(), None);
        pace.handle_change(now + ms(10));
        pace.handle_change(now + ms(20));
        assert!(pace.handle_timeout(now + ms(70)));
        assert_eq!(pace.answers_since(), Some(now + ms(10)));
        pace.handle_finished(Outcome::Failed, now + ms(100));
        pace.handle_change(now + ms(200));
        assert!(pace.handle_timeout(now + ms(400)));
        assert_eq!(pace.answers_since(), Some(now + ms(10)));
        pace.handle_finished(Outcome::Done, now + ms(410));
        // No change is pending, so the pass counts from its own beginning.
        assert!(pace.handle_timeout(now + ms(400) + SAFETY_TICK));
        assert_eq!(pace.answers_since(), Some(now + ms(400) + SAFETY_TICK));
    }

    #[test]
    fn unknown_outcome_delays_pass_by_commit_budget() {
        let now = Instant::now();
        let mut pace = Pace::default();
        pace.handle_leadership(true, now);
        assert!(pace.handle_timeout(now));
        pace.handle_finished(Outcome::Unknown, now);
        pace.handle_change(now);
        assert_eq!(pace.deadline(), Some(now + COMMIT_BUDGET));
    }

    #[test]
    fn new_leadership_resets_backoff_and_pass() {
        let now = Instant::now();
        let mut pace = Pace::default();
        pace.handle_leadership(true, now);
        assert!(pace.handle_timeout(now));
        pace.handle_leadership(false, now);
        assert_eq!(pace.deadline(), None);
        pace.handle_leadership(true, now + ms(5));
        pace.handle_finished(Outcome::Failed, now + ms(6));
        assert_eq!(pace.deadline(), Some(now + ms(5)));
    }

    proptest! {
        #[test]
        fn deadline_is_in_the_future_after_timeout(
            steps in proptest::collection::vec((0..5_u8, 0..2000_u64), 0..60),
        ) {
            let mut now = Instant::now();
            let mut pace = Pace::default();
            for (step, delay) in steps {
                now += ms(delay);
                match step {
                    0 => pace.handle_leadership(true, now),
                    1 => pace.handle_leadership(delay % 7 != 0, now),
                    2 => pace.handle_finished(Outcome::Done, now),
                    3 => pace.handle_finished(Outcome::Failed, now),
                    _ => pace.handle_change(now),
                }
                pace.handle_timeout(now);
                prop_assert!(pace.deadline().is_none_or(|deadline| deadline > now));
                // Without failures a change is never delayed past its limit.
                if let (Some((first, _)), Some(deadline), 0) =
                    (pace.changes, pace.deadline(), pace.failures)
                {
                    prop_assert!(deadline <= first + LONGEST_WAIT);
                }
            }
        }
    }
}
