//! Waits after failed orders; memory of the leader.

use std::time::{Duration, Instant};

use super::{FailureClass, OrderFailure};

const MINUTE: Duration = Duration::from_secs(60);
/// Longest wait that grows with the number of failures, and wait after a rate limit or a staging
/// certificate that failed its check.
pub const HOUR: Duration = Duration::from_secs(3600);
/// Shortest time between the end of an order and the next one.
const MIN_PAUSE: Duration = Duration::from_secs(10);
/// Longest wait that an authority may ask for.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(7 * 24 * 3600);

/// Part of an attempt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The certificate of the staging directory does not fit the domain.
    SelfCheck,
    /// An order from staging, a renewal, or an order without staging before it.
    Order,
    /// The order from production that follows staging.
    Promotion,
}

/// Consecutive failures of one domain and the end of the wait they cause.
#[derive(Clone, Debug, Default)]
pub struct Backoff {
    orders: u32,
    promotions: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// Records a failure and returns the wait it causes.
    pub fn handle_failure(
        &mut self,
        now: Instant,
        failed: Failed,
        failure: &OrderFailure,
    ) -> Duration {
        let own = match failed {
            Failed::SelfCheck => HOUR,
            Failed::Order => {
                self.orders = self.orders.saturating_add(1);
                doubled(MINUTE, self.orders)
            }
            Failed::Promotion => {
                self.promotions = self.promotions.saturating_add(1);
                doubled(15 * MINUTE, self.promotions)
            }
        };
        let limit = match failure.class {
            FailureClass::RateLimit => HOUR,
            FailureClass::Validation | FailureClass::Transient | FailureClass::Unknown => {
                Duration::ZERO
            }
        };
        let asked = failure.retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
        let wait = own.max(limit).max(asked);
        self.until = Some(now + wait);
        wait
    }

    /// Records that a certificate of the staging directory is stored.
    pub fn handle_staged(&mut self) {
        self.orders = 0;
    }

    /// Records that a certificate of the configured directory is stored, which expires in `left`.
    ///
    /// The next order waits, even if the authority asks for a renewal of everything it issues.
    pub fn handle_issued(&mut self, now: Instant, left: Duration) {
        let pause = (left / 3).clamp(MIN_PAUSE, HOUR);
        *self = Self {
            until: Some(now + pause),
            ..Self::default()
        };
    }

    /// End of the wait; `None` without one.
    #[must_use]
    pub fn until(&self) -> Option<Instant> {
        self.until
    }
}

/// `first` after one failure, doubled by each further one up to an hour.
fn doubled(first: Duration, failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    (first * (1 << doublings)).min(HOUR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_follow_the_table() {
        use Failed::{Order, Promotion, SelfCheck};
        use FailureClass::{RateLimit, Transient, Unknown, Validation};
        let minutes = |n: u32| n * MINUTE;
        // Part that failed, failures in a row, class and Retry-After of the last one, wait.
        let table = [
            (SelfCheck, 1, Unknown, None, 60),
            (SelfCheck, 3, Unknown, None, 60),
            (Order, 1, Validation, None, 1),
            (Order, 2, Transient, None, 2),
            (Order, 3, Unknown, None, 4),
            (Order, 6, Validation, None, 32),
            (Order, 7, Validation, None, 60),
            (Order, 90, Validation, None, 60),
            (Order, 1, RateLimit, None, 60),
            (Order, 1, RateLimit, Some(30), 60),
            (Order, 1, RateLimit, Some(180), 180),
            (Order, 1, Transient, Some(10), 10),
            (Promotion, 1, Transient, None, 15),
            (Promotion, 2, Validation, None, 30),
            (Promotion, 3, Unknown, None, 60),
            (Promotion, 4, Unknown, None, 60),
            (Promotion, 1, RateLimit, None, 60),
            (Promotion, 1, Transient, Some(10), 15),
            (Promotion, 1, Transient, Some(50), 50),
            (Order, 1, RateLimit, Some(u32::MAX / 60), 7 * 24 * 60),
        ];
        for (failed, times, class, retry_after, expected) in table {
            let now = Instant::now();
            let mut backoff = Backoff::default();
            let failure = OrderFailure {
                class,
                retry_after: retry_after.map(minutes),
                reason: String::new(),
            };
            let mut waited = Duration::ZERO;
            for _ in 0..times {
                waited = backoff.handle_failure(now, failed, &failure);
            }
            assert_eq!(waited, minutes(expected), "{failed:?} {times} {class:?}");
            assert_eq!(backoff.until(), Some(now + waited));
        }
    }

    #[test]
    fn success_resets_the_counts() {
        let now = Instant::now();
        let failure = OrderFailure {
            class: FailureClass::Unknown,
            retry_after: None,
            reason: String::new(),
        };
        let mut backoff = Backoff::default();
        backoff.handle_failure(now, Failed::Order, &failure);
        backoff.handle_failure(now, Failed::Promotion, &failure);
        backoff.handle_staged();
        let order = backoff.handle_failure(now, Failed::Order, &failure);
        assert_eq!(order, MINUTE, "staging worked");
        let promotion = backoff.handle_failure(now, Failed::Promotion, &failure);
        assert_eq!(promotion, 30 * MINUTE, "production did not");
        backoff.handle_issued(now, 60 * MINUTE);
        assert_eq!(backoff.until(), Some(now + 20 * MINUTE));
        backoff.handle_issued(now, 90 * 24 * HOUR);
        assert_eq!(backoff.until(), Some(now + HOUR));
        let promotion = backoff.handle_failure(now, Failed::Promotion, &failure);
        assert_eq!(promotion, 15 * MINUTE);
    }
}
