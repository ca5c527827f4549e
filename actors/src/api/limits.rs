//! Slows down callers that guess tokens.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

/// Failed checks an address may make in one second before its answers are delayed.
const BURST: u32 = 10;
/// Delay of each answer past the burst.
const DELAY: Duration = Duration::from_secs(1);
/// Addresses kept; beyond it the windows that have passed are dropped first.
const ADDRESSES: usize = 4096;

/// Counts failed token checks by address in windows of one second.
#[derive(Debug, Default)]
pub(crate) struct FailureLimiter {
    windows: HashMap<IpAddr, (Instant, u32)>,
}

impl FailureLimiter {
    /// Records a failed check and returns how long its answer is held back.
    pub(crate) fn failed(&mut self, address: IpAddr, now: Instant) -> Duration {
        if self.windows.len() >= ADDRESSES && !self.windows.contains_key(&address) {
            self.windows
                .retain(|_, (start, _)| now.duration_since(*start) < DELAY);
            if self.windows.len() >= ADDRESSES {
                return DELAY;
            }
        }
        let (start, count) = self.windows.entry(address).or_insert((now, 0));
        if now.duration_since(*start) >= Duration::from_secs(1) {
            (*start, *count) = (now, 0);
        }
        *count += 1;
        if *count > BURST {
            DELAY
        } else {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_eleventh_failure_in_a_second_is_delayed_and_the_next_second_is_not() {
        let mut limiter = FailureLimiter::default();
        let (a, b) = (
            IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)),
            IpAddr::from([10, 0, 0, 2]),
        );
        let start = Instant::now();
        for _ in 0..BURST {
            assert_eq!(limiter.failed(a, start), Duration::ZERO);
        }
        assert_eq!(limiter.failed(a, start), DELAY);
        assert_eq!(limiter.failed(b, start), Duration::ZERO);
        assert_eq!(
            limiter.failed(a, start + Duration::from_secs(1)),
            Duration::ZERO
        );
    }

    #[test]
    fn memory_is_bounded_however_many_addresses_fail() {
        let mut limiter = FailureLimiter::default();
        let start = Instant::now();
        for i in 0..(ADDRESSES as u32 * 2) {
            limiter.failed(IpAddr::from(Ipv4Addr::from(i)), start);
        }
        assert!(limiter.windows.len() <= ADDRESSES);
    }
}
