//! Rate limits for callers that guess tokens.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    time::{Duration, Instant},
};

/// Failed checks that an address may make in one second before its answers are delayed.
const BURST: u32 = 10;
/// Delay of each answer past the burst.
const DELAY: Duration = Duration::from_secs(1);
/// Limit of addresses kept; at the limit, expired windows are dropped first.
const ADDRESSES: usize = 4096;

/// Counts failed token checks by address in windows of one second.
#[derive(Debug, Default)]
pub struct FailureLimiter {
    windows: HashMap<IpAddr, (Instant, u32)>,
}

impl FailureLimiter {
    /// Records a failed check and returns the delay of its answer.
    pub fn failed(&mut self, now: Instant, address: IpAddr) -> Duration {
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

/// Joins that an address may attempt within the window.
const JOINS: usize = 5;
/// Window in which joins are counted.
const JOIN_WINDOW: Duration = Duration::from_secs(60);

/// Counts attempts to join by address, within the window.
#[derive(Debug, Default)]
pub struct JoinLimiter {
    attempts: HashMap<IpAddr, VecDeque<Instant>>,
}

impl JoinLimiter {
    /// Records an attempt.
    ///
    /// # Errors
    ///
    /// Time until the address may try again, if it made too many; the attempt is not counted then.
    pub fn attempt(&mut self, now: Instant, address: IpAddr) -> Result<(), Duration> {
        if self.attempts.len() >= ADDRESSES && !self.attempts.contains_key(&address) {
            self.attempts.retain(|_, times| {
                let last = times.back();
                last.is_some_and(|last| now.duration_since(*last) < JOIN_WINDOW)
            });
            if self.attempts.len() >= ADDRESSES {
                return Err(JOIN_WINDOW);
            }
        }
        let times = self.attempts.entry(address).or_default();
        while times
            .front()
            .is_some_and(|first| now.duration_since(*first) >= JOIN_WINDOW)
        {
            times.pop_front();
        }
        match times.front() {
            Some(first) if times.len() >= JOINS => Err(JOIN_WINDOW - now.duration_since(*first)),
            Some(_) | None => {
                times.push_back(now);
                Ok(())
            }
        }
    }

    /// Uncounts the last attempt of this address, which was successful.
    pub fn uncount(&mut self, address: IpAddr) {
        if let Some(times) = self.attempts.get_mut(&address) {
            times.pop_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn failures_beyond_the_burst_are_delayed() {
        let mut limiter = FailureLimiter::default();
        let (a, b) = (
            IpAddr::from(Ipv4Addr::new(10, 0, 0, 1)),
            IpAddr::from([10, 0, 0, 2]),
        );
        let start = Instant::now();
        for _ in 0..BURST {
            assert_eq!(limiter.failed(start, a), Duration::ZERO);
        }
        assert_eq!(limiter.failed(start, a), DELAY);
        assert_eq!(limiter.failed(start, b), Duration::ZERO);
        assert_eq!(
            limiter.failed(start + Duration::from_secs(1), a),
            Duration::ZERO
        );
    }

    #[test]
    fn sixth_join_in_a_minute_waits() {
        let address = IpAddr::from([10, 0, 0, 1]);
        let mut limiter = JoinLimiter::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for second in 0..5 {
            assert_eq!(limiter.attempt(at(second), address), Ok(()));
        }
        let wait = Err(Duration::from_secs(50));
        assert_eq!(limiter.attempt(at(10), address), wait);
        assert_eq!(limiter.attempt(at(10), [10, 0, 0, 2].into()), Ok(()));
        limiter.uncount(address);
        assert_eq!(limiter.attempt(at(10), address), Ok(()));
        assert_eq!(
            limiter.attempt(at(59), address),
            Err(Duration::from_secs(1))
        );
        assert_eq!(limiter.attempt(at(60), address), Ok(()));
    }

    #[test]
    fn number_of_addresses_is_bounded() {
        let mut limiter = FailureLimiter::default();
        let start = Instant::now();
        for i in 0..(ADDRESSES as u32 * 2) {
            limiter.failed(start, IpAddr::from(Ipv4Addr::from(i)));
        }
        assert!(limiter.windows.len() <= ADDRESSES);
    }
}
