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

use super::{
    Environment, Phase,
    served::{Candidate, Origin, import_names, select},
    store,
};

/// `CertState.source` of a certificate that a directory issued.
pub const ACME: &str = "acme";
/// `CertState.source` of a certificate of an operator.
pub const IMPORTED: &str = "imported";

/// Latest events of a domain.
#[derive(Default)]
struct Latest {
    stored_at: Option<Timestamp>,
    environment: String,
    /// State and reason after the last attempt, if that failed.
    failed: Option<(Phase, String)>,
}

/// Rows of those of `domains` about which something is known at `now`, by domain.
///
/// `not_after` reads the end of a leaf's validity from a chain in PEM.
#[must_use]
pub fn rows(
    state: &State,
    domains: &BTreeSet<&str>,
    now: SystemTime,
    not_after: impl Fn(&[u8]) -> Option<SystemTime>,
) -> Vec<CertState> {
    if domains.is_empty() {
        return Vec::new();
    }
    let latest = latest(state, domains);
    let rows = domains
        .iter()
        .filter_map(|domain| row(state, domain, now, latest.get(domain), &not_after));
    rows.collect()
}

fn row(
    state: &State,
    domain: &str,
    now: SystemTime,
    latest: Option<&Latest>,
    not_after: impl Fn(&[u8]) -> Option<SystemTime>,
) -> Option<CertState> {
    let stored = store::certificates(state, domain).filter_map(|stored| {
        let environment = store::environment(stored.directory);
        Some((environment, not_after(&stored.chain.value)?))
    });
    // `Prod` is the greater one.
    let best = stored.max_by_key(|(environment, end)| (*environment, *end));
    let acme = best.map(|(environment, not_after)| Candidate {
        origin: match environment {
            Environment::Staging => Origin::Staging,
            Environment::Prod => Origin::Production,
        },
        not_after,
        certificate: None,
    });
    let imported = import_names(domain).filter_map(|(origin, name)| {
        let cert = state.imported_certs.get(&name)?;
        Some(Candidate {
            origin,
            not_after: SystemTime::try_from(cert.not_after?).ok()?,
            certificate: Some(cert),
        })
    });
    let served = select(now, imported.chain(acme));
    let is_ordering = is_ordering(state, domain, now);
    if served.is_none() && latest.is_none() && !is_ordering {
        return None;
    }
    let import = served.as_ref().and_then(|served| served.certificate);
    let audited = latest.map_or("", |latest| latest.environment.as_str());
    let environment = match (best, audited) {
        (Some((environment, _)), _) => environment.as_str(),
        (None, "") => "unknown",
        (None, audited) => audited,
    };
    let valid = served
        .as_ref()
        .is_some_and(|served| served.origin != Origin::Staging && now < served.not_after);
    let failed = latest.and_then(|latest| latest.failed.as_ref());
    let (phase, reason) = match failed {
        _ if valid && import.is_some() => (Phase::Valid, ""),
        Some((_, reason)) if valid => (Phase::Valid, reason.as_str()),
        None if valid => (Phase::Valid, ""),
        Some((phase, reason)) if !is_ordering => (*phase, reason.as_str()),
        Some(_) | None => (Phase::Ordering, ""),
    };
    let renewed_at = latest.and_then(|latest| latest.stored_at);
    Some(CertState {
        domain: domain.to_owned(),
        environment: environment.to_owned(),
        not_after: served.map(|served| timestamp(served.not_after)),
        last_renewal_at: import.map_or(renewed_at, |cert| cert.imported_at),
        source: if import.is_some() { IMPORTED } else { ACME }.to_owned(),
        state: phase.as_str().to_owned(),
        reason: reason.to_owned(),
    })
}

/// Whether a node holds the lock of the domain, which it does while it orders.
fn is_ordering(state: &State, domain: &str, now: SystemTime) -> bool {
    let lock = state.certs.get(&store::lock_name(domain));
    let lock = lock.filter(|lock| !lock.lessee.is_empty());
    let until = lock.and_then(|lock| SystemTime::try_from(lock.lock_until?).ok());
    until.is_some_and(|until| now < until)
}

/// Newest events about each domain.
fn latest<'a>(state: &'a State, domains: &BTreeSet<&'a str>) -> BTreeMap<&'a str, Latest> {
    let mut latest = BTreeMap::<&str, Latest>::new();
    let mut stored = 0;
    for event in state.audit.values().rev() {
        if stored == domains.len() {
            break;
        }
        let failed = match event.r#type() {
            AuditEventType::CertificateIssued | AuditEventType::CertificateRenewed => None,
            AuditEventType::CertificateFailed => Some(Phase::Failed),
            AuditEventType::CertificateWaiting => Some(Phase::WaitingDns),
            _ => continue,
        };
        let text = |key: &str| event.payload.get(key).cloned().unwrap_or_default();
        let domain = event.payload.get("domain");
        let domain = domain.and_then(|domain| domains.get(domain.as_str()));
        let Some(domain) = domain.copied() else {
            continue;
        };
        let known = latest.get(domain);
        match failed {
            Some(phase) if known.is_none() => {
                let failed = Latest {
                    failed: Some((phase, text("reason"))),
                    ..Latest::default()
                };
                latest.insert(domain, failed);
            }
            None if known.is_none_or(|known| known.stored_at.is_none()) => {
                let known = latest.entry(domain).or_default();
                known.stored_at = event.ts;
                known.environment = text("acme_environment");
                stored += 1;
            }
            Some(_) | None => {}
        }
    }
    latest
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use jaco_proto::v1;

    use super::*;
    use crate::ingress::certificate::{
        FailureClass, OrderFailure, audit, backoff::Failed, store::CertificateKeys,
    };

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

    fn states_of(state: &State) -> Vec<(String, String, String, String)> {
        let domains = BTreeSet::from(["a", "b.a", "c", "d", "e"]);
        let read = |chain: &[u8]| Some(at(std::str::from_utf8(chain).ok()?.parse().ok()?));
        rows(state, &domains, at(100), read)
            .into_iter()
            .map(|row| (row.domain, row.source, row.state, row.reason))
            .collect()
    }

    fn rows_of(state: &State) -> Vec<(String, String, Option<i64>, Option<i64>)> {
        let domains = BTreeSet::from(["a", "b", "c", "d", "e"]);
        let read = |chain: &[u8]| Some(at(std::str::from_utf8(chain).ok()?.parse().ok()?));
        let seconds = |at: Option<Timestamp>| at.map(|at| at.seconds);
        rows(state, &domains, at(100), read)
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
    fn states_follow_certificates_and_the_last_attempt() {
        let row = |domain: &str, source: &str, state: &str, reason: &str| {
            [domain, source, state, reason].map(str::to_owned).into()
        };
        let mut state = State::default();
        // A valid certificate, whose renewal failed.
        put(&mut state, "a", "ca", "500");
        let failure = OrderFailure {
            class: FailureClass::Transient,
            retry_after: None,
            reason: "no route".to_owned(),
        };
        let failed = |domain| {
            let environment = Environment::Prod;
            let wait = Duration::from_secs(60);
            audit::failed(at(20), domain, environment, Failed::Order, &failure, wait)
        };
        audit(
            &mut state,
            1,
            audit::stored(at(10), "a", Environment::Prod, false),
        );
        audit(&mut state, 2, failed("a"));
        // A wildcard of an operator, and an expired certificate.
        let import = v1::ImportedCert {
            name: "*.a".to_owned(),
            not_after: Some(timestamp(at(200))),
            ..v1::ImportedCert::default()
        };
        state
            .imported_certs
            .insert(import.name.clone(), Arc::new(import));
        put(&mut state, "b.a", "ca", "50");
        // The last event counts; a lock means that an order is under way.
        audit(&mut state, 3, failed("c"));
        audit(&mut state, 4, audit::waiting(at(30), "c", "no_dns: x"));
        audit(&mut state, 5, failed("d"));
        let lock = v1::Cert {
            domain: store::lock_name("d"),
            lessee: "n1".to_owned(),
            lock_until: Some(timestamp(at(101))),
            ..v1::Cert::default()
        };
        state.certs.insert(lock.domain.clone(), Arc::new(lock));
        put(&mut state, "e", "ca-staging", "500");
        audit(&mut state, 6, failed("e"));
        let expected: [(String, String, String, String); 5] = [
            row("a", "acme", "valid", "no route"),
            row("b.a", "imported", "valid", ""),
            row("c", "acme", "waiting_dns", "no_dns: x"),
            row("d", "acme", "ordering", ""),
            row("e", "acme", "failed", "no route"),
        ];
        assert_eq!(states_of(&state), expected);
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
