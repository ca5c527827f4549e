//! Members that reject this node as a non-member, with the duration of their rejections. Pure.
//!
//! A single rejection is no proof: a member may not have applied the record of a node that just
//! joined, or may have stopped before it applied a new certificate. So a member counts only after
//! it has repeated its rejection for [`MIN_DURATION`], and while it repeats it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Duration of repeated rejections after which a member counts.
pub const MIN_DURATION: Duration = Duration::from_secs(10);
/// Longest time between two rejections of one series: more than the longest dial backoff plus the
/// longest dial.
const MAX_GAP: Duration = Duration::from_secs(15);

/// Series of rejections by hostname of the rejecting member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rejections(BTreeMap<String, Series>);

/// Uninterrupted rejections of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Series {
    first: Instant,
    last: Instant,
}

impl Rejections {
    /// Handles a rejection of this node by `host`.
    pub fn handle_rejected(&mut self, now: Instant, host: &str) {
        let series = self.0.entry(host.to_owned()).or_insert(Series {
            first: now,
            last: now,
        });
        if now.saturating_duration_since(series.last) > MAX_GAP {
            series.first = now;
        }
        series.last = now;
    }

    /// Handles a dial of `host` that was accepted or not answered; ends its series.
    pub fn handle_not_rejected(&mut self, host: &str) {
        self.0.remove(host);
    }

    /// Handles a change of the members; ends the series of hosts that are none.
    pub fn handle_members(&mut self, is_member: impl Fn(&str) -> bool) {
        self.0.retain(|host, _| is_member(host));
    }

    /// Members whose last outcome was a rejection.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Members that are still rejecting at `now` and have done so for at least [`MIN_DURATION`].
    #[must_use]
    pub fn certain(&self, now: Instant) -> BTreeSet<String> {
        let certain = |series: &Series| {
            series.last.saturating_duration_since(series.first) >= MIN_DURATION
                && now.saturating_duration_since(series.last) <= MAX_GAP
        };
        let hosts = self.0.iter().filter(|(_, series)| certain(series));
        hosts.map(|(host, _)| host.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outcome of a dial of member `a` at a second, and whether its rejection is expected to be
    /// certain.
    enum Did {
        Rejected(u64, bool),
        Other(u64),
        Nothing(u64, bool),
    }

    #[test]
    fn rejection_counts_only_while_repeated_long_enough() {
        use Did::{Nothing, Other, Rejected};
        let start = Instant::now();
        let table: &[(&str, &[Did])] = &[
            ("once", &[Rejected(0, false), Nothing(10, false)]),
            (
                "once, and then it was gone",
                &[Rejected(0, false), Other(1), Nothing(12, false)],
            ),
            (
                "again and again",
                &[
                    Rejected(0, false),
                    Rejected(4, false),
                    Rejected(9, false),
                    Rejected(10, true),
                    Nothing(25, true),
                    Nothing(26, false),
                ],
            ),
            (
                "it answered in between",
                &[
                    Rejected(0, false),
                    Rejected(5, false),
                    Other(6),
                    Rejected(11, false),
                    Rejected(20, false),
                    Rejected(21, true),
                    Other(22),
                    Nothing(22, false),
                ],
            ),
            (
                "this node slept in between",
                &[Rejected(0, false), Rejected(16, false), Rejected(26, true)],
            ),
            (
                "at the longest intervals",
                &[Rejected(0, false), Rejected(15, true), Rejected(30, true)],
            ),
        ];
        for (case, steps) in table {
            let mut rejections = Rejections::default();
            for step in *steps {
                let (at, certain) = match *step {
                    Rejected(at, certain) => {
                        rejections.handle_rejected(start + Duration::from_secs(at), "a");
                        (at, certain)
                    }
                    Other(at) => {
                        assert_eq!(rejections.hosts().count(), 1, "{case} at {at}");
                        rejections.handle_not_rejected("a");
                        assert_eq!(rejections.hosts().count(), 0, "{case} at {at}");
                        (at, false)
                    }
                    Nothing(at, certain) => (at, certain),
                };
                let found = rejections.certain(start + Duration::from_secs(at));
                assert_eq!(found.contains("a"), certain, "{case} at {at}");
            }
        }
    }

    #[test]
    fn rejections_are_counted_per_member() {
        let start = Instant::now();
        let mut rejections = Rejections::default();
        rejections.handle_rejected(start, "a");
        rejections.handle_rejected(start, "b");
        let later = start + MIN_DURATION;
        rejections.handle_rejected(later, "a");
        assert_eq!(rejections.certain(later), BTreeSet::from(["a".to_owned()]));
        assert_eq!(rejections.hosts().collect::<Vec<_>>(), ["a", "b"]);
        rejections.handle_members(|host| host == "b");
        assert_eq!(rejections.hosts().collect::<Vec<_>>(), ["b"]);
        assert!(rejections.certain(later).is_empty());
    }
}
