//! Which members say that this node is none, and for how long they have. Pure.
//!
//! One refusal says little: a member may not have been told yet of a node that has just joined,
//! or may have learned of a new certificate a moment before it went down. So a member counts only
//! once it has repeated its refusal for long enough, and as long as it goes on.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// How long a member has to go on refusing until it means it.
const CERTAIN: Duration = Duration::from_secs(10);
/// Longest time between two refusals of which the second repeats the first: more than the longest
/// wait between two attempts to connect, and the longest attempt.
const REPEATED: Duration = Duration::from_secs(15);

/// Refusals by the hostname of the member that refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(BTreeMap<String, Series>);

/// Refusals of one member with nothing else in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Series {
    first: Instant,
    last: Instant,
}

impl Refusals {
    /// Notes that `host` refused this node at `now`.
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

    /// Notes that `host` took this node for a member, or did not answer at all. `true` if it had
    /// refused before.
    pub(super) fn not_refused(&mut self, host: &str) -> bool {
        self.0.remove(host).is_some()
    }

    /// Keeps what `hosts` say. `true` if somebody else had refused.
    pub(super) fn retain(&mut self, hosts: impl Fn(&str) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|host, _| hosts(host));
        self.0.len() != before
    }

    /// Members whose last word was a refusal.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Members that go on refusing at `now` and have done so for long enough.
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

    /// What member `a` did at a second, and whether it is certain then that it refuses.
    enum Did {
        Refused(u64, bool),
        Else(u64),
        Nothing(u64, bool),
    }

    #[test]
    fn a_refusal_counts_once_it_was_repeated_for_long_enough_and_while_it_is() {
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
    fn each_member_speaks_for_itself() {
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
