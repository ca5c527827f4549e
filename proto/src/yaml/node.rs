//! The node tree.

use std::{collections::HashMap, fmt};

use crate::secret::Redacted;

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub col: u32,
}

impl Position {
    /// The first character.
    pub const START: Self = Self { line: 1, col: 1 };

    pub(super) fn zero_based(line: usize, col: usize) -> Self {
        let one_based = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).saturating_add(1);
        Self {
            line: one_based(line),
            col: one_based(col),
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} col {}", self.line, self.col)
    }
}

/// One value and where it starts; an expanded alias keeps the place of its anchor.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Its first character.
    pub at: Position,
}

/// What a [`Node`] holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text, typed only by its reader.
    Scalar(Scalar),
    /// A list.
    Seq(Vec<Node>),
    /// A mapping.
    Map(Map),
}

/// A scalar before anyone decided its type.
#[derive(Clone, PartialEq, Eq)]
pub struct Scalar {
    /// The text after quotes, folding and escapes are removed.
    pub text: String,
    /// Written without quotes, so it may be a number, a boolean or null.
    pub plain: bool,
}

/// Hides the text: it may be a value of the environment.
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
    /// The text; keys of other types are compared and shown as text.
    pub text: String,
    /// Where the key starts.
    pub at: Position,
}

/// A mapping in file order, without duplicate keys; merged keys follow the written ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map {
    entries: Vec<(Key, Node)>,
    /// Places by key; empty while a search by eye is as fast.
    index: HashMap<String, usize>,
}

impl Map {
    /// `entries` must not repeat a key.
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

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|(_, node)| node)
    }

    /// The entry of `key`.
    pub fn entry(&self, key: &str) -> Option<&(Key, Node)> {
        if self.index.is_empty() {
            return self.entries.iter().find(|(k, _)| k.text == key);
        }
        self.index
            .get(key)
            .and_then(|place| self.entries.get(*place))
    }

    /// Every entry in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Node)> {
        self.entries.iter().map(|(key, node)| (key, node))
    }

    /// Every value in order, to be changed in place.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.entries.iter_mut().map(|(_, node)| node)
    }

    /// Every entry by key, bytewise.
    pub fn sorted(&self) -> Vec<(&Key, &Node)> {
        let mut entries: Vec<_> = self.iter().collect();
        entries.sort_by(|(a, _), (b, _)| a.text.cmp(&b.text));
        entries
    }

    /// Whether `key` is set, to null included.
    pub fn contains(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Node {
    /// The mapping, if this is one.
    pub fn as_map(&self) -> Option<&Map> {
        match &self.value {
            Value::Map(map) => Some(map),
            Value::Scalar(_) | Value::Seq(_) => None,
        }
    }

    /// The list, if this is one.
    pub fn as_seq(&self) -> Option<&[Node]> {
        match &self.value {
            Value::Seq(items) => Some(items),
            Value::Scalar(_) | Value::Map(_) => None,
        }
    }

    /// The scalar, if this is one.
    pub fn as_scalar(&self) -> Option<&Scalar> {
        match &self.value {
            Value::Scalar(scalar) => Some(scalar),
            Value::Seq(_) | Value::Map(_) => None,
        }
    }

    /// The source text, if this is a scalar of any type.
    pub fn text(&self) -> Option<&str> {
        self.as_scalar().map(|scalar| scalar.text.as_str())
    }

    /// Whether this is an explicit or implied null.
    pub fn is_null(&self) -> bool {
        self.as_scalar().is_some_and(Scalar::is_null)
    }

    /// What the node is, for messages: `a mapping`, `a string` and so on.
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Map(_) => "a mapping",
            Value::Seq(_) => "a list",
            Value::Scalar(scalar) => scalar.resolve().kind(),
        }
    }
}
