//! Timing of the scheduler's passes.
//!
//! Changes are debounced because they arrive in bursts, but never delayed for long; a failed pass
//! is retried with exponential backoff; and only one pass is in flight at a time. After a pass
//! begins, [`PassTimer::poll_timeout`] lies in the future or is `None`, so a driver that sleeps until
//! then never spins.

use std::time::{Duration, Instant};

use crate::{COMMIT_BUDGET, debounce::Debounce};

/// Quiet time after the last change before a pass begins.
pub const DEBOUNCE: Duration = Duration::from_millis(50);
/// Longest delay of a pass by further changes.
pub const MAX_DEBOUNCE: Duration = Duration::from_millis(500);
/// Interval of passes while nothing changes.
pub const SAFETY_TICK: Duration = Duration::from_secs(30);
/// First delay after a failed pass; doubles up to [`SAFETY_TICK`].
pub const FIRST_RETRY: Duration = Duration::from_millis(250);

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

/// Action for the driver to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begin a pass; it covers all changes so far.
    Pass,
}

/// Determines when a pass is due; see the module documentation.
#[derive(Clone, Debug)]
pub struct PassTimer {
    leading: bool,
    running: bool,
    /// Changes not yet covered by a pass.
    changes: Debounce,
    /// Time of the first change not yet covered by a finished pass, or of a pass begun without one.
    uncovered: Option<Instant>,
    /// Time of the next pass if nothing changes.
    tick: Option<Instant>,
    /// Earliest time of the next pass.
    not_before: Option<Instant>,
    failures: u32,
    action: Option<Action>,
}

impl Default for PassTimer {
    fn default() -> Self {
        Self {
            leading: false,
            running: false,
            changes: Debounce::new(DEBOUNCE, MAX_DEBOUNCE),
            uncovered: None,
            tick: None,
            not_before: None,
            failures: 0,
            action: None,
        }
    }
}

impl PassTimer {
    /// Handles a change of leadership; a new leader begins a pass at once.
    pub fn handle_leadership(&mut self, now: Instant, leading: bool) {
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
            self.changes.handle_change(now);
        }
    }

    /// Handles the passing of the deadline; has no effect before it.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        self.running = true;
        let first = self.changes.pending_since().unwrap_or(now);
        self.changes = Debounce::new(DEBOUNCE, MAX_DEBOUNCE);
        self.uncovered.get_or_insert(first);
        self.tick = Some(now + SAFETY_TICK);
        self.action = Some(Action::Pass);
    }

    /// Makes a pass due at this time, if no other is sooner.
    pub fn schedule(&mut self, at: Option<Instant>) {
        if let (Some(tick), Some(at)) = (self.tick, at) {
            self.tick = Some(tick.min(at));
        }
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.action.take()
    }

    /// Handles the end of a pass; a failed or partial pass is followed by another.
    pub fn handle_finished(&mut self, now: Instant, outcome: Outcome) {
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

    /// Time at which to call [`PassTimer::handle_timeout`]; `None` while a pass is in flight or this
    /// node does not lead.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.leading || self.running {
            return None;
        }
        let due = [self.changes.poll_timeout(), self.tick];
        let earliest = due.into_iter().flatten().min()?;
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

    /// Whether a pass begins at `now`.
    fn passes(pass_timer: &mut PassTimer, now: Instant) -> bool {
        pass_timer.handle_timeout(now);
        pass_timer.poll_action() == Some(Action::Pass)
    }

    fn idle_timer(start: Instant) -> PassTimer {
        let mut pass_timer = PassTimer::default();
        pass_timer.handle_leadership(start, true);
        assert!(passes(&mut pass_timer, start));
        pass_timer.handle_finished(start, Outcome::Done);
        pass_timer
    }

    #[test]
    fn pass_comes_at_the_scheduled_time() {
        let start = Instant::now();
        let mut pass_timer = idle_timer(start);
        pass_timer.schedule(Some(start + SAFETY_TICK * 2));
        assert_eq!(pass_timer.poll_timeout(), Some(start + SAFETY_TICK));
        pass_timer.schedule(Some(start + ms(700)));
        assert!(!passes(&mut pass_timer, start + ms(699)));
        assert!(passes(&mut pass_timer, start + ms(700)));
        pass_timer.schedule(None);
        pass_timer.handle_finished(start + ms(700), Outcome::Done);
        assert_eq!(
            pass_timer.poll_timeout(),
            Some(start + ms(700) + SAFETY_TICK)
        );
        let mut follower = PassTimer::default();
        follower.schedule(Some(start));
        assert_eq!(follower.poll_timeout(), None);
    }

    #[test]
    fn follower_never_has_a_deadline() {
        let now = Instant::now();
        let mut pass_timer = PassTimer::default();
        pass_timer.handle_change(now);
        pass_timer.handle_leadership(now, false);
        assert_eq!(pass_timer.poll_timeout(), None);
        assert!(!passes(&mut pass_timer, now + SAFETY_TICK));
    }

    #[test]
    fn new_leader_passes_at_once_then_every_tick() {
        let now = Instant::now();
        let pass_timer = idle_timer(now);
        assert_eq!(pass_timer.poll_timeout(), Some(now + SAFETY_TICK));
    }

    #[test]
    fn partial_pass_is_continued_at_once() {
        let now = Instant::now();
        let mut pass_timer = idle_timer(now);
        pass_timer.handle_change(now);
        assert!(passes(&mut pass_timer, now + DEBOUNCE));
        pass_timer.handle_finished(now + ms(90), Outcome::Partial);
        assert_eq!(pass_timer.poll_timeout(), Some(now + ms(90)));
        assert!(passes(&mut pass_timer, now + ms(90)));
        assert_eq!(
            pass_timer.covers_since(),
            Some(now),
            "several passes cover one change"
        );
        pass_timer.handle_finished(now + ms(95), Outcome::Done);
        assert_eq!(pass_timer.poll_timeout(), Some(now + ms(90) + SAFETY_TICK));
    }

    #[test]
    fn changes_are_debounced() {
        let now = Instant::now();
        let mut pass_timer = idle_timer(now);
        pass_timer.handle_change(now + ms(10));
        pass_timer.handle_change(now + ms(40));
        assert_eq!(pass_timer.poll_timeout(), Some(now + ms(90)));
        assert!(!passes(&mut pass_timer, now + ms(89)));
        assert!(passes(&mut pass_timer, now + ms(90)));
    }

    #[test]
    fn steady_changes_delay_a_pass_up_to_limit() {
        let now = Instant::now();
        let mut pass_timer = idle_timer(now);
        let begun = (0..).map(|step| ms(step * 20)).find(|&at| {
            pass_timer.handle_change(now + at);
            passes(&mut pass_timer, now + at)
        });
        assert_eq!(begun, Some(MAX_DEBOUNCE));
    }

    #[test]
    fn change_during_pass_waits_for_its_end() {
        let now = Instant::now();
        let mut pass_timer = idle_timer(now);
        pass_timer.handle_change(now);
        assert!(passes(&mut pass_timer, now + DEBOUNCE));
        pass_timer.handle_change(now + ms(60));
        assert_eq!(pass_timer.poll_timeout(), None);
        assert!(!passes(&mut pass_timer, now + ms(1000)));
        pass_timer.handle_finished(now + ms(1000), Outcome::Done);
        assert_eq!(pass_timer.poll_timeout(), Some(now + ms(110)));
        assert!(passes(&mut pass_timer, now + ms(1000)));
    }

    #[test]
    fn failed_passes_are_retried_with_backoff() {
        let mut now = Instant::now();
        let mut pass_timer = PassTimer::default();
        pass_timer.handle_leadership(now, true);
        let mut delays = Vec::new();
        for _ in 0..9 {
            assert!(passes(&mut pass_timer, now));
            pass_timer.handle_finished(now, Outcome::Failed);
            pass_timer.handle_change(now); // must not shorten the delay
            let next = pass_timer.poll_timeout().unwrap();
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
        assert!(passes(&mut pass_timer, now + ms(70)));
        assert_eq!(pass_timer.covers_since(), Some(now + ms(10)));
        pass_timer.handle_finished(now + ms(100), Outcome::Failed);
        pass_timer.handle_change(now + ms(200));
        assert!(passes(&mut pass_timer, now + ms(400)));
        assert_eq!(pass_timer.covers_since(), Some(now + ms(10)));
        pass_timer.handle_finished(now + ms(410), Outcome::Done);
        // No change is pending, so the pass counts from its own beginning.
        assert!(passes(&mut pass_timer, now + ms(400) + SAFETY_TICK));
        assert_eq!(pass_timer.covers_since(), Some(now + ms(400) + SAFETY_TICK));
    }

    #[test]
    fn unknown_outcome_delays_pass_by_commit_budget() {
        let now = Instant::now();
        let mut pass_timer = PassTimer::default();
        pass_timer.handle_leadership(now, true);
        assert!(passes(&mut pass_timer, now));
        pass_timer.handle_finished(now, Outcome::Unknown);
        pass_timer.handle_change(now);
        assert_eq!(pass_timer.poll_timeout(), Some(now + COMMIT_BUDGET));
    }

    #[test]
    fn new_leadership_resets_backoff_and_pass() {
        let now = Instant::now();
        let mut pass_timer = PassTimer::default();
        pass_timer.handle_leadership(now, true);
        assert!(passes(&mut pass_timer, now));
        pass_timer.handle_leadership(now, false);
        assert_eq!(pass_timer.poll_timeout(), None);
        pass_timer.handle_leadership(now + ms(5), true);
        pass_timer.handle_finished(now + ms(6), Outcome::Failed);
        assert_eq!(pass_timer.poll_timeout(), Some(now + ms(5)));
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
                    0 => pass_timer.handle_leadership(now, true),
                    1 => pass_timer.handle_leadership(now, delay % 7 != 0),
                    2 => pass_timer.handle_finished(now, Outcome::Done),
                    3 => pass_timer.handle_finished(now, Outcome::Failed),
                    _ => pass_timer.handle_change(now),
                }
                pass_timer.handle_timeout(now);
                prop_assert!(pass_timer.poll_timeout().is_none_or(|deadline| deadline > now));
                // Without failures a change is never delayed past its limit.
                let first = pass_timer.changes.pending_since();
                if let (Some(first), Some(deadline), 0) =
                    (first, pass_timer.poll_timeout(), pass_timer.failures)
                {
                    prop_assert!(deadline <= first + MAX_DEBOUNCE);
                }
            }
        }
    }
}
