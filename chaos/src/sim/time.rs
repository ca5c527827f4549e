//! Virtual time: the event queue, and the clocks of each machine.

use std::{
    cmp::Ordering,
    collections::BinaryHeap,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use prost_types::Timestamp;

/// Microseconds since the start of the simulation.
pub(super) type Time = u64;

pub(super) const MS: Time = 1_000;
pub(super) const SECOND: Time = 1_000 * MS;

/// Wall-clock seconds at the start of every simulation.
const EPOCH: u64 = 1_700_000_000;

/// The clocks of one machine: the monotonic one runs a little fast or slow, and the wall clock has
/// an additional constant offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    zero: Instant,
    /// Millionths by which it runs fast; negative if slow.
    pub(super) drift: i64,
    /// Microseconds by which the wall clock is ahead.
    pub(super) skew: i64,
}

impl Clock {
    pub(super) fn new(zero: Instant, drift: i64, skew: i64) -> Self {
        Self { zero, drift, skew }
    }

    fn elapsed(&self, now: Time) -> Time {
        let ahead = now.cast_signed().saturating_mul(self.drift) / 1_000_000;
        now.saturating_add_signed(ahead)
    }

    /// Reading of the monotonic clock at `now`.
    pub(super) fn instant(&self, now: Time) -> Instant {
        self.zero + Duration::from_micros(self.elapsed(now))
    }

    /// Virtual time of at least `span` on this clock, from `now` on.
    pub(super) fn after(&self, now: Time, span: Time) -> Time {
        let slack = span.cast_signed().saturating_mul(self.drift) / 1_000_000;
        now + span.saturating_add_signed(-slack)
    }

    /// First virtual time, `now` or later, at which the monotonic clock has reached `at`.
    pub(super) fn time_of(&self, now: Time, at: Instant) -> Time {
        let mut time = now;
        loop {
            let left = at.saturating_duration_since(self.instant(time));
            if left.is_zero() {
                return time;
            }
            let left = u64::try_from(left.as_micros()).unwrap_or(u64::MAX / 4);
            time += (left - left / 8).max(1);
        }
    }

    /// Reading of the wall clock at `now`.
    pub(super) fn wall(&self, now: Time) -> SystemTime {
        let micros = (EPOCH * SECOND + self.elapsed(now)).saturating_add_signed(self.skew);
        UNIX_EPOCH + Duration::from_micros(micros)
    }

    pub(super) fn timestamp(&self, now: Time) -> Timestamp {
        Timestamp::from(self.wall(now))
    }
}

/// Event queue ordered by time; events due at the same time come in the order they were added.
#[derive(Debug)]
pub(super) struct Agenda<E> {
    heap: BinaryHeap<Item<E>>,
    added: u64,
}

#[derive(Debug)]
struct Item<E> {
    at: Time,
    number: u64,
    event: E,
}

impl<E> Agenda<E> {
    pub(super) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            added: 0,
        }
    }

    pub(super) fn add(&mut self, at: Time, event: E) {
        self.added += 1;
        let number = self.added;
        self.heap.push(Item { at, number, event });
    }

    pub(super) fn next(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|item| (item.at, item.event))
    }
}

impl<E> Ord for Item<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        // `BinaryHeap` pops its greatest item, which is to be the earliest.
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for Item<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Item<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for Item<E> {}

/// Time of the next scheduled event that wakes a core.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wake(Option<Time>);

impl Wake {
    /// Whether an event is to be scheduled for a deadline: an earlier event finds the later
    /// deadline.
    pub(super) fn must_schedule(&mut self, at: Time) -> bool {
        let earlier = self.0.is_none_or(|known| at < known);
        if earlier {
            self.0 = Some(at);
        }
        earlier
    }

    /// Handles an event.
    pub(super) fn handle_event(&mut self, now: Time) {
        self.0.take_if(|at| *at <= now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_wake_serves_a_later_deadline() {
        let mut wake = Wake::default();
        let scheduled = [9, 9, 12, 5, 7].map(|at| wake.must_schedule(at));
        assert_eq!(scheduled, [true, false, false, true, false]);
        wake.handle_event(4);
        assert!(!wake.must_schedule(5));
        wake.handle_event(5);
        assert!(wake.must_schedule(9));
    }

    #[test]
    fn agenda_orders_by_time_then_arrival() {
        let mut agenda = Agenda::new();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            agenda.add(at, event);
        }
        let order: String = std::iter::from_fn(|| agenda.next().map(|(_, e)| e)).collect();
        assert_eq!(order, "abcd");
    }

    #[test]
    fn monotonic_clock_is_monotonic_and_keeps_its_rate() {
        for drift in [-1_000, -70, 0, 70, 1_000] {
            let clock = Clock::new(Instant::now(), drift, 0);
            let mut last = clock.instant(0);
            for now in (0..30 * SECOND).step_by(9_973) {
                let shown = clock.instant(now);
                assert!(shown >= last, "{drift} at {now}");
                last = shown;
            }
            let hour = clock.instant(3_600 * SECOND) - clock.instant(0);
            let ahead = i64::try_from(hour.as_micros()).unwrap() - 3_600_000_000;
            assert_eq!(ahead, 3_600 * drift);
        }
    }

    #[test]
    fn drifting_clock_reaches_its_deadline() {
        for drift in [-50_000, -70, 0, 70, 50_000] {
            let clock = Clock::new(Instant::now(), drift, 0);
            for span in [1, 999, 1_000_000, 7_654_321] {
                let now = 3_333_333;
                let due = clock.instant(now) + Duration::from_micros(span);
                let at = clock.time_of(now, due);
                assert!(clock.instant(at) >= due, "{drift} {span}");
                assert!(
                    at <= now + span + span / 10 + 100_000,
                    "{drift} {span} {at}"
                );
            }
        }
    }
}
