//! Detects that raft's thread hangs, as on a disk that does not answer. Pure.
//!
//! A thread that runs finishes a step with every tick of raft. Time counts only as far as ticks of
//! the watcher prove that this process ran: a pause of the process stops both.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Interval of the watcher's ticks.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// Longest time between two ticks that is counted.
const MAX_TICK_CREDIT: Duration = TICK.saturating_mul(2);

/// Action for the watcher to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Mark raft as stalled; it has made no progress for this long.
    Stalled(Duration),
    /// Raft makes progress again.
    Resumed,
    /// Give raft up; it has made no progress for this long.
    GiveUp(Duration),
}

/// Progress of raft's thread, as seen at each tick.
#[derive(Debug)]
pub(super) struct StallDetector {
    stalled_after: Duration,
    give_up_after: Duration,
    /// Number of finished steps at the last tick.
    progress: u64,
    /// Counted time since the last progress.
    idle: Duration,
    last: Option<Instant>,
    stalled: bool,
    given_up: bool,
    actions: VecDeque<Action>,
}

impl StallDetector {
    /// Creates a detector that reports a stall after `stalled_after` without progress, and gives up
    /// after `give_up_after`.
    pub(super) fn new(stalled_after: Duration, give_up_after: Duration) -> Self {
        Self {
            stalled_after,
            give_up_after,
            progress: 0,
            idle: Duration::ZERO,
            last: None,
            stalled: false,
            given_up: false,
            actions: VecDeque::new(),
        }
    }

    /// Handles a tick, due every [`TICK`]: `progress` is the number of finished steps, and
    /// `allowance` the additional time that the step in progress may take.
    pub(super) fn handle_tick(&mut self, now: Instant, progress: u64, allowance: Duration) {
        let last = self.last.replace(now);
        if progress != self.progress {
            self.progress = progress;
            self.idle = Duration::ZERO;
            self.given_up = false;
            if std::mem::take(&mut self.stalled) {
                self.actions.push_back(Action::Resumed);
            }
            return;
        }
        let gap = last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.idle += gap.min(MAX_TICK_CREDIT);
        let exceeds = |limit: Duration| self.idle >= limit.saturating_add(allowance);
        let (stalls, gives_up) = (exceeds(self.stalled_after), exceeds(self.give_up_after));
        if stalls && !std::mem::replace(&mut self.stalled, true) {
            self.actions.push_back(Action::Stalled(self.idle));
        }
        if gives_up && !std::mem::replace(&mut self.given_up, true) {
            self.actions.push_back(Action::GiveUp(self.idle));
        }
    }

    /// Returns the next action.
    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALLED: Duration = Duration::from_secs(3);
    const GIVE_UP: Duration = Duration::from_secs(45);

    struct Fixture {
        detector: StallDetector,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            let mut fixture = Self {
                detector: StallDetector::new(STALLED, GIVE_UP),
                now: Instant::now(),
            };
            fixture.tick(1, Duration::ZERO);
            fixture
        }

        fn tick(&mut self, progress: u64, allowance: Duration) -> Option<Action> {
            self.now += TICK;
            self.detector.handle_tick(self.now, progress, allowance);
            self.detector.poll_action()
        }

        /// Actions of ticks for this time, without progress after step `progress`.
        fn hang(&mut self, progress: u64, time: Duration, allowance: Duration) -> Vec<Action> {
            let ticks = time.as_millis() / TICK.as_millis();
            (0..ticks)
                .filter_map(|_| self.tick(progress, allowance))
                .collect()
        }
    }

    #[test]
    fn hang_is_reported_once_then_given_up() {
        let mut fixture = Fixture::new();
        let none = Duration::ZERO;
        assert_eq!(fixture.hang(1, STALLED - TICK, none), []);
        assert_eq!(fixture.tick(1, none), Some(Action::Stalled(STALLED)));
        assert_eq!(fixture.hang(1, GIVE_UP - STALLED - TICK, none), []);
        assert_eq!(fixture.tick(1, none), Some(Action::GiveUp(GIVE_UP)));
        assert_eq!(fixture.hang(1, GIVE_UP, none), []);
    }

    #[test]
    fn progress_restarts_the_time() {
        let mut fixture = Fixture::new();
        for step in 2..100 {
            assert_eq!(fixture.hang(step, STALLED, Duration::ZERO), []);
        }
        let stalled = [Action::Stalled(STALLED)];
        assert_eq!(fixture.hang(99, STALLED, Duration::ZERO), stalled);
        assert_eq!(fixture.tick(100, Duration::ZERO), Some(Action::Resumed));
        assert_eq!(fixture.tick(101, Duration::ZERO), None);
        assert_eq!(fixture.hang(101, STALLED, Duration::ZERO), stalled);
    }

    #[test]
    fn pause_of_the_process_does_not_count() {
        let mut fixture = Fixture::new();
        fixture.now += Duration::from_secs(3600);
        assert_eq!(fixture.tick(1, Duration::ZERO), None);
        assert_eq!(fixture.hang(1, STALLED - 3 * TICK, Duration::ZERO), []);
        assert!(fixture.tick(1, Duration::ZERO).is_some());
    }

    #[test]
    fn announced_work_extends_both_limits() {
        let mut fixture = Fixture::new();
        let hour = Duration::from_secs(3600);
        assert_eq!(fixture.hang(1, hour, hour), []);
        assert_eq!(
            fixture.hang(1, GIVE_UP, hour),
            [
                Action::Stalled(hour + STALLED),
                Action::GiveUp(hour + GIVE_UP)
            ]
        );
    }
}
