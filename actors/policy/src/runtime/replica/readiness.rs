//! When a container that is up counts as running.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Delay of the first connections after a start; the delay of further ones doubles.
pub const FIRST_PROBE: Duration = Duration::from_millis(50);
/// Longest delay between two attempts to connect.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Time up after which a container is ready although a port has accepted no connection: the ports of
/// a service need not all be open from its start on, nor at all.
pub const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// Time after which a container is checked again while it is not known what shows that it is ready.
const RETRY: Duration = Duration::from_secs(1);
/// Time up after which a container without anything to connect to is ready.
pub const UPTIME: Duration = Duration::from_secs(1);

/// Evidence that a container which is up is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The health check that its service declares.
    Healthcheck,
    /// Each of these TCP ports has accepted a connection.
    Ports(BTreeSet<u16>),
    /// The time that it has been up.
    Uptime,
    /// Not known for now, because the document lacks the service: one that has been ready stays so.
    Unknown,
}

impl Readiness {
    /// Creates the readiness of a service without a health check that has these TCP ports.
    #[must_use]
    pub fn of_ports(ports: BTreeSet<u16>) -> Self {
        match ports.is_empty() {
            true => Self::Uptime,
            false => Self::Ports(ports),
        }
    }
}

/// Progress of a container without a health check towards being ready; it begins anew with each start
/// of the container.
#[derive(Debug)]
pub(super) struct Startup {
    /// `None` while the container is not up.
    up: Option<Up>,
}

#[derive(Debug)]
struct Up {
    /// Start of the container, as the engine writes it; `None` before the first inspection.
    start: Option<String>,
    since: Instant,
    /// Ports that have accepted a connection.
    accepted: BTreeSet<u16>,
    next_probe: Instant,
    delay: Duration,
    is_ready: bool,
}

impl Up {
    fn new(now: Instant, start: Option<String>) -> Self {
        Self {
            start,
            since: now,
            accepted: BTreeSet::new(),
            next_probe: now + FIRST_PROBE,
            delay: FIRST_PROBE,
            is_ready: false,
        }
    }

    /// Ready from `limit` on in any case.
    fn verdict(&mut self, now: Instant, limit: Instant, closed: Option<u16>) -> Verdict {
        self.is_ready |= limit <= now;
        match self.is_ready {
            true => Verdict::Ready,
            false => Verdict::NotYet(limit, closed),
        }
    }
}

/// Whether a container is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Ready,
    /// To be checked again at this time; the port, if any, has accepted no connection.
    NotYet(Instant, Option<u16>),
}

impl Startup {
    /// A container whose state is not known.
    pub(super) fn unknown() -> Self {
        Self { up: None }
    }

    /// A container that was started now.
    pub(super) fn started(now: Instant) -> Self {
        let up = Up::new(now, None);
        Self { up: Some(up) }
    }

    /// A container that has been ready before, in this start if it is known.
    pub(super) fn ready(now: Instant, start: Option<String>) -> Self {
        let up = Up {
            is_ready: true,
            ..Up::new(now, start)
        };
        Self { up: Some(up) }
    }

    /// The container is not up.
    pub(super) fn reset(&mut self) {
        self.up = None;
    }

    /// The container is up since this start.
    pub(super) fn see(&mut self, now: Instant, start: &str) {
        let up = self.up.get_or_insert_with(|| Up::new(now, None));
        match &up.start {
            Some(known) if known == start => {}
            Some(_) => *up = Up::new(now, Some(start.to_owned())),
            None => up.start = Some(start.to_owned()),
        }
    }

    /// Ports to connect to now; none unless the time for it has come.
    pub(super) fn probe(&self, readiness: &Readiness) -> BTreeSet<u16> {
        match (readiness, &self.up) {
            (Readiness::Ports(ports), Some(up)) if !up.is_ready => {
                ports.difference(&up.accepted).copied().collect()
            }
            (Readiness::Ports(_), _)
            | (Readiness::Healthcheck | Readiness::Uptime | Readiness::Unknown, _) => {
                BTreeSet::new()
            }
        }
    }

    /// Derives whether a container that is up is ready. `accepted` are the ports that accepted a
    /// connection in this inspection, `None` if no connection was made.
    pub(super) fn check(
        &mut self,
        now: Instant,
        readiness: &Readiness,
        has_address: bool,
        accepted: Option<BTreeSet<u16>>,
    ) -> Verdict {
        let Some(up) = &mut self.up else {
            return Verdict::NotYet(now + FIRST_PROBE, None);
        };
        if let Some(accepted) = accepted {
            up.accepted.extend(accepted);
            up.delay = up.delay.saturating_mul(2).min(PROBE_INTERVAL);
            up.next_probe = now + up.delay;
        }
        let ports = match readiness {
            Readiness::Ports(ports) if has_address => ports,
            Readiness::Ports(_) | Readiness::Healthcheck | Readiness::Uptime => {
                return up.verdict(now, up.since + UPTIME, None);
            }
            Readiness::Unknown if up.is_ready => return Verdict::Ready,
            Readiness::Unknown => return Verdict::NotYet(now + RETRY, None),
        };
        let closed = ports.difference(&up.accepted).next().copied();
        up.is_ready |= closed.is_none();
        let limit = up.since + PROBE_LIMIT;
        match up.verdict(now, limit, closed) {
            Verdict::NotYet(limit, closed) => Verdict::NotYet(limit.min(up.next_probe), closed),
            Verdict::Ready => Verdict::Ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ports(ports: &[u16]) -> BTreeSet<u16> {
        ports.iter().copied().collect()
    }

    /// Checks a started container whenever it asks for it; returns the time in milliseconds from its
    /// start until it is ready, and the times of its probes. `opens` is the time from which a port
    /// accepts connections.
    fn follow(
        readiness: &Readiness,
        has_address: bool,
        opens: impl Fn(u16) -> u64,
    ) -> (u64, Vec<u64>) {
        let start = Instant::now();
        let mut startup = Startup::started(start);
        let mut probes = Vec::new();
        let mut now = start;
        let mut accepted = None;
        loop {
            startup.see(now, "today");
            match startup.check(now, readiness, has_address, accepted) {
                Verdict::Ready => return ((now - start).as_millis() as u64, probes),
                Verdict::NotYet(next, _) => now = now.max(next),
            }
            let passed = (now - start).as_millis() as u64;
            let asked = startup.probe(readiness);
            if !asked.is_empty() {
                probes.push(passed);
            }
            accepted = Some(
                asked
                    .into_iter()
                    .filter(|port| opens(*port) <= passed && has_address)
                    .collect(),
            );
        }
    }

    #[test]
    fn ports_are_tried_at_doubling_delays() {
        let readiness = Readiness::of_ports(ports(&[80, 443]));
        let never = |_| u64::MAX;
        let (ready, probes) = follow(&readiness, true, never);
        assert_eq!(ready, 5_000);
        assert_eq!(probes[..6], [50, 150, 350, 750, 1_250, 1_750]);
        assert_eq!(follow(&readiness, true, |_| 0), (50, vec![50]));
        let (ready, probes) = follow(&readiness, true, |port| if port == 80 { 0 } else { 300 });
        assert_eq!((ready, probes), (350, vec![50, 150, 350]));
    }

    #[test]
    fn without_something_to_connect_to_time_decides() {
        let some = Readiness::of_ports(ports(&[80]));
        for (readiness, has_address) in [
            (Readiness::Uptime, true),
            (Readiness::Uptime, false),
            (some, false),
        ] {
            let (ready, _) = follow(&readiness, has_address, |_| 0);
            assert_eq!(ready, 1_000, "{readiness:?} {has_address}");
        }
        assert_eq!(Readiness::of_ports(BTreeSet::new()), Readiness::Uptime);
    }

    #[test]
    fn unknown_service_changes_nothing() {
        let now = Instant::now();
        let later = now + PROBE_LIMIT;
        let mut startup = Startup::started(now);
        startup.see(later, "today");
        let verdict = startup.check(later, &Readiness::Unknown, true, None);
        assert_eq!(verdict, Verdict::NotYet(later + RETRY, None));
        let mut ready = Startup::ready(now, None);
        ready.see(later, "today");
        let verdict = ready.check(later, &Readiness::Unknown, true, None);
        assert_eq!(verdict, Verdict::Ready);
    }

    #[test]
    fn port_that_has_accepted_is_not_tried_again() {
        let readiness = Readiness::of_ports(ports(&[80, 443]));
        let now = Instant::now();
        let mut startup = Startup::started(now);
        assert_eq!(startup.probe(&readiness), ports(&[80, 443]));
        let verdict = startup.check(now, &readiness, true, Some(ports(&[80])));
        assert!(
            matches!(verdict, Verdict::NotYet(_, Some(443))),
            "{verdict:?}"
        );
        assert_eq!(startup.probe(&readiness), ports(&[443]));
        let verdict = startup.check(now, &readiness, true, Some(ports(&[443])));
        assert_eq!(verdict, Verdict::Ready);
        assert_eq!(startup.probe(&readiness), ports(&[]));
    }

    #[test]
    fn another_start_begins_anew() {
        let readiness = Readiness::of_ports(ports(&[80]));
        let now = Instant::now();
        let mut startup = Startup::ready(now, None);
        startup.see(now, "first");
        assert_eq!(startup.check(now, &readiness, true, None), Verdict::Ready);
        startup.see(now, "second");
        assert!(matches!(
            startup.check(now, &readiness, true, None),
            Verdict::NotYet(..)
        ));
        let mut other = Startup::ready(now, Some("first".to_owned()));
        other.see(now, "second");
        assert_eq!(other.probe(&readiness), ports(&[80]));
        startup.reset();
        assert_eq!(startup.probe(&readiness), ports(&[]));
        startup.see(now, "second");
        assert_eq!(startup.probe(&readiness), ports(&[80]));
    }

    proptest! {
        #[test]
        fn ready_when_all_ports_accept_or_limit_passes(opens in proptest::collection::btree_map(1u16..9, 0u64..9_000, 1..6)) {
            let readiness = Readiness::of_ports(opens.keys().copied().collect());
            let (ready, probes) = follow(&readiness, true, |port| opens[&port]);
            let open = opens.values().copied().max().unwrap_or(0);
            prop_assert!(ready >= open.min(5_000));
            prop_assert!(ready <= (open.max(50) + 500).min(5_000), "{} for {}", ready, open);
            prop_assert!(probes.windows(2).all(|pair| pair[1] - pair[0] <= 500));
        }
    }
}
