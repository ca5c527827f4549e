//! Counts the ticks of raft that have passed. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// Most ticks without an effect that raft's thread sleeps through. Longer than the interval between
/// the heartbeats of a leader, so that a follower's thread wakes for messages only; and so short that
/// these ticks with those since the last heartbeat are less than an election timeout, because a pause
/// of the process counts them too.
const MAX_QUIET: u64 = 4;

/// Ticks on raft's thread, which counts them when it wakes.
///
/// While the thread is held up, as by a write, one tick passes at most: an election timeout is to
/// measure the silence of the leader, whose messages wait then.
#[derive(Debug)]
pub(super) struct TickClock {
    period: Duration,
    /// Time up to which ticks are counted.
    counted: Instant,
    /// Ticks to sleep through before the one that needs the thread.
    quiet: u64,
}

impl TickClock {
    pub(super) fn new(now: Instant, period: Duration) -> Self {
        Self {
            period,
            counted: now,
            quiet: 0,
        }
    }

    /// Returns the number of ticks since the last call.
    pub(super) fn handle_wake(&mut self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.counted).as_nanos();
        let passed = passed.checked_div(self.period.as_nanos()).unwrap_or(0);
        let planned = self.quiet + 1;
        match u32::try_from(passed) {
            Ok(passed) if u64::from(passed) <= planned => {
                self.counted += self.period * passed;
                passed.into()
            }
            Ok(_) | Err(_) => {
                self.counted = now;
                planned
            }
        }
    }

    /// Handles the end of the work since the last wake; `quiet` is the number of the next ticks
    /// without an effect.
    pub(super) fn handle_rest(&mut self, now: Instant, quiet: u64) {
        let last = now.checked_sub(self.period).unwrap_or(now);
        self.counted = self.counted.max(last);
        self.quiet = quiet.min(MAX_QUIET);
    }

    /// Time at which the thread must wake for a tick.
    pub(super) fn poll_timeout(&self) -> Instant {
        // At most MAX_QUIET, so it fits.
        let ticks = u32::try_from(self.quiet).unwrap_or(0) + 1;
        self.counted + self.period * ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(100);

    fn clock(quiet: u64) -> (TickClock, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        let mut clock = TickClock::new(start, PERIOD);
        clock.handle_rest(start, quiet);
        (clock, move |ms| start + Duration::from_millis(ms))
    }

    #[test]
    fn ticks_keep_their_rate_whatever_wakes_the_thread() {
        let (mut clock, at) = clock(4);
        let mut ticks = 0;
        for ms in (0..100_000).step_by(70) {
            ticks += clock.handle_wake(at(ms));
            clock.handle_rest(at(ms), 4);
            assert_eq!(ticks, ms / 100);
        }
    }

    #[test]
    fn quiet_ticks_are_slept_through_up_to_limit() {
        for (quiet, due) in [(0, 100), (2, 300), (4, 500), (19, 500)] {
            let (mut clock, at) = clock(quiet);
            assert_eq!(clock.poll_timeout(), at(due));
            assert_eq!(clock.handle_wake(at(due)), due / 100);
        }
    }

    #[test]
    fn pause_counts_only_the_planned_sleep() {
        let (mut clock, at) = clock(4);
        assert_eq!(clock.handle_wake(at(60_000)), 5);
        clock.handle_rest(at(60_000), 4);
        assert_eq!(clock.handle_wake(at(60_099)), 0);
        assert_eq!(clock.handle_wake(at(60_100)), 1);
    }

    #[test]
    fn work_counts_as_one_tick_at_most() {
        let (mut clock, at) = clock(4);
        assert_eq!(clock.handle_wake(at(250)), 2);
        clock.handle_rest(at(9_000), 4);
        assert_eq!(clock.handle_wake(at(9_001)), 1);
        clock.handle_rest(at(9_001), 0);
        assert_eq!(clock.poll_timeout(), at(9_100));
    }
}
