//! The certificate that is presented for a domain.

use std::time::{Duration, SystemTime};

/// Longest wait: the wall clock may be set meanwhile.
pub const CHECK: Duration = Duration::from_secs(3600);

/// Origin of a certificate, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Imported for the domain itself.
    Imported,
    /// Issued by the configured directory.
    Production,
    /// Issued by the staging directory; clients do not trust it.
    Staging,
    /// Imported for all subdomains of the domain's parent.
    ImportedWildcard,
}

/// Certificate that could be presented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<T> {
    /// Its origin.
    pub origin: Origin,
    /// End of its validity.
    pub not_after: SystemTime,
    /// The certificate.
    pub certificate: T,
}

/// Returns the candidate to present at `now`: the preferred one of those that have not expired,
/// else the preferred one of all, as a handshake without any certificate fails for every client.
/// Of several with one origin the one that expires last is preferred.
pub fn select<T>(
    now: SystemTime,
    candidates: impl IntoIterator<Item = Candidate<T>>,
) -> Option<Candidate<T>> {
    candidates.into_iter().min_by(|one, other| {
        let expired = |candidate: &Candidate<T>| candidate.not_after <= now;
        let order = expired(one).cmp(&expired(other));
        let order = order.then(one.origin.cmp(&other.origin));
        order.then(other.not_after.cmp(&one.not_after))
    })
}

/// Time from `now` after which to select again: one of `ends` passes, or [`CHECK`]. `None` if all of
/// them have passed.
pub fn next_check(now: SystemTime, ends: impl IntoIterator<Item = SystemTime>) -> Option<Duration> {
    let left = ends
        .into_iter()
        .filter_map(|end| end.duration_since(now).ok());
    let next = left.filter(|left| !left.is_zero()).min();
    next.map(|left| left.min(CHECK))
}

/// Names that an operator's certificate for `domain` can have, with their origin.
pub fn import_names(domain: &str) -> impl Iterator<Item = (Origin, String)> {
    let exact = (Origin::Imported, domain.to_owned());
    let wildcard = wildcard_of(domain).map(|name| (Origin::ImportedWildcard, name));
    std::iter::once(exact).chain(wildcard)
}

/// Name of the wildcard that covers `domain`: one label is replaced. `None` for a single label.
#[must_use]
pub fn wildcard_of(domain: &str) -> Option<String> {
    let (first, parent) = domain.split_once('.')?;
    (!first.is_empty() && !parent.is_empty() && first != "*").then(|| format!("*.{parent}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn preference_follows_origin_and_validity() {
        use Origin::{Imported, ImportedWildcard, Production, Staging};
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        // Candidates with the seconds to their expiry, and the index of the selected one.
        type Case = (&'static [(Origin, i64)], Option<usize>);
        let table: &[Case] = &[
            (&[], None),
            (
                &[
                    (ImportedWildcard, 9),
                    (Staging, 9),
                    (Production, 9),
                    (Imported, 9),
                ],
                Some(3),
            ),
            (
                &[(ImportedWildcard, 9), (Staging, 9), (Production, 9)],
                Some(2),
            ),
            (&[(ImportedWildcard, 9), (Staging, 9)], Some(1)),
            (&[(ImportedWildcard, 9)], Some(0)),
            (&[(Production, -5)], Some(0)),
            (&[(Imported, -5), (Production, 9)], Some(1)),
            (&[(Production, 0), (ImportedWildcard, 9)], Some(1)),
            (&[(ImportedWildcard, -1), (Imported, -9)], Some(1)),
            (
                &[(Production, 3), (Production, 9), (Production, 5)],
                Some(1),
            ),
        ];
        for (given, expected) in table {
            let candidates = given
                .iter()
                .enumerate()
                .map(|(certificate, (origin, left))| {
                    let at = u64::try_from(1000 + left).unwrap();
                    Candidate {
                        origin: *origin,
                        not_after: SystemTime::UNIX_EPOCH + Duration::from_secs(at),
                        certificate,
                    }
                });
            let selected = select(now, candidates);
            let selected = selected.map(|candidate| candidate.certificate);
            assert_eq!(selected, *expected, "{given:?}");
        }
    }

    #[test]
    fn next_check_is_at_the_next_end() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let hour = CHECK.as_secs();
        // Ends, and the seconds after second 1000 at which to select again.
        let table: &[(&[u64], Option<u64>)] = &[
            (&[], None),
            (&[1, 999, 1000], None),
            (&[1001], Some(1)),
            (&[3000, 1200, 900], Some(200)),
            (&[1_000_000], Some(hour)),
        ];
        for (ends, expected) in table {
            let next = next_check(at(1000), ends.iter().map(|end| at(*end)));
            assert_eq!(next.map(|wait| wait.as_secs()), *expected, "{ends:?}");
        }
    }

    #[test]
    fn wildcard_replaces_one_label() {
        let table = [
            ("a.example.org", Some("*.example.org")),
            ("b.a.example.org", Some("*.a.example.org")),
            ("localhost", None),
            ("*.example.org", None),
        ];
        for (domain, expected) in table {
            assert_eq!(wildcard_of(domain).as_deref(), expected);
        }
    }
}
