//! Timing of the scheduler's passes.
//!
//! Changes are debounced because they arrive in bursts, but never delayed for long; a failed pass
//! is retried with exponential backoff; and only one pass is in flight at a time. After a pass
//! begins, [`PassTimer::deadline`] lies in the future or is `None`, so a driver that sleeps until
//! then never spins.

use std::time::{Duration, Instant};

/// Quiet time after the last change before a pass begins.
pub const DEBOUNCE: Duration = Duration::from_millis(50);
/// Longest delay of a pass by further changes.
pub const MAX_DEBOUNCE: Duration = Duration::from_millis(500);
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
    Partial,
    /// Nothing was committed.
    Failed,
    /// It may still be committed.
    Unknown,
}

/// Determines when a pass is due; see the module documentation.
#[derive(Clone, Debug, Default)]
pub struct PassTimer {
    leading: bool,
    running: bool,
    /// Times of the first and the last change not yet covered by a pass.
    changes: Option<(Instant, Instant)>,
    /// Time of the first change not yet covered by a finished pass, or of a pass begun without one.
    uncovered: Option<Instant>,
    /// Time of the next pass if nothing changes.
    tick: Option<Instant>,
    /// Earliest time of the next pass.
    not_before: Option<Instant>,
    failures: u32,
}

impl PassTimer {
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
            self.uncovered.get_or_insert(first);
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
                self.uncovered = None;
                self.failures = 0;
                self.not_before = None;
                return;
            }
            Outcome::Partial => {
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
    pub fn covers_since(&self) -> Option<Instant> {
        self.uncovered.filter(|_| self.running)
    }

    /// Time of the next pass; `None` while one is in flight or this node does not lead.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        if !self.leading || self.running {
            return None;
        }
        let debounce_end = self
            .changes
            .map(|(first, last)| (last + DEBOUNCE).min(first + MAX_DEBOUNCE));
        let earliest = [debounce_end, self.tick].into_iter().flatten().min()?;
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

    fn idle_timer(start: Instant) -> PassTimer {
        let mut pass_timer = PassTimer::default();
        pass_timer.handle_leadership(true, start);
        assert!(pass_timer.handle_timeout(start));
        pass_timer.handle_finished(Outcome::Done, start);
        pass_timer
    }

    #[test]
    fn follower_never_has_a_deadline() {
        let now = Instant::now();
        let mut pass_timer = PassTimer::default();
        pass_timer.handle_change(now);
        pass_timer.handle_leadership(false, now);
        assert_eq!(pass_timer.deadline(), None);
        assert!(!pass_timer.handle_timeout(now + SAFETY_TICK));
    }

    #[test]
    fn new_leader_passes_at_once_then_every_tick() {
        let now = Instant::now();
        let pass_timer = idle_timer(now);
        assert_eq!(pass_timer.deadline(), Some(now + SAFETY_TICK));
    }

    #[test]
    fn partial_pass_is_continued_at_once() {
        let now = Instant::now();
        let mut pass_timer = idle_timer(now);
        pass_timer.handle_change(now);
        assert!(pass_timer.handle_timeout(now + DEBOUNCE));
        pass_timer.handle_finished(Outcome::Partial, now + ms(90));
        assert_eq!(pass_timer.deadline(), Some(now + ms(90)));
        assert!(pass_timer.handle_timeout(now + ms(90)));
        assert_eq!(
            pass_timer.covers_since(),
            Some(now),
            "several passes cover one change"
        );
        pass_timer.handle_finished(Outcome::Done, now + ms(95));
        assert_eq!(pass_timer.deadline(), Some(now + ms(90) + SAFETY_TICK));
    }

    #[test]
    fn changes_are_debounced() {
        let now = Instant::now();
        let mut pass_timer = idle_timer(now);
        pass_timer.handle_change(now + ms(10));
        pass_timer.handle_change(now + ms(40));
        assert_eq!(pass_timer.deadline(), Some(now + ms(90)));
        assert!(!pass_timer.handle_timeout(now + ms(89)));
        assert!(pass_timer.handle_timeout(now + ms(90)));
    }

    #[test]
    fn steady_changes_delay_a_pass_up_to_limit() {
        let now = Instant::now();
        let mut pass_timer = idle_timer(now);
        let begun = (0..).map(|step| ms(step * 20)).find(|&at| {
            pass_timer.handle_change(now + at);
            pass_timer.handle_timeout(now + at)
        });
        assert_eq!(begun, Some(MAX_DEBOUNCE));
    }

    #[test]
    fn change_during_pass_waits_for_its_end() {
        let now = Instant::now();
        let mut pass_timer = idle_timer(now);
        pass_timer.handle_change(now);
        assert!(pass_timer.handle_timeout(now + DEBOUNCE));
        pass_timer.handle_change(now + ms(60));
        assert_eq!(pass_timer.deadline(), None);
        assert!(!pass_timer.handle_timeout(now + ms(1000)));
        pass_timer.handle_finished(Outcome::Done, now + ms(1000));
        assert_eq!(pass_timer.deadline(), Some(now + ms(110)));
        assert!(pass_timer.handle_timeout(now + ms(1000)));
    }

    #[test]
    fn failed_passes_are_retried_with_backoff() {
        let mut now = Instant::now();
        let mut pass_timer = PassTimer::default();
        pass_timer.handle_leadership(true, now);
        let mut delays = Vec::new();
        for _ in 0..9 {
            assert!(pass_timer.handle_timeout(now));
            pass_timer.handle_finished(Outcome::Failed, now);
            pass_timer.handle_change(now); // must not shorten the delay
            let next = pass_timer.deadline().unwrap();
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
        let mut pass_timer = idle_timer(now);
        assert_eq!(pass_timer.covers_since(), None);
        pass_timer.handle_change(now + ms(10));
        pass_timer.handle_change(now + ms(20));
        assert!(pass_timer.handle_timeout(now + ms(70)));
        assert_eq!(pass_timer.covers_since(), Some(now + ms(10)));
        pass_timer.handle_finished(Outcome::Failed, now + ms(100));
        pass_timer.handle_change(now + ms(200));
        assert!(pass_timer.handle_timeout(now + ms(400)));
        assert_eq!(pass_timer.covers_since(), Some(now + ms(10)));
        pass_timer.handle_finished(Outcome::Done, now + ms(410));
        // No change is pending, so the pass counts from its own beginning.
        assert!(pass_timer.handle_timeout(now + ms(400) + SAFETY_TICK));
        assert_eq!(pass_timer.covers_since(), Some(now + ms(400) + SAFETY_TICK));
    }

    #[test]
    fn unknown_outcome_delays_pass_by_commit_budget() {
        let now = Instant::now();
        let mut pass_timer = PassTimer::default();
        pass_timer.handle_leadership(true, now);
        assert!(pass_timer.handle_timeout(now));
        pass_timer.handle_finished(Outcome::Unknown, now);
        pass_timer.handle_change(now);
        assert_eq!(pass_timer.deadline(), Some(now + COMMIT_BUDGET));
    }

    #[test]
    fn new_leadership_resets_backoff_and_pass() {
        let now = Instant::now();
        let mut pass_timer = PassTimer::default();
        pass_timer.handle_leadership(true, now);
        assert!(pass_timer.handle_timeout(now));
        pass_timer.handle_leadership(false, now);
        assert_eq!(pass_timer.deadline(), None);
        pass_timer.handle_leadership(true, now + ms(5));
        pass_timer.handle_finished(Outcome::Failed, now + ms(6));
        assert_eq!(pass_timer.deadline(), Some(now + ms(5)));
    }

    proptest! {
        #[test]
        fn deadline_is_in_the_future_after_timeout(
            steps in proptest::collection::vec((0..5_u8, 0..2000_u64), 0..60),
        ) {
            let mut now = Instant::now();
            let mut pass_timer = PassTimer::default();
            for (step, delay) in steps {
                now += ms(delay);
                match step {
                    0 => pass_timer.handle_leadership(true, now),
                    1 => pass_timer.handle_leadership(delay % 7 != 0, now),
                    2 => pass_timer.handle_finished(Outcome::Done, now),
                    3 => pass_timer.handle_finished(Outcome::Failed, now),
                    _ => pass_timer.handle_change(now),
                }
                pass_timer.handle_timeout(now);
                prop_assert!(pass_timer.deadline().is_none_or(|deadline| deadline > now));
                // Without failures a change is never delayed past its limit.
                if let (Some((first, _)), Some(deadline), 0) =
                    (pass_timer.changes, pass_timer.deadline(), pass_timer.failures)
                {
                    prop_assert!(deadline <= first + MAX_DEBOUNCE);
                }
            }
        }
    }
}
