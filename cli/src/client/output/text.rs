//! Formatting of times, enums, durations and key-value pairs.

use std::{collections::BTreeMap, time::Duration};

use prost_types::Timestamp;

/// Formats a time as RFC 3339 in UTC with whole seconds.
pub(crate) fn time(time: &Timestamp) -> String {
    Timestamp {
        seconds: time.seconds,
        nanos: 0,
    }
    .to_string()
}

/// The short name of an enum value: `REPLICA_STATE_RUNNING` becomes `running`.
pub(crate) fn enum_name(full: &str, prefix: &str) -> String {
    full.strip_prefix(prefix)
        .unwrap_or(full)
        .to_ascii_lowercase()
}

/// Formats `k=v` pairs, sorted by key.
pub(crate) fn pairs(map: &BTreeMap<String, String>) -> String {
    map.iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Formats a duration in its two largest units: `42s`, `3m05s`, `2h07m`, `5d03h`.
pub(crate) fn short_duration(span: Duration) -> String {
    let seconds = span.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h{:02}m", minutes % 60),
        (_, _, _) => format!("{days}d{:02}h", hours % 24),
    }
}

/// Formats an optional value; `-` if it is absent.
pub(crate) fn or_dash(value: Option<&String>) -> String {
    value.cloned().unwrap_or_else(|| "-".to_owned())
}

/// Formats a count with its noun: `1 replica`, `2 replicas`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    if count == 1 {
        format!("1 {noun}")
    } else {
        format!("{count} {noun}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_seconds_in_utc() {
        for (seconds, nanos, expected) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (951_782_400, 999_999_999, "2000-02-29T00:00:00Z"),
            (1_795_174_813, 5, "2026-11-20T11:40:13Z"),
        ] {
            assert_eq!(time(&Timestamp { seconds, nanos }), expected);
        }
    }

    #[test]
    fn durations_show_two_units() {
        for (seconds, expected) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m00s"),
            (3599, "59m59s"),
            (3600, "1h00m"),
            (86399, "23h59m"),
            (90000, "1d01h"),
        ] {
            assert_eq!(short_duration(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn enum_names_lose_their_prefix() {
        assert_eq!(
            enum_name("NODE_STATUS_DRAIN_TIMEOUT", "NODE_STATUS_"),
            "drain_timeout"
        );
        assert_eq!(enum_name("ODD", "NODE_STATUS_"), "odd");
    }

    #[test]
    fn pairs_are_sorted() {
        let map = [("b", "2"), ("a", "1")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        assert_eq!(pairs(&map), "a=1 b=2");
    }
}
