//! Members that reject this node as a non-member, with the duration of their rejections. Pure.
//!
//! A single rejection is no proof: a member may not have applied the record of a node that just
//! joined, or may have stopped before it applied a new certificate. So a member counts only after
//! it has repeated its rejection for [`CERTAIN`], and while it repeats it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Duration of repeated rejections after which a member counts.
const CERTAIN: Duration = Duration::from_secs(10);
/// Longest time between two rejections of one series: more than the longest dial backoff plus the
/// longest dial.
const REPEATED: Duration = Duration::from_secs(15);

/// Series of rejections by hostname of the rejecting member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(BTreeMap<String, Series>);

/// Uninterrupted rejections of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Series {
    first: Instant,
    last: Instant,
}

impl Refusals {
    /// Records that `host` rejected this node at `now`.
    pub(super) fn refused(&mut self, now: Instant, host: &str) {
        let series = self.0.entry(host.to_owned()).or_insert(Series {
            first: now,
            last: now,
        });
        if now.saturating_duration_since(series.last) > REPEATED {
            series.first = now;
        }
        series.last = now;
    }

    /// Ends the series of `host`, which accepted this node or did not answer. Returns whether there
    /// was one.
    pub(super) fn not_refused(&mut self, host: &str) -> bool {
        self.0.remove(host).is_some()
    }

    /// Keeps the series of matching `hosts`. Returns whether any was removed.
    pub(super) fn retain(&mut self, hosts: impl Fn(&str) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|host, _| hosts(host));
        self.0.len() != before
    }

    /// Members whose last outcome was a rejection.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Members that are still rejecting at `now` and have done so for at least [`CERTAIN`].
    #[must_use]
    pub fn certain(&self, now: Instant) -> BTreeSet<String> {
        let certain = |series: &Series| {
            series.last.saturating_duration_since(series.first) >= CERTAIN
                && now.saturating_duration_since(series.last) <= REPEATED
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
        Refused(u64, bool),
        Else(u64),
        Nothing(u64, bool),
    }

    #[test]
    fn rejection_counts_only_while_repeated_long_enough() {
        use Did::{Else, Nothing, Refused};
        let start = Instant::now();
        let table: &[(&str, &[Did])] = &[
            ("once", &[Refused(0, false), Nothing(10, false)]),
            (
                "once, and then it was gone",
                &[Refused(0, false), Else(1), Nothing(12, false)],
            ),
            (
                "again and again",
                &[
                    Refused(0, false),
                    Refused(4, false),
                    Refused(9, false),
                    Refused(10, true),
                    Nothing(25, true),
                    Nothing(26, false),
                ],
            ),
            (
                "it answered in between",
                &[
                    Refused(0, false),
                    Refused(5, false),
                    Else(6),
                    Refused(11, false),
                    Refused(20, false),
                    Refused(21, true),
                    Else(22),
                    Nothing(22, false),
                ],
            ),
            (
                "this node slept in between",
                &[Refused(0, false), Refused(16, false), Refused(26, true)],
            ),
            (
                "at the longest intervals",
                &[Refused(0, false), Refused(15, true), Refused(30, true)],
            ),
        ];
        for (case, steps) in table {
            let mut refusals = Refusals::default();
            for step in *steps {
                let (at, certain) = match *step {
                    Refused(at, certain) => {
                        refusals.refused(start + Duration::from_secs(at), "a");
                        (at, certain)
                    }
                    Else(at) => {
                        assert!(refusals.not_refused("a"), "{case} at {at}");
                        (at, false)
                    }
                    Nothing(at, certain) => (at, certain),
                };
                let found = refusals.certain(start + Duration::from_secs(at));
                assert_eq!(found.contains("a"), certain, "{case} at {at}");
            }
        }
    }

    #[test]
    fn rejections_are_counted_per_member() {
        let start = Instant::now();
        let mut refusals = Refusals::default();
        refusals.refused(start, "a");
        refusals.refused(start, "b");
        let later = start + CERTAIN;
        refusals.refused(later, "a");
        assert_eq!(refusals.certain(later), BTreeSet::from(["a".to_owned()]));
        assert_eq!(refusals.hosts().collect::<Vec<_>>(), ["a", "b"]);
        assert!(refusals.retain(|host| host == "b"));
        assert!(!refusals.retain(|host| host == "b"));
        assert!(refusals.certain(later).is_empty());
    }
}
