//! Interpolation of variables in a compose file, on the client.
//!
//! Values come from the deployment's environment file only. Every scalar is expanded, keys
//! included, and stays a string; a file without changes is passed on byte by byte.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::yaml::{self, Key, Map, Node, Position, Scalar, Value};

pub use super::template::ExpandError;
use super::template::expand;

/// Maximum of bytes of all expanded scalars; a few short lines could expand to gigabytes.
const LENGTH: usize = 8 << 20;

/// A compose file with its variables replaced.
#[derive(Clone, PartialEq, Eq)]
pub struct Interpolated {
    /// Content of the file.
    pub bytes: Vec<u8>,
    /// Variables that were expanded without a value, sorted.
    pub unset: BTreeSet<String>,
}

/// Omits the content, which may be secret.
impl fmt::Debug for Interpolated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interpolated")
            .field("unset", &self.unset)
            .finish_non_exhaustive()
    }
}

/// Reason why a file cannot be interpolated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not valid YAML.
    #[error("interpolate {path}")]
    Yaml {
        /// Path of the file.
        path: String,
        /// Error of the parser.
        source: yaml::Error,
    },
    /// The file holds more than one document.
    #[error("interpolate {path}: a second document starts at {at}")]
    SecondDocument {
        /// Path of the file.
        path: String,
        /// Start of the second document.
        at: Position,
    },
    /// A scalar cannot be expanded.
    #[error("interpolate {path}: interpolate {} at {at}: {fault}", .fault.subject())]
    Template {
        /// Path of the file.
        path: String,
        /// Start of the scalar.
        at: Position,
        /// Error in the scalar.
        fault: ExpandError,
    },
    /// Two keys of a mapping are equal after expansion.
    #[error("interpolate {path}: key {key:?} at {at} is in its mapping already")]
    DuplicateKey {
        /// Path of the file.
        path: String,
        /// The key after expansion.
        key: String,
        /// Start of the key.
        at: Position,
    },
}

/// Replaces the variables of `compose`; `path` is the file's name in messages.
///
/// # Errors
/// [`Error`] with the position of the first invalid scalar.
pub fn interpolate(
    compose: &[u8],
    path: &str,
    variables: &BTreeMap<String, String>,
) -> Result<Interpolated, Error> {
    let mut walk = Walk::new(path, variables);
    let verbatim = |unset| Interpolated {
        bytes: compose.to_vec(),
        unset,
    };
    if !compose.contains(&b'$') {
        return Ok(verbatim(BTreeSet::new()));
    }
    let document = yaml::parse(compose).map_err(|source| Error::Yaml {
        path: path.to_owned(),
        source,
    })?;
    if let Some(at) = document.next {
        return Err(Error::SecondDocument {
            path: path.to_owned(),
            at,
        });
    }
    let Some(root) = document.root else {
        return Ok(verbatim(BTreeSet::new()));
    };
    let root = walk.node(root)?;
    if !walk.changed {
        return Ok(verbatim(walk.unset));
    }
    Ok(Interpolated {
        bytes: yaml::to_string(&root).into_bytes(),
        unset: walk.unset,
    })
}

/// Replaces the variables of a parsed file; returns those that were expanded without a value too.
pub(super) fn expand_node(
    root: Node,
    path: &str,
    variables: &BTreeMap<String, String>,
) -> Result<(Node, BTreeSet<String>), Error> {
    let mut walk = Walk::new(path, variables);
    let root = walk.node(root)?;
    Ok((root, walk.unset))
}

struct Walk<'a> {
    path: &'a str,
    variables: &'a BTreeMap<String, String>,
    unset: BTreeSet<String>,
    changed: bool,
    /// Total length of the expanded scalars so far.
    bytes: usize,
}

impl<'a> Walk<'a> {
    fn new(path: &'a str, variables: &'a BTreeMap<String, String>) -> Self {
        Self {
            path,
            variables,
            unset: BTreeSet::new(),
            changed: false,
            bytes: 0,
        }
    }

    fn node(&mut self, node: Node) -> Result<Node, Error> {
        let (at, merge) = (node.at, node.merge);
        let value = match node.value {
            Value::Scalar(scalar) => Value::Scalar(self.scalar(scalar, at)?),
            Value::Seq(items) => {
                let items = items.into_iter().map(|item| self.node(item));
                Value::Seq(items.collect::<Result<_, _>>()?)
            }
            Value::Map(map) => self.map(map)?,
        };
        Ok(Node { value, at, merge })
    }

    fn scalar(&mut self, scalar: Scalar, at: Position) -> Result<Scalar, Error> {
        let text = self.text(&scalar.text, at)?;
        Ok(match text {
            Some(text) => Scalar::string(text),
            None => scalar,
        })
    }

    fn map(&mut self, map: Map) -> Result<Value, Error> {
        let mut seen = BTreeSet::new();
        let mut entries = Vec::with_capacity(map.len());
        for (key, value) in map.into_entries() {
            let key = Key {
                text: self.text(&key.text, key.at)?.unwrap_or(key.text),
                at: key.at,
            };
            if !seen.insert(key.text.clone()) {
                return Err(Error::DuplicateKey {
                    path: self.path.to_owned(),
                    key: key.text,
                    at: key.at,
                });
            }
            entries.push((key, self.node(value)?));
        }
        Ok(Value::Map(Map::new(entries)))
    }

    /// Returns the expanded text, if it differs.
    fn text(&mut self, text: &str, at: Position) -> Result<Option<String>, Error> {
        if !text.contains('$') {
            return Ok(None);
        }
        let variables = self.variables;
        let lookup = |name: &str| variables.get(name).cloned();
        let unset = &mut self.unset;
        let expanded = expand(text, &lookup, &mut |name| {
            unset.insert(name.to_owned());
        });
        let expanded = expanded.and_then(|text| {
            self.bytes += text.len();
            if self.bytes > LENGTH {
                return Err(ExpandError::TooLong { limit: LENGTH });
            }
            Ok(text)
        });
        let expanded = expanded.map_err(|fault| Error::Template {
            path: self.path.to_owned(),
            at,
            fault,
        })?;
        let differs = expanded != text;
        self.changed |= differs;
        Ok(differs.then_some(expanded))
    }
}
