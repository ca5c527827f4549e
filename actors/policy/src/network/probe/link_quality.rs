//! Loss and round-trip time of the paths to other hosts, computed from the allowed probes.

use std::{collections::BTreeMap, time::Duration};

/// Number of probes that the loss is computed from.
pub const WINDOW: u32 = 32;

/// Last probes to one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Window {
    /// One bit per probe, set if it was lost; the newest is the lowest.
    lost: u32,
    probes: u32,
    rtt: Option<Duration>,
}

/// Quality of the path to one host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Fraction of the last probes without an answer, from 0 to 1.
    pub loss: f64,
    /// Round-trip time of the last answered probe.
    pub rtt: Option<Duration>,
}

/// Quality of the paths to all hosts.
#[derive(Clone, Debug, Default)]
pub struct LinkQuality(BTreeMap<String, Window>);

impl LinkQuality {
    /// Handles a probe to `host`: its round-trip time, `None` if it was lost.
    pub fn handle_probe(&mut self, host: &str, rtt: Option<Duration>) {
        let window = self.0.entry(host.to_owned()).or_default();
        window.lost = window.lost << 1 | u32::from(rtt.is_none());
        window.probes = (window.probes + 1).min(WINDOW);
        window.rtt = rtt.or(window.rtt);
    }

    /// Forgets the hosts that `is_member` rejects.
    pub fn retain(&mut self, is_member: impl Fn(&str) -> bool) {
        self.0.retain(|host, _| is_member(host));
    }

    /// Quality of the path to `host`; `None` before the first probe.
    #[must_use]
    pub fn of(&self, host: &str) -> Option<Quality> {
        let window = self.0.get(host)?;
        Some(Quality {
            loss: f64::from(window.lost.count_ones()) / f64::from(window.probes.max(1)),
            rtt: window.rtt,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_is_of_the_last_probes() {
        let mut links = LinkQuality::default();
        assert_eq!(links.of("b"), None);
        let rtt = Duration::from_millis(3);
        links.handle_probe("b", None);
        let expected = |loss, rtt| Some(Quality { loss, rtt });
        assert_eq!(links.of("b"), expected(1.0, None));
        for _ in 0..3 {
            links.handle_probe("b", Some(rtt));
        }
        assert_eq!(links.of("b"), expected(0.25, Some(rtt)));
        for _ in 0..WINDOW {
            links.handle_probe("b", Some(rtt));
        }
        assert_eq!(links.of("b"), expected(0.0, Some(rtt)));
        for _ in 0..WINDOW * 2 {
            links.handle_probe("b", None);
        }
        assert_eq!(links.of("b"), expected(1.0, Some(rtt)));
        links.retain(|host| host != "b");
        assert_eq!(links.of("b"), None);
    }
}
