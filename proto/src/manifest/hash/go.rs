//! Canonical JSON as JACO's Go implementation writes it, to recognise its spec hashes.
//!
//! It decodes a service into plain values and encodes them with `encoding/json`: numbers lose their
//! notation, and characters with a meaning in HTML are escaped.

use crate::{
    quote::write_quoted,
    yaml::{Node, Resolved, Scalar},
};

use super::write_tree;

/// Magnitudes that Go writes without an exponent.
const WITHOUT_EXPONENT: std::ops::Range<f64> = 1e-6..1e21;

/// Returns the canonical form; `None` if it holds a scalar that Go may type differently.
pub(super) fn json(node: &Node) -> Option<String> {
    let mut text = String::new();
    let mut is_certain = true;
    write_tree(&mut text, node, write_string, &mut |out, scalar| {
        is_certain &= write_scalar(out, scalar).is_some();
    });
    is_certain.then_some(text)
}

fn write_scalar(out: &mut String, scalar: &Scalar) -> Option<()> {
    match scalar.resolve() {
        Resolved::Null => out.push_str("null"),
        Resolved::Bool(value) => out.push_str(if value { "true" } else { "false" }),
        Resolved::Int(value) => {
            // Beyond 64 bits Go reads a floating-point number.
            let range = i128::from(i64::MIN)..=i128::from(u64::MAX);
            range.contains(&value).then_some(())?;
            out.push_str(&value.to_string());
        }
        Resolved::Float(value) => {
            let plain = value == 0.0 || WITHOUT_EXPONENT.contains(&value.abs());
            plain.then_some(())?;
            out.push_str(&value.to_string());
        }
        Resolved::Str(text) if scalar.plain && is_typed(text) => return None,
        Resolved::Str(text) => write_string(out, text),
    }
    Some(())
}

/// Whether Go reads a number or a time where this implementation reads text: digits may be
/// separated by underscores there, and a date has a type of its own.
fn is_typed(text: &str) -> bool {
    let starts_number = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-'));
    if !starts_number {
        return false;
    }
    let number = Scalar {
        text: text.replace('_', ""),
        plain: true,
    };
    let year = text.get(..4).is_some_and(|year| {
        let digits = year.bytes().all(|byte| byte.is_ascii_digit());
        digits && text[4..].starts_with('-')
    });
    let is_date = year && text.matches('-').count() > 1;
    is_date || text.contains('_') && !matches!(number.resolve(), Resolved::Str(_))
}

fn write_string(out: &mut String, text: &str) {
    write_quoted(out, text, |c| match c {
        '\u{8}' => Some("\\b".to_owned()),
        '\u{c}' => Some("\\f".to_owned()),
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => Some(unicode(c)),
        c if c < ' ' => Some(unicode(c)),
        _ => None,
    });
}

fn unicode(c: char) -> String {
    format!("\\u{:04x}", u32::from(c))
}
