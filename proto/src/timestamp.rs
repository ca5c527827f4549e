use std::time::{SystemTime, UNIX_EPOCH};

use prost_types::Timestamp;

/// Returns a time in the form of messages; times before 1970 read as 1970.
#[must_use]
pub fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or(0),
    }
}
