//! YAML as nodes with positions.
//!
//! Manifests are written by hand, so every node has its line and column. They also come from the
//! network, so everything is bounded: input size, depth, and the number and size of nodes after
//! aliases are expanded. Anchors, aliases and `<<` merges are resolved here. Duplicate keys, keys
//! that are not scalars and unknown tags are rejected. Scalars are typed by the reader of a node,
//! because their type depends on the field.

mod build;
mod emit;
mod error;
mod node;
mod scalar;

#[cfg(test)]
mod tests;

pub use emit::to_string;
pub use error::{Error, ErrorKind};
pub use node::{Key, Map, Merge, Node, Position, Scalar, Value};
pub use scalar::Resolved;

/// Limits of parsing one document.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of the input, in bytes.
    pub input_bytes: usize,
    /// Maximum nesting of lists and mappings.
    pub depth: usize,
    /// Maximum number of nodes after aliases are expanded, keys included; also the maximum number
    /// of characters in the text that can produce tokens.
    pub nodes: usize,
    /// Maximum bytes of scalar text after aliases are expanded.
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
    /// Root node; `None` if the stream has no document.
    pub root: Option<Node>,
    /// Start of a second document, which is not parsed.
    pub next: Option<Position>,
}

/// Parses the first document of `bytes` within the default [`Limits`].
///
/// # Errors
/// [`Error`] with the position of the first violation.
pub fn parse(bytes: &[u8]) -> Result<Document, Error> {
    parse_within(bytes, Limits::default())
}

/// Parses the first document of `bytes` within `limits`.
///
/// # Errors
/// Same as [`parse`].
pub fn parse_within(bytes: &[u8], limits: Limits) -> Result<Document, Error> {
    parse_as(bytes, limits, build::Dialect::Document)
}

/// Parses a file that is merged with others: with the tags `!reset` and `!override`, and with the
/// number of the file in every position.
///
/// # Errors
/// Same as [`parse`].
pub fn parse_part(bytes: &[u8], file: u16) -> Result<Document, Error> {
    let dialect = build::Dialect::Part { file };
    parse_as(bytes, Limits::default(), dialect).map_err(|mut error| {
        error.at.file = file;
        error
    })
}

fn parse_as(bytes: &[u8], limits: Limits, dialect: build::Dialect) -> Result<Document, Error> {
    if bytes.len() > limits.input_bytes {
        return Err(ErrorKind::InputTooLarge {
            limit: limits.input_bytes,
        }
        .at(Position::START));
    }
    let text = str::from_utf8(bytes).map_err(|cause| not_utf8(bytes, cause.valid_up_to()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some((offset, character)) = text.char_indices().find(|(_, c)| is_unprintable(*c)) {
        return Err(ErrorKind::ControlCharacter(character).at(position_of(text.as_bytes(), offset)));
    }
    if let Some(offset) = first_mark_beyond(text.as_bytes(), limits.nodes) {
        let limit = limits.nodes;
        return Err(ErrorKind::TooManyNodes { limit }.at(position_of(text.as_bytes(), offset)));
    }
    build::document(text, limits, dialect)
}

/// Whether the character must be escaped in a file (YAML 1.2, section 5.1).
fn is_unprintable(character: char) -> bool {
    character.is_control() && !matches!(character, '\t' | '\n' | '\r' | '\u{85}')
}

/// Returns the offset at which token characters exceed `limit`, if they do.
///
/// The parser reads a whole `[…]` or `{…}` ahead before it returns the first event, so the limit on
/// nodes would apply too late. Every token in it needs one of these characters. Counting them in
/// text and comments too rejects only files that are never written by hand.
fn first_mark_beyond(bytes: &[u8], limit: usize) -> Option<usize> {
    let is_mark = |byte: &u8| b",[]{}:?\"'*&!".contains(byte);
    let marks = bytes.iter().enumerate().filter(|(_, byte)| is_mark(byte));
    marks.map(|(offset, _)| offset).nth(limit)
}

fn not_utf8(bytes: &[u8], offset: usize) -> Error {
    ErrorKind::NotUtf8 { offset }.at(position_of(bytes, offset))
}

/// Returns the position of a byte offset.
fn position_of(bytes: &[u8], offset: usize) -> Position {
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
