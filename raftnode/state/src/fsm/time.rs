//! Comparison of the timestamps in commands.

use prost_types::Timestamp;

const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// Nanoseconds since the epoch; a missing timestamp is the epoch.
pub(crate) fn nanos(ts: Option<&Timestamp>) -> i128 {
    ts.map_or(0, |ts| {
        i128::from(ts.seconds) * NANOS_PER_SECOND + i128::from(ts.nanos)
    })
}

/// Converts whole seconds to nanoseconds.
pub(super) fn seconds(count: i64) -> i128 {
    i128::from(count) * NANOS_PER_SECOND
}

/// Whether `ts` is not later than `now`.
pub(super) fn is_past(ts: Option<&Timestamp>, now: &Timestamp) -> bool {
    nanos(ts) <= nanos(Some(now))
}
