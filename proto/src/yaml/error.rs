//! Errors of parsing.

use super::Position;

/// An error with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {kind}")]
pub struct Error {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// Position of the error.
    pub at: Position,
}

/// Kind of an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The input exceeds the size limit.
    #[error("the file is larger than {limit} bytes")]
    InputTooLarge {
        /// Limit, in bytes.
        limit: usize,
    },
    /// The input is not UTF-8.
    #[error("invalid UTF-8 at byte {offset}")]
    NotUtf8 {
        /// Offset of the first invalid byte.
        offset: usize,
    },
    /// The input has a control character other than a tab or a line break.
    #[error("control character U+{:04X} is not allowed; write it as an escape in double quotes", u32::from(*.0))]
    ControlCharacter(char),
    /// The input violates the grammar.
    #[error("{0}")]
    Syntax(String),
    /// A mapping has a duplicate key.
    #[error("key {key:?} is already set on line {first}")]
    DuplicateKey {
        /// The repeated key.
        key: String,
        /// Line of its first use.
        first: u32,
    },
    /// A list or mapping is used as a key.
    #[error("only scalars may be keys")]
    ComplexKey,
    /// An alias inside the node of its anchor.
    #[error("an alias cannot stand inside the node it names")]
    RecursiveAlias,
    /// A `<<` whose value is not a mapping or a list of mappings.
    #[error("<< takes a mapping or a list of mappings")]
    BadMerge,
    /// An unsupported tag.
    #[error("unsupported tag {0}")]
    UnsupportedTag(String),
    /// The nesting exceeds the limit.
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// Limit.
        limit: usize,
    },
    /// Too many nodes after aliases are expanded.
    #[error("more than {limit} values after aliases are expanded")]
    TooManyNodes {
        /// Limit.
        limit: usize,
    },
    /// Too much text after aliases are expanded.
    #[error("more than {limit} bytes of text after aliases are expanded")]
    TooMuchText {
        /// Limit, in bytes.
        limit: usize,
    },
}

impl ErrorKind {
    pub(super) fn at(self, at: Position) -> Error {
        Error { kind: self, at }
    }
}
