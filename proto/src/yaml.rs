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
    /// Most nodes after aliases are expanded.
    pub nodes: usize,
    /// Most bytes of scalar text after aliases are expanded.
    pub text_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            input_bytes: 4 << 20,
            depth: 64,
            nodes: 250_000,
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
    build::document(text.strip_prefix('\u{feff}').unwrap_or(text), limits)
}

fn not_utf8(bytes: &[u8], offset: usize) -> Error {
    let before = &bytes[..offset];
    let line_start = before
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |at| at + 1);
    let newlines = before.iter().filter(|&&byte| byte == b'\n').count();
    let col = String::from_utf8_lossy(&before[line_start..])
        .chars()
        .count();
    ErrorKind::NotUtf8 { offset }.at(Position::zero_based(newlines, col))
}
