//! Durations in text form: `500ms`, `1m30s`, `1.5h`.
//!
//! Source: the duration grammar of Go's `time` package, used by compose files and by the
//! configuration. Values are signed nanoseconds with a range of about 292 years.

/// Signed nanoseconds, so that negative and bare numbers can be parsed before validation.
pub type Nanos = i64;

/// The text is not a duration, or is out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration")]
pub struct Invalid(pub String);

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a sign, then one or more decimal numbers, each with a unit; `0` needs no unit.
///
/// # Errors
/// [`Invalid`] holds the text.
pub fn parse(text: &str) -> Result<Nanos, Invalid> {
    signed(text).ok_or_else(|| Invalid(text.to_owned()))
}

/// Formats a duration in its shortest form with the largest units: `5m0s`, `1.5s`, `100ms`.
pub fn format(nanos: Nanos) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let magnitude = nanos.unsigned_abs();
    let (unit, size) = match magnitude {
        0 => return "0s".to_owned(),
        1..1_000 => ("ns", 1),
        1_000..1_000_000 => ("\u{b5}s", 1_000),
        1_000_000..1_000_000_000 => ("ms", 1_000_000),
        _ => return format!("{sign}{}", hours_minutes_seconds(magnitude)),
    };
    format!("{sign}{}{unit}", decimal(magnitude, size))
}

fn signed(text: &str) -> Option<Nanos> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (part, after) = component(rest)?;
        total = total.checked_add(part)?;
        rest = after;
    }
    if negative {
        // The most negative value has no positive counterpart.
        0_i64.checked_sub_unsigned(total)
    } else {
        total.try_into().ok()
    }
}

/// Parses one number with its unit, and returns the rest.
fn component(text: &str) -> Option<(u64, &str)> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after) => digits(after),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let end = rest
        .find(|c: char| c == '.' || c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(end);
    let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let nanos = whole
        .checked_mul(*size)?
        .checked_add(fraction_of(fraction, *size))?;
    Some((nanos, rest))
}

fn digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// The fraction `0.digits` of `size`, rounded down.
fn fraction_of(digits: &str, size: u64) -> u64 {
    let mut value = 0_u128;
    let mut scale = 1_u128;
    // The largest unit has fewer than 13 digits, so later digits have no effect.
    for digit in digits.bytes().take(18) {
        value = value * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    u64::try_from(u128::from(size) * value / scale).unwrap_or(size)
}

fn hours_minutes_seconds(nanos: u64) -> String {
    const SECOND: u64 = 1_000_000_000;
    let (hours, minutes) = (nanos / (3600 * SECOND), nanos / (60 * SECOND) % 60);
    let seconds = decimal(nanos % (60 * SECOND), SECOND);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        (_, _) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// `value / size` without trailing zeros; `size` is a power of ten.
fn decimal(value: u64, size: u64) -> String {
    let fraction = value % size;
    if fraction == 0 {
        return (value / size).to_string();
    }
    let width = size.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    format!("{}.{}", value / size, digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests;
