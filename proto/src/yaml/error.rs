//! Why a text is not an acceptable document.

use super::Position;

/// A refusal with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {kind}")]
pub struct Error {
    /// What is wrong.
    pub kind: ErrorKind,
    /// Where.
    pub at: Position,
}

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The input is longer than allowed.
    #[error("the file is larger than {limit} bytes")]
    InputTooLarge {
        /// Longest input in bytes.
        limit: usize,
    },
    /// The input is not UTF-8.
    #[error("invalid UTF-8 at byte {offset}")]
    NotUtf8 {
        /// Offset of the first bad byte.
        offset: usize,
    },
    /// The input holds a control character that is not a tab or a line break.
    #[error("control character U+{:04X} is not allowed; write it as an escape in double quotes", u32::from(*.0))]
    ControlCharacter(char),
    /// The input breaks the grammar.
    #[error("{0}")]
    Syntax(String),
    /// A mapping has a key twice.
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
    /// An alias inside the node it names.
    #[error("an alias cannot stand inside the node it names")]
    RecursiveAlias,
    /// `<<` with something else than mappings.
    #[error("<< takes a mapping or a list of mappings")]
    BadMerge,
    /// A tag that changes the meaning of a node in a way nobody reads here.
    #[error("unsupported tag {0}")]
    UnsupportedTag(String),
    /// Nesting beyond the limit.
    #[error("nested deeper than {limit} levels")]
    TooDeep {
        /// Deepest nesting.
        limit: usize,
    },
    /// Too many nodes once aliases are expanded.
    #[error("more than {limit} values after aliases are expanded")]
    TooManyNodes {
        /// Most nodes.
        limit: usize,
    },
    /// Too much text once aliases are expanded.
    #[error("more than {limit} bytes of text after aliases are expanded")]
    TooMuchText {
        /// Most bytes.
        limit: usize,
    },
}

impl ErrorKind {
    pub(super) fn at(self, at: Position) -> Error {
        Error { kind: self, at }
    }
}
