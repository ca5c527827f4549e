//! Warnings before a certificate of an operator expires. The audit trail shows which ones were given,
//! so each is given once, whichever node leads.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use jaco_proto::{
    timestamp,
    v1::{self, AuditEvent, AuditEventType},
};
use jaco_state::State;

use super::audit::IDENTITY;

/// Days before the end of the validity at which a warning is given.
pub const DAYS: [u64; 3] = [30, 7, 1];
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Warnings to give at `now`, and the time at which the next one may be due.
#[must_use]
pub fn due(state: &State, now: SystemTime) -> (Vec<AuditEvent>, Option<SystemTime>) {
    let ends = state.imported_certs.values();
    let ends = ends.filter_map(|cert| Some((cert, SystemTime::try_from(cert.not_after?).ok()?)));
    let ends: Vec<_> = ends.collect();
    let reached = |days: u64, end: SystemTime| {
        let at = end.checked_sub(DAY * u32::try_from(days).unwrap_or(u32::MAX));
        at.unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let next = ends.iter().flat_map(|(_, end)| {
        let times = DAYS.iter().map(|days| reached(*days, *end));
        times.filter(|at| *at > now).min()
    });
    let next = next.min();
    // The last of the days that was reached.
    let near = ends.iter().filter_map(|(cert, end)| {
        let days = DAYS
            .into_iter()
            .rev()
            .find(|days| reached(*days, *end) <= now);
        days.map(|days| (*cert, days))
    });
    let near: Vec<_> = near.collect();
    if near.is_empty() {
        return (Vec::new(), next);
    }
    let given = given(state);
    let missing = near.into_iter().filter(|(cert, days)| {
        let last = given.get(&(cert.name.as_str(), end_of(cert)));
        last.is_none_or(|last| days < last)
    });
    let events = missing.map(|(cert, days)| warning(now, cert, days));
    (events.collect(), next)
}

/// Fewest days that were warned of, by name and end of a certificate.
fn given(state: &State) -> BTreeMap<(&str, String), u64> {
    let mut given = BTreeMap::new();
    let events = state.audit.values();
    for event in events.filter(|event| event.r#type() == AuditEventType::CertificateExpiring) {
        let text = |key: &str| event.payload.get(key);
        let (Some(name), Some(end), Some(days)) = (
            text("domain"),
            text("not_after"),
            text("days").and_then(|days| days.parse::<u64>().ok()),
        ) else {
            continue;
        };
        let fewest = given.entry((name.as_str(), end.clone())).or_insert(days);
        *fewest = days.min(*fewest);
    }
    given
}

fn end_of(cert: &v1::ImportedCert) -> String {
    cert.not_after.unwrap_or_default().to_string()
}

fn warning(at: SystemTime, cert: &v1::ImportedCert, days: u64) -> AuditEvent {
    let payload = [
        ("domain", cert.name.clone()),
        ("not_after", end_of(cert)),
        ("days", days.to_string()),
    ];
    AuditEvent {
        r#type: AuditEventType::CertificateExpiring.into(),
        identity: IDENTITY.to_owned(),
        ts: Some(timestamp(at)),
        payload: payload.map(|(key, value)| (key.to_owned(), value)).into(),
        ..AuditEvent::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const END: SystemTime = SystemTime::UNIX_EPOCH;

    fn at(day: u64) -> SystemTime {
        END + DAY * u32::try_from(day).unwrap()
    }

    fn import(state: &mut State, name: &str, day: u64) {
        let cert = v1::ImportedCert {
            name: name.to_owned(),
            not_after: Some(timestamp(at(day))),
            ..v1::ImportedCert::default()
        };
        state.imported_certs.insert(name.to_owned(), Arc::new(cert));
    }

    /// Gives the warnings that are due, and returns the days of each.
    fn give(state: &mut State, now: SystemTime) -> Vec<String> {
        let (events, _) = due(state, now);
        let given = events.iter().map(|event| event.payload["days"].clone());
        let given = given.collect();
        for event in events {
            state.applied_index += 1;
            let key = (state.applied_index, 0);
            state.audit.insert(key, Arc::new(event));
        }
        given
    }

    #[test]
    fn each_warning_is_given_once() {
        let mut state = State::default();
        import(&mut state, "a.example", 100);
        let mut warnings = Vec::new();
        for day in 60..110 {
            warnings.extend(
                give(&mut state, at(day))
                    .into_iter()
                    .map(|days| (day, days)),
            );
            assert_eq!(give(&mut state, at(day)), [""; 0]);
        }
        let expected = [(70, "30"), (93, "7"), (99, "1")];
        assert_eq!(warnings, expected.map(|(day, days)| (day, days.to_owned())));
        // A new certificate of the same name begins again.
        import(&mut state, "a.example", 111);
        assert_eq!(give(&mut state, at(109)), ["7"]);
    }

    #[test]
    fn late_warning_skips_the_earlier_ones() {
        let mut state = State::default();
        import(&mut state, "a.example", 100);
        assert_eq!(give(&mut state, at(200)), ["1"]);
        assert_eq!(give(&mut state, at(300)), [""; 0]);
    }

    #[test]
    fn next_time_is_that_of_the_next_warning() {
        let mut state = State::default();
        assert_eq!(due(&state, at(0)).1, None);
        import(&mut state, "a.example", 100);
        import(&mut state, "b.example", 101);
        for (now, next) in [
            (0, Some(70)),
            (70, Some(71)),
            (71, Some(93)),
            (99, Some(100)),
            (100, None),
        ] {
            assert_eq!(due(&state, at(now)).1, next.map(at), "{now}");
        }
    }
}
