//! Failures of a directory, by what the caller does next.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{StatusCode, header::RETRY_AFTER, response::Parts};
use instant_acme::Problem;

use super::http::TransportError;

const PREFIX: &str = "urn:ietf:params:acme:error:";

/// Class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The directory limits the rate of requests.
    RateLimit,
    /// The directory could not validate the domain, or refuses to issue for it.
    Validation,
    /// The directory or the network failed.
    Transient,
    /// Anything else.
    Unknown,
}

/// Failure of a request or an order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Error {
    /// Its class.
    pub class: Class,
    /// Time that the directory asks to wait.
    pub retry_after: Option<Duration>,
    /// Whether the account is of no use any more: create another one.
    pub account_lost: bool,
    /// Reason without secrets: in the words of the directory, if it gave one.
    pub reason: String,
}

impl Error {
    pub(super) fn new(class: Class, reason: String) -> Self {
        Self {
            class,
            retry_after: None,
            account_lost: false,
            reason,
        }
    }

    pub(super) fn unknown(reason: String) -> Self {
        Self::new(Class::Unknown, reason)
    }

    pub(super) fn account_lost(reason: &str) -> Self {
        Self {
            account_lost: true,
            ..Self::new(Class::Transient, reason.to_owned())
        }
    }

    /// Removes texts that prove control of the domain; directories quote them.
    pub(super) fn without(mut self, secrets: &[&str]) -> Self {
        for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
            self.reason = self.reason.replace(secret, jaco_proto::secret::REDACTED);
        }
        self
    }
}

/// Status and `Retry-After` of the last response, if it was a refusal; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals(Arc<Mutex<Option<Refusal>>>);

#[derive(Clone, Copy, Debug)]
struct Refusal {
    status: StatusCode,
    retry_after: Option<Duration>,
}

impl Refusals {
    pub(super) fn record(&self, parts: &Parts) {
        let refused = parts.status.is_client_error() || parts.status.is_server_error();
        let value = parts.headers.get(RETRY_AFTER);
        let value = value.and_then(|value| value.to_str().ok());
        self.set(refused.then(|| Refusal {
            status: parts.status,
            retry_after: value.and_then(|value| retry_after(value, SystemTime::now())),
        }));
    }

    pub(super) fn clear(&self) {
        self.set(None);
    }

    fn set(&self, refusal: Option<Refusal>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = refusal;
    }

    /// Turns a failure of the last request into an [`Error`].
    pub(super) fn classify(&self, error: instant_acme::Error) -> Error {
        let refusal = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let status = refusal.map(|refusal| refusal.status.as_u16());
        let classified = match error {
            instant_acme::Error::Api(problem) => of_problem(&problem, status),
            instant_acme::Error::Other(error) if error.is::<TransportError>() => {
                Error::new(Class::Transient, error.to_string())
            }
            instant_acme::Error::Timeout(_) => {
                Error::new(Class::Transient, "the order did not end in time".to_owned())
            }
            // For example a page of a proxy instead of a problem document.
            error => {
                let reason = match status {
                    Some(status) => format!("the directory answered {status}"),
                    None => error.to_string(),
                };
                Error::new(class(None, status), reason)
            }
        };
        Error {
            retry_after: refusal.and_then(|refusal| refusal.retry_after),
            ..classified
        }
    }
}

/// Error for a problem document, received with `status` if it was the response itself.
pub(super) fn of_problem(problem: &Problem, status: Option<u16>) -> Error {
    let kind = problem.r#type.as_deref().unwrap_or_default();
    let kind = kind.strip_prefix(PREFIX).unwrap_or(kind);
    let detail = |text: &Option<String>| text.clone().unwrap_or_default();
    let mut reason = format!("{kind}: {}", detail(&problem.detail));
    for sub in &problem.subproblems {
        reason = format!("{reason}; {}", detail(&sub.detail));
    }
    Error {
        account_lost: kind == "accountDoesNotExist",
        ..Error::new(class(Some(kind), status.or(problem.status)), reason)
    }
}

/// Class of a problem type, without its prefix, and a status.
fn class(kind: Option<&str>, status: Option<u16>) -> Class {
    match (kind.unwrap_or_default(), status) {
        ("rateLimited", _) | (_, Some(429)) => Class::RateLimit,
        (
            "dns" | "connection" | "unauthorized" | "caa" | "tls" | "incorrectResponse"
            | "rejectedIdentifier",
            _,
        ) => Class::Validation,
        ("serverInternal", _) | (_, Some(500..)) => Class::Transient,
        _ => Class::Unknown,
    }
}

/// Whether a request was refused only because of its nonce.
pub(super) fn is_bad_nonce(error: &instant_acme::Error) -> bool {
    let instant_acme::Error::Api(problem) = error else {
        return false;
    };
    let kind = problem.r#type.as_deref().unwrap_or_default();
    kind.strip_prefix(PREFIX) == Some("badNonce")
}

/// Time to wait that a `Retry-After` header names, in seconds or as a date (RFC 9110).
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = UNIX_EPOCH + Duration::from_secs(date(value)?);
    Some(at.duration_since(now).unwrap_or_default())
}

/// Seconds since 1970 of a date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (_, rest) = text.split_once(", ")?;
    let [day, month, year, time, "GMT"] = rest.split(' ').collect::<Vec<_>>()[..] else {
        return None;
    };
    let month = 1 + MONTHS.iter().position(|name| *name == month)?;
    let month = u64::try_from(month).ok()?;
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let mut clock = time.split(':').map(str::parse::<u64>);
    let mut next = || clock.next()?.ok();
    let (hour, minute, second) = (next()?, next()?, next()?);
    let plausible = (1970..10_000).contains(&year) && (1..=31).contains(&day);
    if !plausible || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Years begin in March, so that the leap day is the last one.
    let (year, month) = if month < 3 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400;
    let days = days + (153 * month + 2) / 5 + day - 1;
    let since_epoch = days.checked_sub(719_468)?;
    Some(since_epoch * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_the_table() {
        use Class::{RateLimit, Transient, Unknown, Validation};
        let table = [
            (Some("rateLimited"), Some(403), RateLimit),
            (Some("whatever"), Some(429), RateLimit),
            (Some("dns"), None, Validation),
            (Some("connection"), Some(400), Validation),
            (Some("unauthorized"), Some(403), Validation),
            (Some("caa"), None, Validation),
            (Some("tls"), None, Validation),
            (Some("incorrectResponse"), None, Validation),
            (Some("rejectedIdentifier"), Some(400), Validation),
            (Some("serverInternal"), Some(500), Transient),
            (None, Some(503), Transient),
            (Some("malformed"), Some(400), Unknown),
            (Some("badNonce"), Some(400), Unknown),
            (None, None, Unknown),
        ];
        for (kind, status, expected) in table {
            assert_eq!(class(kind, status), expected, "{kind:?} {status:?}");
        }
    }

    #[test]
    fn retry_after_is_a_number_or_a_date() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777 - 60);
        let seconds = |text| retry_after(text, now).map(|wait| wait.as_secs());
        let table = [
            ("120", Some(120)),
            (" 0 ", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(60)),
            ("Sun, 06 Nov 1993 08:49:37 GMT", Some(0)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            (
                "Tue, 29 Feb 2000 00:00:00 GMT",
                Some(951_782_400 - 784_111_717),
            ),
            ("-1", None),
            ("soon", None),
            ("Sun, 06 Nov 1994 25:49:37 GMT", None),
            ("Sun, 06 Now 1994 08:49:37 GMT", None),
        ];
        for (text, expected) in table {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn key_authorization_is_not_quoted() {
        let error = Error::unknown("expected \"tok.thumb\", got tok".to_owned());
        let error = error.without(&["tok.thumb", "tok", ""]);
        assert_eq!(error.reason, "expected \"<redacted>\", got <redacted>");
    }
}
