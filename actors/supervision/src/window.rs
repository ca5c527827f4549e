//! Restart intensity and backoff.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Restart limit: at most `restarts` within any window of `period`.
///
/// The default is 3 restarts in 60 seconds: the fourth failure exhausts the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intensity {
    /// Restarts allowed; with 0 the first failure exhausts the child.
    pub restarts: usize,
    /// Length of the sliding window; a failure of exactly this age no longer counts.
    pub period: Duration,
}

impl Default for Intensity {
    fn default() -> Self {
        Self {
            restarts: 3,
            period: Duration::from_secs(60),
        }
    }
}

/// Delay between a failure and the restart.
///
/// Within a window the first restart is delayed by `first`, the second by `base`, and every further
/// one by twice the previous delay, up to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Delay of the first restart.
    pub first: Duration,
    /// Delay of the second restart.
    pub base: Duration,
    /// Longest delay.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(10),
            base: Duration::from_millis(50),
            max: Duration::from_secs(1),
        }
    }
}

impl Backoff {
    /// Returns the delay of the `nth` restart of a window, counted from 1.
    #[must_use]
    pub fn delay(&self, nth: usize) -> Duration {
        if nth <= 1 {
            return self.first.min(self.max);
        }
        let doublings = u32::try_from(nth - 2).unwrap_or(u32::MAX);
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }
}

/// Restarts within the last period.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    restarts: VecDeque<Instant>,
}

impl Window {
    /// Records a failure at `now`. Returns the number of its restart within the window, counted
    /// from 1, or `None` if the window is full.
    pub(crate) fn admit(&mut self, limit: Intensity, now: Instant) -> Option<usize> {
        self.restarts.retain(|at| is_recent(*at, limit, now));
        if self.restarts.len() >= limit.restarts {
            return None;
        }
        self.restarts.push_back(now);
        Some(self.restarts.len())
    }

    /// Number of restarts that count at `now`.
    pub(crate) fn count(&self, limit: Intensity, now: Instant) -> usize {
        self.restarts
            .iter()
            .filter(|at| is_recent(**at, limit, now))
            .count()
    }

    pub(crate) fn clear(&mut self) {
        self.restarts.clear();
    }
}

fn is_recent(at: Instant, limit: Intensity, now: Instant) -> bool {
    now.saturating_duration_since(at) < limit.period
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fourth_failure_within_period_exhausts() {
        let (limit, start) = (Intensity::default(), Instant::now());
        let at = |secs| start + Duration::from_secs(secs);
        for (failures, last) in [
            (vec![0, 1, 2, 3], None),
            (vec![0, 20, 40, 59], None),
            (vec![0, 20, 40, 60], Some(3)),
            (vec![0, 1, 2, 62], Some(1)),
            (vec![0, 50, 100, 150, 200], Some(2)),
        ] {
            let mut window = Window::default();
            let verdicts: Vec<_> = failures
                .iter()
                .map(|s| window.admit(limit, at(*s)))
                .collect();
            assert_eq!(*verdicts.last().unwrap(), last, "{failures:?}");
        }
    }

    #[test]
    fn zero_intensity_allows_no_restart() {
        let limit = Intensity {
            restarts: 0,
            period: Duration::from_secs(60),
        };
        assert_eq!(Window::default().admit(limit, Instant::now()), None);
    }

    #[test]
    fn backoff_doubles_from_base_up_to_maximum() {
        let waits: Vec<_> = (1..=8)
            .map(|n| Backoff::default().delay(n).as_millis())
            .collect();
        assert_eq!(waits, [10, 50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(Backoff::default().delay(usize::MAX), Duration::from_secs(1));
    }

    proptest! {
        #[test]
        fn no_window_exceeds_the_restart_limit(
            gaps in prop::collection::vec(0u64..40, 1..60),
            allowed in 0usize..5,
        ) {
            let limit = Intensity { restarts: allowed, period: Duration::from_secs(60) };
            let (mut window, mut now, mut granted) = (Window::default(), Instant::now(), vec![]);
            for gap in gaps {
                now += Duration::from_secs(gap);
                let recent = |granted: &[Instant]| {
                    granted.iter().filter(|at| now.duration_since(**at) < limit.period).count()
                };
                let full = recent(&granted) == allowed;
                let verdict = window.admit(limit, now);
                prop_assert_eq!(verdict.is_none(), full);
                if verdict.is_some() {
                    granted.push(now);
                }
                prop_assert_eq!(window.count(limit, now), recent(&granted));
            }
        }
    }
}
