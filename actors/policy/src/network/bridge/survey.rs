//! When the networks of a host are compared with the state.
//!
//! Changes come in bursts and are debounced; without a change a comparison follows 30 s after the
//! last. Only one is in progress at a time.

use std::time::{Duration, Instant};

use crate::debounce::Debounce;

/// Quiet time after the last change before a comparison.
pub const DEBOUNCE: Duration = Duration::from_millis(200);
/// Longest delay of a comparison by further changes.
pub const MAX_DEBOUNCE: Duration = Duration::from_secs(1);
/// Time between comparisons while nothing changes.
pub const TICK: Duration = Duration::from_secs(30);

/// Action for the driver to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the networks of the host and compare them.
    Survey,
}

/// Determines when a comparison is due; see the module documentation.
#[derive(Clone, Debug)]
pub struct SurveyTimer {
    changes: Debounce,
    tick: Instant,
    running: bool,
    due: bool,
}

impl SurveyTimer {
    /// Creates a timer whose first comparison is due at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            changes: Debounce::new(DEBOUNCE, MAX_DEBOUNCE),
            tick: now,
            running: false,
            due: false,
        }
    }

    /// Handles a change of a network; one during a comparison causes another.
    pub fn handle_change(&mut self, now: Instant) {
        self.changes.handle_change(now);
    }

    /// Handles the end of a comparison, successful or not.
    pub fn handle_finished(&mut self, now: Instant) {
        self.running = false;
        self.tick = now + TICK;
    }

    /// Handles the passing of the deadline; has no effect before it.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.changes = Debounce::new(DEBOUNCE, MAX_DEBOUNCE);
            self.running = true;
            self.due = true;
        }
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        std::mem::take(&mut self.due).then_some(Action::Survey)
    }

    /// Time at which to call [`SurveyTimer::handle_timeout`]; `None` during a comparison.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let change = self.changes.poll_timeout();
        let next = change.map_or(self.tick, |change| change.min(self.tick));
        (!self.running).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of the comparisons after `changes`, in milliseconds; each takes `takes`.
    fn surveys(changes: &[u64], takes: u64, until: u64) -> Vec<u64> {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut timer = SurveyTimer::new(start);
        let (mut begun, mut end) = (Vec::new(), None);
        for ms in 0..=until {
            if changes.contains(&ms) {
                timer.handle_change(at(ms));
            }
            if end == Some(ms) {
                timer.handle_finished(at(ms));
            }
            timer.handle_timeout(at(ms));
            if timer.poll_action().is_some() {
                begun.push(ms);
                end = Some(ms + takes);
            }
            let due = timer.poll_timeout();
            assert!(due.is_none_or(|due| due > at(ms)), "spins at {ms}");
        }
        begun
    }

    #[test]
    fn survey_follows_start_changes_and_tick() {
        assert_eq!(surveys(&[], 5, 60_010), [0, 30_005, 60_010]);
        assert_eq!(surveys(&[100, 200], 5, 1_000), [0, 400]);
        assert_eq!(surveys(&[10], 5, 30_300), [0, 210, 30_215]);
    }

    #[test]
    fn continuous_changes_delay_survey_by_one_second() {
        let changes: Vec<u64> = (100..3_000).step_by(50).collect();
        let begun = surveys(&changes, 1, 3_000);
        assert_eq!(begun, [0, 1_100, 2_150]);
    }

    #[test]
    fn change_during_a_survey_causes_another() {
        assert_eq!(surveys(&[50], 500, 1_000), [0, 500]);
        assert_eq!(surveys(&[450], 500, 1_000), [0, 650]);
    }
}
