//! The node tree.

use std::{collections::HashMap, fmt};

use crate::secret::Redacted;

/// A position in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub col: u32,
    /// Number of the file among those that make up a document; 0 for a document of one file.
    pub file: u16,
}

impl Position {
    /// Position of the first character.
    pub const START: Self = Self {
        line: 1,
        col: 1,
        file: 0,
    };

    pub(super) fn zero_based(line: usize, col: usize) -> Self {
        let one_based = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).saturating_add(1);
        Self {
            line: one_based(line),
            col: one_based(col),
            file: 0,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} col {}", self.line, self.col)
    }
}

/// A value with its position; an expanded alias has the position of its anchor.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Position of its first character.
    pub at: Position,
    /// How it is merged with the node that it overrides.
    pub merge: Merge,
}

/// How a node of a compose file is merged with that of an earlier file.
///
/// Source: Compose Specification, 13-merge.md, "Reset value" and "Replace value".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merge {
    /// By the rules of its key.
    #[default]
    Combine,
    /// Tag `!reset`: removes the earlier value.
    Reset,
    /// Tag `!override`: replaces the earlier value.
    Replace,
}

/// Content of a [`Node`].
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A scalar, not typed yet.
    Scalar(Scalar),
    /// A list.
    Seq(Vec<Node>),
    /// A mapping.
    Map(Map),
}

/// A scalar without a resolved type.
#[derive(Clone, PartialEq, Eq)]
pub struct Scalar {
    /// Text without quotes, with folding and escapes resolved.
    pub text: String,
    /// Whether it is unquoted, and therefore may be a number, a boolean or null.
    pub plain: bool,
}

/// Redacts the text, which may be a secret environment variable.
impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scalar")
            .field("text", &Redacted(()))
            .field("plain", &self.plain)
            .finish()
    }
}

/// A key of a [`Map`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Text of the key; keys of other types are compared and printed as text.
    pub text: String,
    /// Position of the key.
    pub at: Position,
}

/// A mapping in file order, without duplicate keys; merged keys follow the explicit ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map {
    entries: Vec<(Key, Node)>,
    /// Entry indexes by key; empty for small maps, where a linear search is as fast.
    index: HashMap<String, usize>,
}

impl Map {
    /// Creates a map; `entries` must not have duplicate keys.
    pub(crate) fn new(entries: Vec<(Key, Node)>) -> Self {
        let mut index = HashMap::new();
        if entries.len() > 16 {
            let keys = entries.iter().enumerate();
            index.extend(keys.map(|(place, (key, _))| (key.text.clone(), place)));
        }
        Self { entries, index }
    }

    pub(crate) fn into_entries(self) -> Vec<(Key, Node)> {
        self.entries
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|(_, node)| node)
    }

    /// Returns the entry of `key`.
    pub fn entry(&self, key: &str) -> Option<&(Key, Node)> {
        if self.index.is_empty() {
            return self.entries.iter().find(|(k, _)| k.text == key);
        }
        self.index
            .get(key)
            .and_then(|place| self.entries.get(*place))
    }

    /// Iterates over the entries in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Node)> {
        self.entries.iter().map(|(key, node)| (key, node))
    }

    /// Returns the value of `key`, mutably.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        let place = match self.index.get(key) {
            Some(place) => *place,
            None => self.entries.iter().position(|(k, _)| k.text == key)?,
        };
        self.entries.get_mut(place).map(|(_, node)| node)
    }

    /// Iterates over the entries in order, with mutable values.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&Key, &mut Node)> {
        self.entries.iter_mut().map(|(key, node)| (&*key, node))
    }

    /// Keeps the entries for whose key `keep` is true.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        let mut entries = std::mem::take(self).into_entries();
        entries.retain(|(key, _)| keep(&key.text));
        *self = Self::new(entries);
    }

    /// Iterates over the values in order, mutably.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.entries.iter_mut().map(|(_, node)| node)
    }

    /// Returns the entries sorted by key, bytewise.
    pub fn sorted(&self) -> Vec<(&Key, &Node)> {
        let mut entries: Vec<_> = self.iter().collect();
        entries.sort_by(|(a, _), (b, _)| a.text.cmp(&b.text));
        entries
    }

    /// Whether `key` is present, even with null.
    pub fn contains(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Node {
    /// Creates a node that is merged by the rules of its key.
    pub fn new(value: Value, at: Position) -> Self {
        Self {
            value,
            at,
            merge: Merge::Combine,
        }
    }

    /// Returns the mapping, if the node is one.
    pub fn as_map(&self) -> Option<&Map> {
        match &self.value {
            Value::Map(map) => Some(map),
            Value::Scalar(_) | Value::Seq(_) => None,
        }
    }

    /// Returns the value of `key`, mutably, if the node is a mapping that has it.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        match &mut self.value {
            Value::Map(map) => map.get_mut(key),
            Value::Scalar(_) | Value::Seq(_) => None,
        }
    }

    /// Returns the list, if the node is one.
    pub fn as_seq(&self) -> Option<&[Node]> {
        match &self.value {
            Value::Seq(items) => Some(items),
            Value::Scalar(_) | Value::Map(_) => None,
        }
    }

    /// Returns the scalar, if the node is one.
    pub fn as_scalar(&self) -> Option<&Scalar> {
        match &self.value {
            Value::Scalar(scalar) => Some(scalar),
            Value::Seq(_) | Value::Map(_) => None,
        }
    }

    /// Returns the source text, if the node is a scalar of any type.
    pub fn text(&self) -> Option<&str> {
        self.as_scalar().map(|scalar| scalar.text.as_str())
    }

    /// Whether the node is an explicit or implied null.
    pub fn is_null(&self) -> bool {
        self.as_scalar().is_some_and(Scalar::is_null)
    }

    /// Returns the kind of the node for messages: `a mapping`, `a string` and so on.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Map(_) => "a mapping",
            Value::Seq(_) => "a list",
            Value::Scalar(scalar) => scalar.resolve().kind(),
        }
    }
}
