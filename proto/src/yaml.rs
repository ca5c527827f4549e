//! YAML as positioned nodes.
//!
//! Manifests come from people, so every node knows its line and column, and from the network,
//! so everything is bounded: input size, depth, and the number and size of nodes after aliases
//! are expanded. Anchors, aliases and `<<` merges are resolved here; duplicate keys, keys that
//! are not scalars and unknown tags are refused. What a scalar means is left to the reader of
//! the node, because it depends on the field.

mod build;
mod emit;
mod error;
mod node;
mod scalar;

#[cfg(test)]
mod tests;

pub use emit::to_string;
pub use error::{Error, ErrorKind};
pub use node::{Key, Map, Node, Position, Scalar, Value};
pub use scalar::Resolved;

/// What one document may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest input in bytes.
    pub input_bytes: usize,
    /// Deepest nesting of lists and mappings.
    pub depth: usize,
    /// Most nodes after aliases are expanded, keys included; also most marks in the text that
    /// could make tokens.
    pub nodes: usize,
    /// Most bytes of scalar text after aliases are expanded.
    pub text_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            input_bytes: 4 << 20,
            depth: 64,
            nodes: 200_000,
            text_bytes: 8 << 20,
        }
    }
}

/// The first document of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Its root; `None` when the stream holds no document.
    pub root: Option<Node>,
    /// Where a second document starts, if there is one; it was not read.
    pub next: Option<Position>,
}

/// Reads the first document of `bytes` within the default [`Limits`].
///
/// # Errors
/// [`Error`] with the place of the first thing that is not acceptable YAML.
pub fn parse(bytes: &[u8]) -> Result<Document, Error> {
    parse_within(bytes, Limits::default())
}

/// Reads the first document of `bytes` within `limits`.
///
/// # Errors
/// As [`parse`].
pub fn parse_within(bytes: &[u8], limits: Limits) -> Result<Document, Error> {
    if bytes.len() > limits.input_bytes {
        return Err(ErrorKind::InputTooLarge {
            limit: limits.input_bytes,
        }
        .at(Position::START));
    }
    let text = str::from_utf8(bytes).map_err(|cause| not_utf8(bytes, cause.valid_up_to()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some((offset, character)) = text.char_indices().find(|(_, c)| is_unprintable(*c)) {
        return Err(ErrorKind::ControlCharacter(character).at(place(text.as_bytes(), offset)));
    }
    if let Some(offset) = first_mark_beyond(text.as_bytes(), limits.nodes) {
        let limit = limits.nodes;
        return Err(ErrorKind::TooManyNodes { limit }.at(place(text.as_bytes(), offset)));
    }
    build::document(text, limits)
}

/// Control characters have no place in a file as they are (YAML 1.2, section 5.1).
fn is_unprintable(character: char) -> bool {
    character.is_control() && !matches!(character, '\t' | '\n' | '\r' | '\u{85}')
}

/// Where the marks that make tokens exceed `limit`, if they do.
///
/// The parser reads a whole `[…]` or `{…}` ahead before it hands out the first event, so the
/// budget for nodes would come too late. Every token there needs one of these characters;
/// counting them in text and comments too only matters to files no person would write.
fn first_mark_beyond(bytes: &[u8], limit: usize) -> Option<usize> {
    let is_mark = |byte: &u8| b",[]{}:?\"'*&!".contains(byte);
    let marks = bytes.iter().enumerate().filter(|(_, byte)| is_mark(byte));
    marks.map(|(offset, _)| offset).nth(limit)
}

fn not_utf8(bytes: &[u8], offset: usize) -> Error {
    ErrorKind::NotUtf8 { offset }.at(place(bytes, offset))
}

/// The position of a byte offset.
fn place(bytes: &[u8], offset: usize) -> Position {
    let before = &bytes[..offset];
    let line_start = before
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |at| at + 1);
    let newlines = before.iter().filter(|&&byte| byte == b'\n').count();
    let col = String::from_utf8_lossy(&before[line_start..])
        .chars()
        .count();
    Position::zero_based(newlines, col)
}
