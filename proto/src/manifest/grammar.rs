//! Grammars of manifest scalars: durations, sizes, cores, shell words.
//!
//! Arithmetic is exact: a fraction is kept as digits until its unit is known.

use std::time::Duration;

/// A non-negative decimal number as written: `whole.fraction`.
struct Decimal<'a> {
    whole: &'a str,
    fraction: &'a str,
}

impl<'a> Decimal<'a> {
    /// Parses a number at the start of `text`; at least one digit.
    fn take(text: &'a str) -> Option<(Self, &'a str)> {
        let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, mut rest) = text.split_at(digits(text));
        let mut fraction = "";
        if let Some(after) = rest.strip_prefix('.') {
            (fraction, rest) = after.split_at(digits(after));
        }
        (!whole.is_empty() || !fraction.is_empty()).then_some((Self { whole, fraction }, rest))
    }

    /// Returns the number times `unit`, rounded down.
    fn times(&self, unit: u64) -> Option<u64> {
        let whole = match self.whole {
            "" => 0,
            digits => digits.parse::<u64>().ok()?,
        };
        // Eighteen digits are finer than any unit.
        let fraction = self.fraction.get(..18).unwrap_or(self.fraction);
        let part = match fraction {
            "" => 0,
            digits => {
                let scale = 10_u128.pow(u32::try_from(digits.len()).ok()?);
                u64::try_from(digits.parse::<u128>().ok()? * u128::from(unit) / scale).ok()?
            }
        };
        whole.checked_mul(unit)?.checked_add(part)
    }
}

/// Parses `1h2m3.5s`; units `ns us ms s m h d w`, a bare `0` needs none.
pub(super) fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = 0_u64;
    while !rest.is_empty() {
        let (number, after) = Decimal::take(rest)?;
        let end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let nanos = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 24 * 3_600_000_000_000,
            "w" => 7 * 24 * 3_600_000_000_000,
            _ => return None,
        };
        total = total.checked_add(number.times(nanos)?)?;
        rest = after;
    }
    (!text.is_empty() && i64::try_from(total).is_ok()).then(|| Duration::from_nanos(total))
}

/// Parses `1024`, `256M`, `1.5gb`, `64MiB`: powers of 1024, rounded down to bytes.
pub(super) fn bytes(text: &str) -> Option<i64> {
    let (number, rest) = Decimal::take(text)?;
    let suffix = rest.strip_prefix(' ').unwrap_or(rest).to_ascii_lowercase();
    let power = match suffix.as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        "p" | "pb" | "pib" => 5,
        _ => return None,
    };
    i64::try_from(number.times(1 << (10 * power))?).ok()
}

/// Parses decimal cores as 10⁻⁹ cores; a negative number is `Some(0)`.
pub(super) fn nano_cpus(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (number, rest) = Decimal::take(digits)?;
    if !rest.is_empty() {
        return None;
    }
    let nanos = i64::try_from(number.times(1_000_000_000)?).ok()?;
    Some(if negative { 0 } else { nanos })
}

/// Parses a boolean written as text.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" => Some(true),
        "false" | "no" | "off" | "n" => Some(false),
        _ => None,
    }
}

/// Splits a command line into words: quotes and backslashes as in a shell, no expansion. `None` if
/// a quote or a backslash is not closed.
pub(super) fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' | '\n' | '\r' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next()? {
                        '\'' => break,
                        inside => word.push(inside),
                    }
                }
            }
            '"' => quoted(&mut chars, word.get_or_insert_default())?,
            '\\' => match chars.next()? {
                '\n' => {}
                escaped => word.get_or_insert_default().push(escaped),
            },
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Some(words)
}

fn quoted(chars: &mut std::str::Chars<'_>, word: &mut String) -> Option<()> {
    loop {
        match chars.next()? {
            '"' => return Some(()),
            '\\' => match chars.next()? {
                '\n' => {}
                escaped @ ('"' | '\\' | '$' | '`') => word.push(escaped),
                other => word.extend(['\\', other]),
            },
            inside => word.push(inside),
        }
    }
}

/// Whether the text is a valid key of a service, network or volume.
pub(super) fn is_name(text: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !text.is_empty() && text.chars().all(good)
}

/// Normalises an absolute path: no `.`, no `..`, no doubled or trailing slash.
pub(super) fn clean_path(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_parts_are_added() {
        for (text, nanos) in [
            ("1h2m3.5s", Some(3_723_500_000_000)),
            ("500ms", Some(500_000_000)),
            ("1.5us", Some(1_500)),
            ("1w1d", Some(8 * 24 * 3_600_000_000_000)),
            ("0", Some(0)),
            ("0s", Some(0)),
            (".5s", Some(500_000_000)),
            ("", None),
            ("10", None),
            ("s", None),
            ("-1s", None),
            ("1y", None),
            ("1 s", None),
            ("99999999999h", None),
            ("300w300000w", None),
            ("1.s2", None),
        ] {
            let expected = nanos.map(Duration::from_nanos);
            assert_eq!(duration(text), expected, "{text}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1024", Some(1024)),
            ("256M", Some(256 << 20)),
            ("1.5gb", Some(3 << 29)),
            ("64MiB", Some(64 << 20)),
            ("10 kb", Some(10 << 10)),
            ("7b", Some(7)),
            ("M", None),
            ("1X", None),
            ("-1", None),
            ("9999999999t", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }

    #[test]
    fn cores_are_exact() {
        for (text, expected) in [
            ("0.1", Some(100_000_000)),
            ("0.29", Some(290_000_000)),
            ("2", Some(2_000_000_000)),
            ("1.0000000019", Some(1_000_000_001)),
            ("0", Some(0)),
            ("-1", Some(0)),
            ("half", None),
            ("1.2.3", None),
        ] {
            assert_eq!(nano_cpus(text), expected, "{text}");
        }
    }

    #[test]
    fn words_are_split_as_in_a_shell() {
        for (text, expected) in [
            ("", Some(vec![])),
            ("  a  b ", Some(vec!["a", "b"])),
            (
                "sh -c 'echo $X \"y\"'",
                Some(vec!["sh", "-c", "echo $X \"y\""]),
            ),
            (r#"a"b c"d '' "#, Some(vec!["ab cd", ""])),
            (r#""a\"b\n" c\ d"#, Some(vec![r#"a"b\n"#, "c d"])),
            ("open 'quote", None),
            ("open \"quote", None),
            ("end\\", None),
        ] {
            let expected = expected.map(|e| e.into_iter().map(str::to_owned).collect());
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn paths_are_normalised_within_the_root() {
        for (text, expected) in [("/a/./b//c/", "/a/b/c"), ("/a/../..", "/"), ("/../x", "/x")] {
            assert_eq!(clean_path(text), expected);
        }
    }
}
