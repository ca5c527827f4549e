//! The certificate rows of `jaco status`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use jaco_proto::{
    timestamp,
    v1::{AuditEventType, CertState},
};
use jaco_state::State;
use prost_types::Timestamp;

use super::store;

/// Latest events of a domain.
#[derive(Default)]
struct Latest {
    stored_at: Option<Timestamp>,
    environment: String,
}

/// Rows of those of `domains` about which something is known, by domain.
///
/// `not_after` reads the end of a leaf's validity from a chain in PEM.
#[must_use]
pub fn rows(
    state: &State,
    domains: &BTreeSet<&str>,
    not_after: impl Fn(&[u8]) -> Option<SystemTime>,
) -> Vec<CertState> {
    if domains.is_empty() {
        return Vec::new();
    }
    let latest = latest(state, domains);
    let rows = domains.iter().filter_map(|domain| {
        let stored = store::certificates(state, domain).filter_map(|stored| {
            let environment = store::environment(stored.directory);
            Some((environment, not_after(&stored.chain.value)?))
        });
        // `Prod` is the greater one.
        let best = stored.max_by_key(|(environment, end)| (*environment, *end));
        let latest = latest.get(domain);
        if best.is_none() && latest.is_none() {
            return None;
        }
        let audited = latest.map_or("", |latest| latest.environment.as_str());
        let environment = match (best, audited) {
            (Some((environment, _)), _) => environment.as_str(),
            (None, "") => "unknown",
            (None, audited) => audited,
        };
        Some(CertState {
            domain: (*domain).to_owned(),
            environment: environment.to_owned(),
            not_after: best.map(|(_, end)| timestamp(end)),
            last_renewal_at: latest.and_then(|latest| latest.stored_at),
        })
    });
    rows.collect()
}

/// Newest event about a stored certificate of each domain.
fn latest<'a>(state: &'a State, domains: &BTreeSet<&'a str>) -> BTreeMap<&'a str, Latest> {
    let mut latest = BTreeMap::new();
    for event in state.audit.values().rev() {
        if latest.len() == domains.len() {
            break;
        }
        let is_stored = matches!(
            event.r#type(),
            AuditEventType::CertificateIssued | AuditEventType::CertificateRenewed
        );
        let domain = event.payload.get("domain").filter(|_| is_stored);
        let Some(domain) = domain.and_then(|domain| domains.get(domain.as_str())) else {
            continue;
        };
        latest.entry(*domain).or_insert_with(|| Latest {
            stored_at: event.ts,
            environment: event
                .payload
                .get("acme_environment")
                .cloned()
                .unwrap_or_default(),
        });
    }
    latest
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use jaco_proto::v1;

    use super::*;
    use crate::ingress::certificate::{Environment, audit, store::CertificateKeys};

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// A chain that expires at the number of seconds it consists of.
    fn put(state: &mut State, domain: &str, directory: &str, seconds: &str) {
        let keys = CertificateKeys::new(domain, directory);
        for (key, value) in [(keys.chain, seconds), (keys.key, "secret")] {
            let blob = v1::CertBlob {
                key: key.clone(),
                value: value.as_bytes().to_vec(),
                updated_at: None,
            };
            state.cert_blobs.insert(key, Arc::new(blob));
        }
    }

    fn audit(state: &mut State, index: u64, event: v1::AuditEvent) {
        state.audit.insert((index, 0), Arc::new(event));
    }

    fn rows_of(state: &State) -> Vec<(String, String, Option<i64>, Option<i64>)> {
        let domains = BTreeSet::from(["a", "b", "c", "d", "e"]);
        let read = |chain: &[u8]| Some(at(std::str::from_utf8(chain).ok()?.parse().ok()?));
        let seconds = |at: Option<Timestamp>| at.map(|at| at.seconds);
        rows(state, &domains, read)
            .into_iter()
            .map(|row| {
                let (not_after, last) = (seconds(row.not_after), seconds(row.last_renewal_at));
                (row.domain, row.environment, not_after, last)
            })
            .collect()
    }

    #[test]
    fn rows_combine_chains_and_events() {
        let mut state = State::default();
        put(&mut state, "a", "ca-staging", "900");
        put(&mut state, "a", "ca", "500");
        put(&mut state, "b", "ca-staging", "900");
        put(&mut state, "e", "ca", "not a chain");
        put(&mut state, "other", "ca", "500");
        let issued = |domain, seconds| audit::stored(at(seconds), domain, Environment::Prod, false);
        let renewed = |domain, seconds| audit::stored(at(seconds), domain, Environment::Prod, true);
        audit(&mut state, 1, issued("a", 10));
        audit(&mut state, 2, renewed("a", 20));
        audit(&mut state, 3, issued("c", 30));
        let row = |domain: &str, environment: &str, not_after, last| {
            (domain.to_owned(), environment.to_owned(), not_after, last)
        };
        let expected = [
            row("a", "prod", Some(500), Some(20)),
            row("b", "staging", Some(900), None),
            row("c", "prod", None, Some(30)),
        ];
        assert_eq!(rows_of(&state), expected);
    }

    #[test]
    fn event_without_an_environment_is_unknown() {
        let mut state = State::default();
        let mut event = audit::stored(at(10), "d", Environment::Prod, true);
        event.payload.remove("acme_environment");
        audit(&mut state, 1, event);
        assert_eq!(rows_of(&state)[0].1, "unknown");
    }
}
