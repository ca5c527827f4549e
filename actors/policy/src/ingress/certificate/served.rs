//! The certificate that is presented for a domain.

use std::time::SystemTime;

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
