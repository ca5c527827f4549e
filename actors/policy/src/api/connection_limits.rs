//! Connection limits of the API listener: unauthenticated clients can neither occupy the listener
//! nor use up the node's file descriptors.
//!
//! A connection is pending until its first request arrives; pending connections are limited per
//! address and in total. After its first request, a connection that has not authenticated must keep
//! sending requests.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::client_network::client_network;

/// Time from the handshake to the first request, and between requests without authentication.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bounds on the number of connections, whatever the limit of descriptors is.
const MIN_CONNECTIONS: usize = 32;
const MAX_CONNECTIONS: usize = 1024;
/// Divisor of the descriptor limit that gives the limit of connections: the other descriptors are
/// for the database, the engine, the members and proxied connections.
const DESCRIPTOR_DIVISOR: u64 = 4;

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    connections: usize,
    connections_per_address: usize,
    pending: usize,
    pending_per_address: usize,
}

impl ConnectionLimits {
    /// Limits of a process that may open this many descriptors; `None`: unlimited.
    #[must_use]
    pub fn of(descriptors: Option<u64>) -> Self {
        let share = descriptors.map_or(MAX_CONNECTIONS, |n| {
            usize::try_from(n / DESCRIPTOR_DIVISOR).unwrap_or(MAX_CONNECTIONS)
        });
        let connections = share.clamp(MIN_CONNECTIONS, MAX_CONNECTIONS);
        Self {
            connections,
            connections_per_address: connections / 4,
            pending: connections / 2,
            pending_per_address: connections / 8,
        }
    }
}

/// Counts connections against the limits.
#[derive(Debug)]
pub struct ConnectionLimiter {
    limits: ConnectionLimits,
    all: Count,
    by_address: HashMap<IpAddr, Count>,
}

/// Number of connections, and of those that are pending.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    connections: usize,
    pending: usize,
}

impl ConnectionLimiter {
    /// Returns a limiter that counts no connection yet.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            all: Count::default(),
            by_address: HashMap::new(),
        }
    }

    /// Counts a connection from `address`, pending at first; `false` if a limit is reached.
    pub fn try_open(&mut self, address: IpAddr) -> bool {
        let limits = self.limits;
        let here = self.by_address.get(&client_network(address)).copied();
        let here = here.unwrap_or_default();
        let full = self.all.connections >= limits.connections
            || self.all.pending >= limits.pending
            || here.connections >= limits.connections_per_address
            || here.pending >= limits.pending_per_address;
        if full {
            return false;
        }
        for count in [
            &mut self.all,
            self.by_address.entry(client_network(address)).or_default(),
        ] {
            count.connections += 1;
            count.pending += 1;
        }
        true
    }

    /// Records the first request of a connection from `address`.
    pub fn activated(&mut self, address: IpAddr) {
        let here = self.by_address.get_mut(&client_network(address));
        for count in here.into_iter().chain([&mut self.all]) {
            count.pending = count.pending.saturating_sub(1);
        }
    }

    /// Removes a closed connection from `address`.
    pub fn closed(&mut self, address: IpAddr, activated: bool) {
        if !activated {
            self.activated(address);
        }
        self.all.connections = self.all.connections.saturating_sub(1);
        if let Some(here) = self.by_address.get_mut(&client_network(address)) {
            here.connections = here.connections.saturating_sub(1);
            if here.connections == 0 {
                self.by_address.remove(&client_network(address));
            }
        }
    }
}

/// Decides how long an idle connection is kept.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionState {
    /// Whether it has sent a request.
    activated: bool,
    /// Whether it has authenticated.
    authenticated: bool,
    /// Number of calls in progress.
    calls: usize,
    /// When the last one ended, or the connection began.
    since: Instant,
}

/// Time at which a connection is closed unless a request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleDeadline {
    /// Never: it has authenticated.
    Never,
    /// Not before this time.
    At(Instant),
}

impl ConnectionState {
    /// Returns the state of a connection that began at `now` and has sent no request.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            activated: false,
            authenticated: false,
            calls: 0,
            since: now,
        }
    }

    /// Whether a call has begun.
    #[must_use]
    pub fn activated(&self) -> bool {
        self.activated
    }

    /// Restarts the idle time at `now`.
    pub fn restart(&mut self, now: Instant) {
        self.since = now;
    }

    /// Begins a call; returns whether it is the first.
    pub fn begin(&mut self) -> bool {
        self.calls += 1;
        !std::mem::replace(&mut self.activated, true)
    }

    /// Records that a call was authenticated.
    pub fn authenticate(&mut self) {
        self.authenticated = true;
    }

    /// Ends a call.
    pub fn end(&mut self, now: Instant) {
        self.calls = self.calls.saturating_sub(1);
        self.since = now;
    }

    /// Time at which the connection is closed; a call in progress postpones it.
    #[must_use]
    pub fn due(&self, now: Instant) -> IdleDeadline {
        match self {
            Self {
                authenticated: true,
                ..
            } => IdleDeadline::Never,
            Self { calls: 0, .. } => IdleDeadline::At(self.since + IDLE_TIMEOUT),
            Self { .. } => IdleDeadline::At(now + IDLE_TIMEOUT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn limits_leave_descriptors_for_other_uses() {
        for (descriptors, expected) in [
            (Some(0), [32, 8, 16, 4]),
            (Some(1024), [256, 64, 128, 32]),
            (Some(65_536), [1024, 256, 512, 128]),
            (Some(u64::MAX), [1024, 256, 512, 128]),
            (None, [1024, 256, 512, 128]),
        ] {
            let limits = ConnectionLimits::of(descriptors);
            let found = [
                limits.connections,
                limits.connections_per_address,
                limits.pending,
                limits.pending_per_address,
            ];
            assert_eq!(found, expected, "{descriptors:?}");
        }
    }

    #[test]
    fn limits_hold_per_address_and_in_total() {
        let mut limiter = ConnectionLimiter::new(ConnectionLimits {
            connections: 6,
            connections_per_address: 3,
            pending: 4,
            pending_per_address: 2,
        });
        let (a, b, c) = (ip("10.0.0.1"), ip("10.0.0.2"), ip("10.0.0.3"));
        for (at, (address, expected)) in [
            (a, true),
            (a, true),
            (a, false), // two pending connections of one address
            (b, true),
            (c, true),
            (c, false), // four pending connections
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(limiter.try_open(address), expected, "{at}");
        }
        limiter.activated(a);
        limiter.activated(a);
        assert!(limiter.try_open(a));
        limiter.activated(a);
        assert!(!limiter.try_open(a), "three connections of one address");
        assert!(limiter.try_open(b));
        limiter.activated(b);
        limiter.activated(b);
        assert!(!limiter.try_open(c), "six connections");
        limiter.closed(a, true);
        assert!(limiter.try_open(c));
    }

    #[test]
    fn closed_connections_leave_no_entry() {
        let mut limiter = ConnectionLimiter::new(ConnectionLimits::of(None));
        let (a, b) = (ip("10.0.0.1"), ip("fd00::1"));
        for address in [a, b] {
            assert!(limiter.try_open(address) && limiter.try_open(address));
            limiter.activated(address);
            limiter.closed(address, true);
            limiter.closed(address, false);
        }
        assert!(limiter.by_address.is_empty());
        assert_eq!((limiter.all.connections, limiter.all.pending), (0, 0));
        // Removing a connection that was not counted changes nothing.
        limiter.closed(a, false);
        assert!(limiter.try_open(a));
    }

    #[test]
    fn only_authenticated_connections_may_stay_idle() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut state = ConnectionState::new(start);
        assert_eq!(state.due(at(3)), IdleDeadline::At(start + IDLE_TIMEOUT));
        assert!(!state.activated());
        assert!(state.begin());
        assert!(state.activated());
        assert_eq!(
            state.due(at(60)),
            IdleDeadline::At(at(60) + IDLE_TIMEOUT),
            "a long call"
        );
        assert!(!state.begin(), "no longer the first");
        state.end(at(61));
        assert_eq!(state.due(at(62)), IdleDeadline::At(at(62) + IDLE_TIMEOUT));
        state.end(at(63));
        assert_eq!(state.due(at(70)), IdleDeadline::At(at(63) + IDLE_TIMEOUT));
        state.begin();
        state.authenticate();
        state.end(at(71));
        assert_eq!(state.due(at(9999)), IdleDeadline::Never);
    }
}
