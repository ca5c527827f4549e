//! Audit events about certificates.

use std::time::{Duration, SystemTime};

use jaco_proto::{
    duration, timestamp,
    v1::{AuditEvent, AuditEventType},
};

use super::{Environment, OrderFailure, backoff::Failed};

/// Identity of the events.
pub const IDENTITY: &str = "ingress";
/// Longest reason in bytes.
const MAX_REASON: usize = 512;

/// A certificate was stored; `renewed` if it replaces one of the configured directory.
#[must_use]
pub fn stored(at: SystemTime, domain: &str, environment: Environment, renewed: bool) -> AuditEvent {
    let kind = if renewed {
        AuditEventType::CertificateRenewed
    } else {
        AuditEventType::CertificateIssued
    };
    event(at, kind, domain, environment)
}

/// An attempt failed; the next one follows after `wait` at the earliest.
#[must_use]
pub fn failed(
    at: SystemTime,
    domain: &str,
    environment: Environment,
    failed: Failed,
    failure: &OrderFailure,
    wait: Duration,
) -> AuditEvent {
    let kind = AuditEventType::CertificateFailed;
    let mut event = event(at, kind, domain, environment);
    let mut put = |key: &str, value: String| event.payload.insert(key.to_owned(), value);
    put("failure_class", failure.class.as_str().to_owned());
    put("reason", shortened(&failure.reason));
    match (failed, environment) {
        (Failed::SelfCheck, _) | (Failed::Order, Environment::Staging) => {
            put("stage_failed_at", "staging".to_owned());
        }
        (Failed::Promotion, _) | (Failed::Order, Environment::Prod) => {
            let nanos = i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX);
            put("retry_after", duration::format(nanos));
        }
    }
    event
}

/// No certificate is ordered, because the addresses of the domain do not lead to this cluster.
#[must_use]
pub fn waiting(at: SystemTime, domain: &str, reason: &str) -> AuditEvent {
    let payload = [("domain", domain.to_owned()), ("reason", shortened(reason))];
    AuditEvent {
        r#type: AuditEventType::CertificateWaiting.into(),
        identity: IDENTITY.to_owned(),
        ts: Some(timestamp(at)),
        payload: payload.map(|(key, value)| (key.to_owned(), value)).into(),
        ..AuditEvent::default()
    }
}

/// Result of an attempt to obtain a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Domain of the certificate.
    pub domain: String,
    /// Directory that it was ordered from.
    pub environment: Environment,
    /// Whether it was obtained.
    pub ok: bool,
}

/// The result that `event` tells of, if it is one of [`stored`] and [`failed`].
#[must_use]
pub fn outcome(event: &AuditEvent) -> Option<Outcome> {
    let ok = match event.r#type() {
        AuditEventType::CertificateIssued | AuditEventType::CertificateRenewed => true,
        AuditEventType::CertificateFailed => false,
        _ => return None,
    };
    let environment = event.payload.get("acme_environment")?;
    let environments = [Environment::Staging, Environment::Prod];
    Some(Outcome {
        domain: event.payload.get("domain")?.clone(),
        environment: environments
            .into_iter()
            .find(|one| one.as_str() == environment)?,
        ok,
    })
}

fn event(
    at: SystemTime,
    kind: AuditEventType,
    domain: &str,
    environment: Environment,
) -> AuditEvent {
    let payload = [
        ("domain".to_owned(), domain.to_owned()),
        (
            "acme_environment".to_owned(),
            environment.as_str().to_owned(),
        ),
    ];
    AuditEvent {
        r#type: kind.into(),
        identity: IDENTITY.to_owned(),
        ts: Some(timestamp(at)),
        payload: payload.into(),
        ..AuditEvent::default()
    }
}

/// The start of a text that an authority wrote.
fn shortened(reason: &str) -> String {
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress::certificate::FailureClass;

    fn payload(event: &AuditEvent) -> Vec<(&str, &str)> {
        let mut payload: Vec<_> = event
            .payload
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        payload.sort_unstable();
        payload
    }

    #[test]
    fn stored_certificate_is_issued_or_renewed() {
        use Environment::{Prod, Staging};
        let table = [
            (Staging, false, AuditEventType::CertificateIssued, "staging"),
            (Prod, false, AuditEventType::CertificateIssued, "prod"),
            (Prod, true, AuditEventType::CertificateRenewed, "prod"),
        ];
        for (environment, renewed, kind, name) in table {
            let event = stored(SystemTime::UNIX_EPOCH, "a.example", environment, renewed);
            assert_eq!((event.r#type(), event.identity.as_str()), (kind, "ingress"));
            let expected = [("acme_environment", name), ("domain", "a.example")];
            assert_eq!(payload(&event), expected);
        }
    }

    #[test]
    fn failure_has_the_fields_of_its_environment() {
        let failure = OrderFailure {
            class: FailureClass::RateLimit,
            retry_after: None,
            reason: "ö".repeat(300),
        };
        let wait = Duration::from_secs(15 * 60);
        let at = SystemTime::UNIX_EPOCH;
        let prod = failed(
            at,
            "a",
            Environment::Prod,
            Failed::Promotion,
            &failure,
            wait,
        );
        let reason = "ö".repeat(256);
        let expected = [
            ("acme_environment", "prod"),
            ("domain", "a"),
            ("failure_class", "rate_limit"),
            ("reason", reason.as_str()),
            ("retry_after", "15m0s"),
        ];
        assert_eq!(payload(&prod), expected);
        let staging = failed(at, "a", Environment::Staging, Failed::Order, &failure, wait);
        assert_eq!(staging.payload["stage_failed_at"], "staging");
        assert!(!staging.payload.contains_key("retry_after"));
    }
}
