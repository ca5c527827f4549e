//! The `grpc-timeout` header.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

const HEADER: &str = "grpc-timeout";
/// Largest number of digits in a value.
const DIGITS: usize = 8;
/// Longest part of the client's time limit that is reserved for the answer.
const SLACK: Duration = Duration::from_millis(100);

/// Returns the time by which a request received at `now` must be answered, if the client sets a
/// limit: slightly before that limit, so that the client gets the outcome.
pub(in crate::api) fn deadline(headers: &HeaderMap, now: Instant) -> Option<Instant> {
    let timeout = parse(headers.get(HEADER)?.as_bytes())?;
    now.checked_add(timeout - SLACK.min(timeout / 10))
}

fn parse(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > DIGITS || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Writes the time that is `left` to a request.
pub(super) fn write(headers: &mut HeaderMap, left: Duration) {
    let (number, unit) = match left.as_millis() {
        millis if millis < 100_000_000 => (millis, 'm'),
        _ => (u128::from(left.as_secs()).min(99_999_999), 'S'),
    };
    if let Ok(value) = HeaderValue::from_str(&format!("{number}{unit}")) {
        headers.insert(HEADER, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_bounds_are_those_of_the_protocol() {
        for (text, millis) in [
            ("1H", Some(3_600_000)),
            ("2M", Some(120_000)),
            ("3S", Some(3_000)),
            ("4m", Some(4)),
            ("5000u", Some(5)),
            ("6000000n", Some(6)),
            ("99999999H", Some(99_999_999 * 3_600_000)),
            ("100000000S", None),
            ("S", None),
            ("-1S", None),
            ("+1S", None),
            ("1s", None),
            ("1", None),
            ("", None),
        ] {
            let expected = millis.map(Duration::from_millis);
            assert_eq!(parse(text.as_bytes()), expected, "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn written_timeout_reads_back_less_slack() {
        let now = Instant::now();
        for (left, read) in [
            (Duration::from_secs(10), Duration::from_millis(9_900)),
            (Duration::from_millis(200), Duration::from_millis(180)),
            (Duration::ZERO, Duration::ZERO),
            (
                Duration::from_secs(200_000),
                Duration::from_millis(199_999_900),
            ),
        ] {
            let mut headers = HeaderMap::new();
            write(&mut headers, left);
            assert_eq!(deadline(&headers, now), Some(now + read));
        }
        assert_eq!(deadline(&HeaderMap::new(), now), None);
    }
}
