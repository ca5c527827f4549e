//! Rate limits for callers that guess tokens, by client network: an IPv4 address or an IPv6 /64.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    time::{Duration, Instant},
};

use super::client_network::client_network;

/// Failed checks that a client may make in one second before its answers are delayed.
const BURST: u32 = 10;
/// Delay of each answer past the burst.
const DELAY: Duration = Duration::from_secs(1);
/// Limit of client networks that are kept.
const CLIENTS: usize = 4096;

/// Counts failed token checks by client network in windows of one second.
#[derive(Debug, Default)]
pub struct FailureLimiter {
    windows: HashMap<IpAddr, (Instant, u32)>,
}

impl FailureLimiter {
    /// Records a failed check from `address` and returns the delay of its answer. With windows of
    /// too many networks open, that of a further one is delayed.
    pub fn failed(&mut self, now: Instant, address: IpAddr) -> Duration {
        let client = client_network(address);
        if self.windows.len() >= CLIENTS && !self.windows.contains_key(&client) {
            self.windows
                .retain(|_, (start, _)| now.duration_since(*start) < DELAY);
            if self.windows.len() >= CLIENTS {
                return DELAY;
            }
        }
        let (start, count) = self.windows.entry(client).or_insert((now, 0));
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

/// Joins that a client may attempt within the window.
const JOINS: usize = 5;
/// Window in which joins are counted.
const JOIN_WINDOW: Duration = Duration::from_secs(60);

/// Counts attempts to join by client network, within the window.
///
/// The number of networks is bounded; of more it forgets the one whose last attempt is the oldest: a
/// client that fills the table must not keep others from joining.
#[derive(Debug, Default)]
pub struct JoinLimiter {
    /// Times of the attempts, oldest first; never empty.
    attempts: HashMap<IpAddr, VecDeque<Instant>>,
}

impl JoinLimiter {
    /// Records an attempt from `address`.
    ///
    /// # Errors
    ///
    /// Time until the client may try again, if it made too many; the attempt is not counted then.
    pub fn attempt(&mut self, now: Instant, address: IpAddr) -> Result<(), Duration> {
        let client = client_network(address);
        if self.attempts.len() >= CLIENTS && !self.attempts.contains_key(&client) {
            self.evict(now);
        }
        let times = self.attempts.entry(client).or_default();
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

    /// Uncounts the last attempt from `address`, which was successful.
    pub fn uncount(&mut self, address: IpAddr) {
        let client = client_network(address);
        if let Some(times) = self.attempts.get_mut(&client) {
            times.pop_back();
            if times.is_empty() {
                self.attempts.remove(&client);
            }
        }
    }

    /// Drops the networks without an attempt in the window or, if every one has some, the network
    /// whose last attempt is the oldest.
    fn evict(&mut self, now: Instant) {
        let last = |times: &VecDeque<Instant>| times.back().copied();
        self.attempts.retain(|_, times| {
            last(times).is_some_and(|last| now.duration_since(last) < JOIN_WINDOW)
        });
        if self.attempts.len() < CLIENTS {
            return;
        }
        let oldest = self.attempts.iter().min_by_key(|(_, times)| last(times));
        if let Some(oldest) = oldest.map(|(client, _)| *client) {
            self.attempts.remove(&oldest);
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
    fn joins_of_one_network_count_together() {
        for (addresses, other) in [
            (
                ["2001:db8::1", "2001:db8::2", "2001:db8::ffff:0:0:1"],
                "2001:db8:0:1::1",
            ),
            (["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1"], "10.0.0.2"),
        ] {
            let mut limiter = JoinLimiter::default();
            let now = Instant::now();
            let ip = |text: &str| text.parse::<IpAddr>().unwrap();
            for attempt in 0..JOINS {
                assert_eq!(limiter.attempt(now, ip(addresses[attempt % 3])), Ok(()));
            }
            for address in addresses {
                assert_eq!(limiter.attempt(now, ip(address)), Err(JOIN_WINDOW));
            }
            assert_eq!(limiter.attempt(now, ip(other)), Ok(()));
        }
    }

    #[test]
    fn full_join_table_forgets_the_oldest_network() {
        let mut limiter = JoinLimiter::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let host = |n: u64| IpAddr::from(Ipv4Addr::from(u32::try_from(n).unwrap()));
        let (first, second) = (host(0), host(1));
        for _ in 0..JOINS {
            assert_eq!(limiter.attempt(at(0), first), Ok(()));
            assert_eq!(limiter.attempt(at(1), second), Ok(()));
        }
        let all = CLIENTS as u64;
        for n in 2..all {
            assert_eq!(limiter.attempt(at(n), host(n)), Ok(()));
        }
        // A further network gets in at the cost of the one that was quiet for the longest time.
        assert_eq!(limiter.attempt(at(all), host(all)), Ok(()));
        assert_eq!(limiter.attempts.len(), CLIENTS);
        assert!(limiter.attempt(at(all), second).is_err());
        assert_eq!(limiter.attempt(at(all), first), Ok(()));
    }

    #[test]
    fn successful_join_leaves_no_entry() {
        let mut limiter = JoinLimiter::default();
        let address = IpAddr::from([10, 0, 0, 1]);
        limiter.attempt(Instant::now(), address).unwrap();
        limiter.uncount(address);
        assert!(limiter.attempts.is_empty());
    }

    #[test]
    fn number_of_addresses_is_bounded() {
        let mut limiter = FailureLimiter::default();
        let start = Instant::now();
        for i in 0..(CLIENTS as u32 * 2) {
            limiter.failed(start, IpAddr::from(Ipv4Addr::from(i)));
        }
        assert!(limiter.windows.len() <= CLIENTS);
    }
}
