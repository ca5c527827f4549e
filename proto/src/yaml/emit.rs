//! Writes nodes as YAML text, for edited files.

use super::{Map, Node, Resolved, Scalar, Value};
use crate::quote::write_quoted;

/// Writes a node as block YAML, indented by two spaces.
///
/// The text parses to an equal tree except for positions: text that could be parsed as another type
/// is quoted. Equal trees give equal bytes.
pub fn to_string(node: &Node) -> String {
    let mut out = String::new();
    match &node.value {
        Value::Scalar(scalar) => {
            write_scalar(&mut out, scalar);
            out.push('\n');
        }
        Value::Seq(items) if items.is_empty() => out.push_str("[]\n"),
        Value::Map(map) if map.is_empty() => out.push_str("{}\n"),
        Value::Seq(items) => write_seq(&mut out, items, 0, false),
        Value::Map(map) => write_map(&mut out, map, 0, false),
    }
    out
}

/// Writes a mapping; `continues` means that the first line already has its `- ` and gets no indent.
fn write_map(out: &mut String, map: &Map, indent: usize, continues: bool) {
    for (index, (key, value)) in map.iter().enumerate() {
        if index > 0 || !continues {
            pad(out, indent);
        }
        write_key(out, &key.text, indent);
        out.push(':');
        match &value.value {
            Value::Map(inner) if !inner.is_empty() => {
                out.push('\n');
                write_map(out, inner, indent + 2, false);
            }
            Value::Seq(items) if !items.is_empty() => {
                out.push('\n');
                write_seq(out, items, indent + 2, false);
            }
            Value::Scalar(_) | Value::Map(_) | Value::Seq(_) => write_leaf(out, value),
        }
    }
}

fn write_seq(out: &mut String, items: &[Node], indent: usize, continues: bool) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 || !continues {
            pad(out, indent);
        }
        out.push('-');
        match &item.value {
            Value::Map(inner) if !inner.is_empty() => {
                out.push(' ');
                write_map(out, inner, indent + 2, true);
            }
            Value::Seq(inner) if !inner.is_empty() => {
                out.push(' ');
                write_seq(out, inner, indent + 2, true);
            }
            Value::Scalar(_) | Value::Map(_) | Value::Seq(_) => write_leaf(out, item),
        }
    }
}

/// Writes a value that fits on the line of its key or dash.
fn write_leaf(out: &mut String, node: &Node) {
    match &node.value {
        Value::Map(_) => out.push_str(" {}"),
        Value::Seq(_) => out.push_str(" []"),
        Value::Scalar(scalar) if scalar.plain && scalar.text.is_empty() => {}
        Value::Scalar(scalar) => {
            out.push(' ');
            write_scalar(out, scalar);
        }
    }
    out.push('\n');
}

fn write_scalar(out: &mut String, scalar: &Scalar) {
    let plain = scalar.plain
        && (is_safe_plain(&scalar.text) || !matches!(scalar.resolve(), Resolved::Str(_)));
    match scalar.text.as_str() {
        "" if plain => out.push_str("null"),
        text if plain => out.push_str(text),
        text => write_quoted(out, text, escape),
    }
}

/// Maximum length of a key without a leading `?`: parsers search no further for its colon.
///
/// Source: YAML 1.2.2, 7.4.2, at most 1024 characters.
const IMPLICIT_KEY: usize = 1000;

fn write_key(out: &mut String, text: &str, indent: usize) {
    // Keys are compared as text, so quotes do not change them; an unquoted `<<` would merge.
    if is_safe_plain(text) && text.len() < 128 {
        out.push_str(text);
        return;
    }
    let start = out.len();
    write_quoted(out, text, escape);
    if out[start..].chars().count() > IMPLICIT_KEY {
        out.insert_str(start, "? ");
        out.push('\n');
        pad(out, indent);
    }
}

/// Whether the text parses as itself without quotes, in any position.
fn is_safe_plain(text: &str) -> bool {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-' | '+');
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/'))
        && text.chars().all(safe)
}

/// Returns the escape sequence of a character that YAML does not print.
fn escape(c: char) -> Option<String> {
    let code = u32::from(c);
    match c {
        '\u{2028}' | '\u{2029}' | '\u{feff}' => Some(format!("\\u{code:04X}")),
        c if c.is_control() => Some(format!("\\x{code:02X}")),
        _ => None,
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}
