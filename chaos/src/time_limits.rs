//! Measured times: always printed, and checked against their limits only if `JACO_LIMITS=1`.
//!
//! Ordinary tests do not depend on the speed of the machine. `JACO_LIMITS=1` states that the
//! machine runs nothing else, so that the promised limits can be asserted.

use std::time::Duration;

use anyhow::{Result, ensure};

/// The environment variable that enables the limits.
const VARIABLE: &str = "JACO_LIMITS";
/// Number of times up to which all are printed.
const PRINTED_MAX: usize = 10;

/// Prints the median and the 99th percentile of times, and all of them if there are at most
/// `PRINTED_MAX`.
///
/// # Errors
/// When limits are enabled and the 99th percentile is not below `limit`, or nothing was measured.
#[expect(clippy::print_stdout, reason = "measurements of a test")]
pub fn times(what: &str, mut times: Vec<Duration>, limit: Duration) -> Result<()> {
    times.sort();
    let (median, high) = (percentile(&times, 50), percentile(&times, 99));
    let max = times.last();
    println!(
        "{what}: n={} p50={median:?} p99={high:?} max={max:?} limit={limit:?}",
        times.len()
    );
    if times.len() <= PRINTED_MAX {
        println!("  {times:?}");
    }
    check(enabled(), what, high, limit)
}

/// Prints one time.
///
/// # Errors
/// When limits are enabled and the time is not below `limit`.
#[expect(clippy::print_stdout, reason = "measurements of a test")]
pub fn time(what: &str, took: Duration, limit: Duration) -> Result<()> {
    println!("{what}: {took:?} limit={limit:?}");
    check(enabled(), what, Some(took), limit)
}

/// Whether limits are enabled.
#[must_use]
pub fn enabled() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == "1")
}

fn check(held: bool, what: &str, time: Option<Duration>, limit: Duration) -> Result<()> {
    ensure!(
        !held || time.is_some_and(|time| time < limit),
        "{what}: {time:?} is not below {limit:?}"
    );
    Ok(())
}

/// The smallest of the sorted times that `percent` of them do not exceed (nearest rank).
fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_nearest_rank() {
        let times: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        for (count, percent, expected) in [
            (0, 99, None),
            (1, 50, Some(1)),
            (3, 50, Some(2)),
            (50, 99, Some(50)),
            (100, 99, Some(99)),
            (200, 99, Some(198)),
        ] {
            let expected = expected.map(Duration::from_millis);
            assert_eq!(percentile(&times[..count], percent), expected, "{count}");
        }
    }

    #[test]
    fn limit_is_checked_only_if_enabled() {
        let limit = Duration::from_secs(3);
        let under = Some(limit.checked_sub(Duration::from_millis(1)).unwrap());
        for (held, time, good) in [
            (false, Some(limit), true),
            (false, None, true),
            (true, under, true),
            (true, Some(limit), false),
            (true, None, false),
        ] {
            let judged = check(held, "it", time, limit).is_ok();
            assert_eq!(judged, good, "{held} {time:?}");
        }
    }
}
