//! Type resolution of plain scalars.

use super::Scalar;

/// A scalar with its type.
///
/// Numbers follow the core schema, plus a leading zero for octal, so `0644` is a number. `yes`,
/// `on` and similar words are text here: only a boolean field may parse them as booleans. Base 60
/// is not supported (`22:22` is text).
///
/// Source: YAML 1.2.2, 10.3 core schema.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Resolved<'a> {
    /// Null.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// Any other number.
    Float(f64),
    /// Text.
    Str(&'a str),
}

impl Resolved<'_> {
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Str(_) => "a string",
        }
    }
}

impl Scalar {
    /// Creates a quoted scalar, which is always a string.
    pub fn string(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            plain: false,
        }
    }

    /// Resolves the type.
    pub fn resolve(&self) -> Resolved<'_> {
        let text = self.text.as_str();
        if !self.plain {
            return Resolved::Str(text);
        }
        match text {
            "" | "~" | "null" | "Null" | "NULL" => Resolved::Null,
            "true" | "True" | "TRUE" => Resolved::Bool(true),
            "false" | "False" | "FALSE" => Resolved::Bool(false),
            ".nan" | ".NaN" | ".NAN" => Resolved::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
                Resolved::Float(f64::INFINITY)
            }
            "-.inf" | "-.Inf" | "-.INF" => Resolved::Float(f64::NEG_INFINITY),
            _ => int(text)
                .map(Resolved::Int)
                .or_else(|| float(text).map(Resolved::Float))
                .unwrap_or(Resolved::Str(text)),
        }
    }

    /// Whether the scalar is null.
    pub fn is_null(&self) -> bool {
        self.resolve() == Resolved::Null
    }
}

fn int(text: &str) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (radix, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0o" | "0O") => (8, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        Some(two) if two.starts_with('0') => (8, &digits[1..]),
        Some(_) | None => (10, digits),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let value = i128::from_str_radix(digits, radix).ok()?;
    Some(if negative { -value } else { value })
}

fn float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let starts_like_one = unsigned.starts_with(|c: char| c.is_ascii_digit())
        || (unsigned.starts_with('.') && unsigned[1..].starts_with(|c: char| c.is_ascii_digit()));
    let only_float_chars = text
        .chars()
        .all(|c| matches!(c, '0'..='9' | '.' | 'e' | 'E' | '+' | '-'));
    if !starts_like_one || !only_float_chars {
        return None;
    }
    text.parse().ok()
}
