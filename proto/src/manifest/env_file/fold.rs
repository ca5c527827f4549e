//! Merges the `env_file` entries of services into their `environment`, and those of `label_file` into
//! their `labels`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
};

use crate::{
    manifest::grammar,
    yaml::{self, Key, Map, Node, Position, Scalar, Value},
};

use super::{parse, parse_raw};

/// Returns the content of a path as written in the compose file.
pub type ReadFile<'a> = &'a mut dyn FnMut(&str) -> io::Result<Vec<u8>>;

/// A compose file without `env_file`.
#[derive(Clone, PartialEq, Eq)]
pub struct Folded {
    /// Content of the file.
    pub bytes: Vec<u8>,
    /// Variables that environment files expanded without a value, sorted.
    pub unset: BTreeSet<String>,
}

/// Omits the content, which may be secret.
impl fmt::Debug for Folded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folded")
            .field("unset", &self.unset)
            .finish_non_exhaustive()
    }
}

/// Reason why an `env_file` cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum FoldError {
    /// The compose file is not valid YAML.
    #[error("resolve env_file")]
    Yaml(#[source] yaml::Error),
    /// The compose file holds more than one document.
    #[error("resolve env_file: a second document starts at {0}")]
    SecondDocument(Position),
    /// The directory is unknown, because the compose file was read from standard input.
    #[error(
        "resolve env_file: service {service:?} has an env_file, which needs a compose file \
         named with --compose"
    )]
    NoDirectory {
        /// Name of the service.
        service: String,
    },
    /// An entry without a path, or an unsupported key in it.
    #[error("resolve env_file: service {service:?} at {at}: {what}")]
    Entry {
        /// Name of the service.
        service: String,
        /// Position of the entry.
        at: Position,
        /// Description of the error.
        what: String,
    },
    /// A required file does not exist.
    #[error("resolve env_file: service {service:?}: {path} not found")]
    NotFound {
        /// Name of the service.
        service: String,
        /// Path of the file, as written.
        path: String,
    },
    /// A file cannot be read.
    #[error("resolve env_file: service {service:?}: read {path}")]
    Read {
        /// Name of the service.
        service: String,
        /// Path of the file, as written.
        path: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file with an invalid line.
    #[error("resolve env_file: service {service:?}: {path}")]
    File {
        /// Name of the service.
        service: String,
        /// Path of the file, as written.
        path: String,
        /// Line and kind of the error.
        source: super::Error,
    },
}

/// Replaces every `env_file` of `compose` by the variables in it.
///
/// `read` returns the content of a path as written, relative to the compose file; `None` stands for
/// a compose file without a directory. A file without `env_file` is returned unchanged.
///
/// # Errors
/// The first error, by service.
pub fn fold(compose: &[u8], read: Option<ReadFile<'_>>) -> Result<Folded, FoldError> {
    let verbatim = || Folded {
        bytes: compose.to_vec(),
        unset: BTreeSet::new(),
    };
    let document = yaml::parse(compose).map_err(FoldError::Yaml)?;
    let Some(root) = document.root.filter(names_files) else {
        return Ok(verbatim());
    };
    if let Some(next) = document.next {
        return Err(FoldError::SecondDocument(next));
    }
    let (root, unset) = fold_node(root, read)?;
    Ok(Folded {
        bytes: yaml::to_string(&root).into_bytes(),
        unset,
    })
}

/// Does the same as [`fold`] to a parsed file; returns the variables that were expanded without a
/// value too.
pub(in crate::manifest) fn fold_node(
    root: Node,
    mut read: Option<ReadFile<'_>>,
) -> Result<(Node, BTreeSet<String>), FoldError> {
    let mut unset = BTreeSet::new();
    if !names_files(&root) {
        return Ok((root, unset));
    }
    let at = root.at;
    let Value::Map(top) = root.value else {
        return Ok((root, unset));
    };
    let mut entries = top.into_entries();
    if let Some((_, services)) = entries.iter_mut().find(|(key, _)| key.text == "services")
        && let Value::Map(map) = &mut services.value
    {
        let mut folded = Vec::with_capacity(map.len());
        for (key, mut node) in std::mem::take(map).into_entries() {
            for kind in [&ENVIRONMENT, &LABELS] {
                node = service(&key.text, node, kind, &mut read, &mut unset)?;
            }
            folded.push((key, node));
        }
        *map = Map::new(folded);
    }
    Ok((Node::new(Value::Map(Map::new(entries)), at), unset))
}

/// A key that names files, and the key that gets their content.
struct Kind {
    files: &'static str,
    values: &'static str,
}

const ENVIRONMENT: Kind = Kind {
    files: "env_file",
    values: "environment",
};

const LABELS: Kind = Kind {
    files: "label_file",
    values: "labels",
};

/// Whether a service names files.
fn names_files(root: &Node) -> bool {
    let services = root.as_map().and_then(|map| map.get("services")?.as_map());
    let names = |map: &Map| map.contains(ENVIRONMENT.files) || map.contains(LABELS.files);
    services.is_some_and(|services| {
        let mut services = services.iter();
        services.any(|(_, service)| service.as_map().is_some_and(names))
    })
}

fn service(
    name: &str,
    node: Node,
    kind: &Kind,
    read: &mut Option<ReadFile<'_>>,
    unset: &mut BTreeSet<String>,
) -> Result<Node, FoldError> {
    let at = node.at;
    let map = match node.value {
        Value::Map(map) if map.contains(kind.files) => map,
        value @ (Value::Map(_) | Value::Seq(_) | Value::Scalar(_)) => {
            return Ok(Node::new(value, at));
        }
    };
    let explicit = match map.get(kind.values) {
        Some(node) => explicit(name, kind, node)?,
        None => BTreeMap::new(),
    };
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    for file in files(name, kind, &map)? {
        let Some(read) = read.as_mut() else {
            let service = name.to_owned();
            return Err(FoldError::NoDirectory { service });
        };
        let Some(bytes) = content(name, &file, read)? else {
            continue;
        };
        let lookup = |key: &str| {
            let given = explicit.get(key).cloned().flatten();
            given.or_else(|| values.get(key).cloned())
        };
        let parsed = if file.raw {
            parse_raw(&bytes)
        } else {
            parse(&bytes, lookup)
        };
        let parsed = parsed.map_err(|source| FoldError::File {
            service: name.to_owned(),
            path: file.path.clone(),
            source,
        })?;
        unset.extend(parsed.unset);
        values.extend(parsed.values);
    }
    let mut merged: BTreeMap<String, Option<String>> = values
        .into_iter()
        .map(|(key, value)| (key, Some(value)))
        .collect();
    merged.extend(explicit);
    Ok(with_values(map, at, kind, merged))
}

/// Returns the explicit values, with `None` for keys without one.
fn explicit(
    service: &str,
    kind: &Kind,
    node: &Node,
) -> Result<BTreeMap<String, Option<String>>, FoldError> {
    let wrong = |node: &Node, what: &str| FoldError::Entry {
        service: service.to_owned(),
        at: node.at,
        what: format!("{what}, not {}", node.kind()),
    };
    match &node.value {
        Value::Map(map) => map
            .iter()
            .map(|(key, value)| {
                let text = value
                    .text()
                    .ok_or_else(|| wrong(value, "a variable needs a string"))?;
                let text = (!value.is_null()).then(|| text.to_owned());
                Ok((key.text.clone(), text))
            })
            .collect(),
        Value::Seq(items) => items
            .iter()
            .map(|item| {
                let text = item.text().filter(|_| !item.is_null());
                let text = text.ok_or_else(|| wrong(item, "a variable needs a string"))?;
                Ok(match text.split_once('=') {
                    Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
                    None => (text.to_owned(), None),
                })
            })
            .collect(),
        Value::Scalar(scalar) if scalar.is_null() => Ok(BTreeMap::new()),
        Value::Scalar(_) => {
            let what = format!("{} must be a mapping or a list", kind.values);
            Err(wrong(node, &what))
        }
    }
}

fn with_values(
    map: Map,
    at: Position,
    kind: &Kind,
    values: BTreeMap<String, Option<String>>,
) -> Node {
    let entries = values.into_iter().map(|(text, value)| {
        let scalar = match value {
            Some(text) => Scalar::string(text),
            None => Scalar {
                text: "null".to_owned(),
                plain: true,
            },
        };
        let value = Value::Scalar(scalar);
        (Key { text, at }, Node::new(value, at))
    });
    let values = Node::new(Value::Map(Map::new(entries.collect())), at);
    let mut kept = map.into_entries();
    kept.retain(|(key, _)| key.text != kind.files && key.text != kind.values);
    let key = Key {
        text: kind.values.to_owned(),
        at,
    };
    kept.push((key, values));
    Node::new(Value::Map(Map::new(kept)), at)
}

/// One entry of `env_file`.
struct File {
    path: String,
    required: bool,
    /// Whether values are taken as written, without quotes and variables.
    raw: bool,
}

fn files(service: &str, kind: &Kind, map: &Map) -> Result<Vec<File>, FoldError> {
    let Some(node) = map.get(kind.files).filter(|node| !node.is_null()) else {
        return Ok(Vec::new());
    };
    match &node.value {
        Value::Seq(items) => items.iter().map(|item| file(service, item)).collect(),
        Value::Scalar(_) | Value::Map(_) => Ok(vec![file(service, node)?]),
    }
}

fn file(service: &str, node: &Node) -> Result<File, FoldError> {
    let fail = |node: &Node, what: &str| FoldError::Entry {
        service: service.to_owned(),
        at: node.at,
        what: what.to_owned(),
    };
    let path = |node: &Node| match node.text() {
        Some(text) if !text.is_empty() && !node.is_null() => Ok(text.to_owned()),
        Some(_) | None => Err(fail(node, "an entry needs a path")),
    };
    let Value::Map(map) = &node.value else {
        let path = path(node)?;
        return Ok(File {
            path,
            required: true,
            raw: false,
        });
    };
    let mut required = true;
    let mut raw = false;
    for (key, value) in map.iter() {
        match key.text.as_str() {
            "path" => {}
            "required" => {
                let text = value.text().unwrap_or_default();
                required = grammar::boolean(text)
                    .ok_or_else(|| fail(value, "required must be a boolean"))?;
            }
            "format" => match value.text().filter(|_| !value.is_null()) {
                None | Some("") => {}
                Some("raw") => raw = true,
                Some(other) => {
                    let what = format!("format {other:?} is unknown, want raw");
                    return Err(fail(value, &what));
                }
            },
            other => return Err(fail(value, &format!("unknown key {other:?}"))),
        }
    }
    let given = map
        .get("path")
        .ok_or_else(|| fail(node, "an entry needs a path"))?;
    Ok(File {
        path: path(given)?,
        required,
        raw,
    })
}

fn content(service: &str, file: &File, read: ReadFile<'_>) -> Result<Option<Vec<u8>>, FoldError> {
    match read(&file.path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound && !file.required => Ok(None),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Err(FoldError::NotFound {
            service: service.to_owned(),
            path: file.path.clone(),
        }),
        Err(source) => Err(FoldError::Read {
            service: service.to_owned(),
            path: file.path.clone(),
            source,
        }),
    }
}
