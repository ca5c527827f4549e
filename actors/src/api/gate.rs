//! Connection limits of the API listener, as a pure decision: unauthenticated clients can neither
//! occupy the listener nor use up the node's file descriptors.
//!
//! A connection is pending until its first request arrives; pending connections are limited per
//! address and in total. After its first request, a connection that has not authenticated must keep
//! sending requests.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use rustix::process::{Resource, getrlimit};
use tokio::time::Instant;

/// Time from the handshake to the first request, and between requests without authentication.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Bounds on the number of connections, whatever the limit of descriptors is.
const FEWEST: usize = 32;
const MOST: usize = 1024;
/// Divisor of the descriptor limit that gives the limit of connections: the other descriptors are
/// for the database, the engine, the members and proxied connections.
const SHARE: u64 = 4;

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    connections: usize,
    connections_per_address: usize,
    greetings: usize,
    greetings_per_address: usize,
}

impl Limits {
    /// Limits of a process that may open this many descriptors; `None`: unlimited.
    fn of(descriptors: Option<u64>) -> Self {
        let share = descriptors.map_or(MOST, |n| usize::try_from(n / SHARE).unwrap_or(MOST));
        let connections = share.clamp(FEWEST, MOST);
        Self {
            connections,
            connections_per_address: connections / 4,
            greetings: connections / 2,
            greetings_per_address: connections / 8,
        }
    }

    /// Limits of this process.
    pub(crate) fn of_process() -> Self {
        Self::of(getrlimit(Resource::Nofile).current)
    }
}

/// Counts connections against the limits.
#[derive(Debug)]
pub(crate) struct Gate {
    limits: Limits,
    all: Count,
    by_address: HashMap<IpAddr, Count>,
}

/// Number of connections, and of those that are pending.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    connections: usize,
    greetings: usize,
}

impl Gate {
    /// Returns a limiter that counts no connection yet.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            all: Count::default(),
            by_address: HashMap::new(),
        }
    }

    /// Counts a connection from `address`, pending at first; `false` if a limit is reached.
    pub(super) fn enter(&mut self, address: IpAddr) -> bool {
        let limits = self.limits;
        let here = self.by_address.get(&key(address)).copied();
        let here = here.unwrap_or_default();
        let full = self.all.connections >= limits.connections
            || self.all.greetings >= limits.greetings
            || here.connections >= limits.connections_per_address
            || here.greetings >= limits.greetings_per_address;
        if full {
            return false;
        }
        for count in [
            &mut self.all,
            self.by_address.entry(key(address)).or_default(),
        ] {
            count.connections += 1;
            count.greetings += 1;
        }
        true
    }

    /// Records the first request of a connection from `address`.
    pub(super) fn greeted(&mut self, address: IpAddr) {
        let here = self.by_address.get_mut(&key(address));
        for count in here.into_iter().chain([&mut self.all]) {
            count.greetings = count.greetings.saturating_sub(1);
        }
    }

    /// Removes a closed connection from `address`.
    pub(super) fn left(&mut self, address: IpAddr, greeted: bool) {
        if !greeted {
            self.greeted(address);
        }
        self.all.connections = self.all.connections.saturating_sub(1);
        if let Some(here) = self.by_address.get_mut(&key(address)) {
            here.connections = here.connections.saturating_sub(1);
            if here.connections == 0 {
                self.by_address.remove(&key(address));
            }
        }
    }
}

/// Address under which a connection is counted: for IPv6 its /64 network, in which one host can
/// have any number of addresses.
fn key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(network).into()
        }
    }
}

/// Decides how long an idle connection is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guest {
    /// Whether it has sent a request.
    greeted: bool,
    /// Whether it has authenticated.
    known: bool,
    /// Number of calls in progress.
    calls: usize,
    /// When the last one ended, or the connection began.
    since: Instant,
}

/// Time at which a connection is closed unless a request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Never: it has authenticated.
    Never,
    /// Not before this time.
    At(Instant),
}

impl Guest {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            greeted: false,
            known: false,
            calls: 0,
            since: now,
        }
    }

    pub(super) fn greeted(&self) -> bool {
        self.greeted
    }

    /// Restarts the idle time at `now`.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = now;
    }

    /// Begins a call; returns whether it is the first.
    pub(super) fn begin(&mut self) -> bool {
        self.calls += 1;
        !std::mem::replace(&mut self.greeted, true)
    }

    /// Records that a call was authenticated.
    pub(super) fn know(&mut self) {
        self.known = true;
    }

    /// Ends a call.
    pub(super) fn end(&mut self, now: Instant) {
        self.calls = self.calls.saturating_sub(1);
        self.since = now;
    }

    /// Time at which the connection is closed; a call in progress postpones it.
    pub(super) fn due(&self, now: Instant) -> Due {
        match self {
            Self { known: true, .. } => Due::Never,
            Self { calls: 0, .. } => Due::At(self.since + PATIENCE),
            Self { .. } => Due::At(now + PATIENCE),
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
            let limits = Limits::of(descriptors);
            let found = [
                limits.connections,
                limits.connections_per_address,
                limits.greetings,
                limits.greetings_per_address,
            ];
            assert_eq!(found, expected, "{descriptors:?}");
        }
    }

    #[test]
    fn limits_hold_per_address_and_in_total() {
        let mut gate = Gate::new(Limits {
            connections: 6,
            connections_per_address: 3,
            greetings: 4,
            greetings_per_address: 2,
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
            assert_eq!(gate.enter(address), expected, "{at}");
        }
        gate.greeted(a);
        gate.greeted(a);
        assert!(gate.enter(a));
        gate.greeted(a);
        assert!(!gate.enter(a), "three connections of one address");
        assert!(gate.enter(b));
        gate.greeted(b);
        gate.greeted(b);
        assert!(!gate.enter(c), "six connections");
        gate.left(a, true);
        assert!(gate.enter(c));
    }

    #[test]
    fn closed_connections_leave_no_entry() {
        let mut gate = Gate::new(Limits::of(None));
        let (a, b) = (ip("10.0.0.1"), ip("fd00::1"));
        for address in [a, b] {
            assert!(gate.enter(address) && gate.enter(address));
            gate.greeted(address);
            gate.left(address, true);
            gate.left(address, false);
        }
        assert!(gate.by_address.is_empty());
        assert_eq!((gate.all.connections, gate.all.greetings), (0, 0));
        // Removing a connection that was not counted changes nothing.
        gate.left(a, false);
        assert!(gate.enter(a));
    }

    #[test]
    fn addresses_of_one_host_share_a_key() {
        for (one, other, same) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("127.0.0.1", "127.0.0.1", true),
        ] {
            assert_eq!(key(ip(one)) == key(ip(other)), same, "{one} {other}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_authenticated_connections_may_stay_idle() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut guest = Guest::new(start);
        assert_eq!(guest.due(at(3)), Due::At(start + PATIENCE));
        assert!(!guest.greeted());
        assert!(guest.begin());
        assert!(guest.greeted());
        assert_eq!(guest.due(at(60)), Due::At(at(60) + PATIENCE), "a long call");
        assert!(!guest.begin(), "no longer the first");
        guest.end(at(61));
        assert_eq!(guest.due(at(62)), Due::At(at(62) + PATIENCE));
        guest.end(at(63));
        assert_eq!(guest.due(at(70)), Due::At(at(63) + PATIENCE));
        guest.begin();
        guest.know();
        guest.end(at(71));
        assert_eq!(guest.due(at(9999)), Due::Never);
    }
}
