//! Which connections the API listener keeps: a pure decision, so that strangers take neither the
//! listener from the operators nor the last descriptor from the node.
//!
//! A connection is greeting until its first request is there. Whoever only connects is counted
//! by that, by address and in all; whoever has asked something, but showed no credential, must
//! go on asking.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use rustix::process::{Resource, getrlimit};
use tokio::time::Instant;

/// Time from a handshake to the first request, and of a stranger from one request to the next.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Fewest and most connections at once, whatever the limit of descriptors is.
const FEWEST: usize = 32;
const MOST: usize = 1024;
/// The share of the descriptors that connections may take: the others are for the database, the
/// engine, the members and what is proxied.
const SHARE: u64 = 4;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    connections: usize,
    connections_per_address: usize,
    greetings: usize,
    greetings_per_address: usize,
}

impl Limits {
    /// The limits of a process that may open so many descriptors; `None`: any number.
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

    /// The limits of this process.
    pub(crate) fn of_process() -> Self {
        Self::of(getrlimit(Resource::Nofile).current)
    }
}

/// Counts connections.
#[derive(Debug)]
pub(crate) struct Gate {
    limits: Limits,
    all: Count,
    by_address: HashMap<IpAddr, Count>,
}

/// Connections, and those of them that are greeting.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    connections: usize,
    greetings: usize,
}

impl Gate {
    /// A gate with nobody inside.
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            all: Count::default(),
            by_address: HashMap::new(),
        }
    }

    /// Lets a connection from `address` in, which then is greeting; `false` if there are too many.
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

    /// A connection from `address` has sent its first request.
    pub(super) fn greeted(&mut self, address: IpAddr) {
        let here = self.by_address.get_mut(&key(address));
        for count in here.into_iter().chain([&mut self.all]) {
            count.greetings = count.greetings.saturating_sub(1);
        }
    }

    /// A connection from `address` is closed.
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

/// Who counts as one address: of IPv6 the network of a host, from which it has any number.
fn key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(network).into()
        }
    }
}

/// How long a connection is kept although nothing comes from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guest {
    /// Whether it has sent a request.
    greeted: bool,
    /// Whether it has shown who it is.
    known: bool,
    /// Its calls under way.
    calls: usize,
    /// When the last one ended, or the connection began.
    since: Instant,
}

/// When a connection is closed unless something comes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Never: it is known.
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

    /// Its time begins at `now`.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = now;
    }

    /// A call begins; whether it is the first.
    pub(super) fn begin(&mut self) -> bool {
        self.calls += 1;
        !std::mem::replace(&mut self.greeted, true)
    }

    /// A call was admitted as that of somebody who is known.
    pub(super) fn know(&mut self) {
        self.known = true;
    }

    /// A call has ended.
    pub(super) fn end(&mut self, now: Instant) {
        self.calls = self.calls.saturating_sub(1);
        self.since = now;
    }

    /// When it is closed; a call under way puts that off.
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
    fn the_limits_leave_descriptors_to_the_others() {
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
    fn limits_hold_by_address_and_in_all() {
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
            (a, false), // two greetings of one address
            (b, true),
            (c, true),
            (c, false), // four greetings
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
    fn an_empty_gate_remembers_nobody() {
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
        // Nobody was inside.
        gate.left(a, false);
        assert!(gate.enter(a));
    }

    #[test]
    fn one_host_is_one_address() {
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
    async fn a_stranger_goes_on_asking_and_who_is_known_may_be_silent() {
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
