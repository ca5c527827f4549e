//! Merges the `env_file` entries of services into their `environment`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
};

use crate::{
    manifest::grammar,
    yaml::{self, Key, Map, Node, Position, Scalar, Value},
};

use super::parse;

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
pub fn fold(compose: &[u8], mut read: Option<ReadFile<'_>>) -> Result<Folded, FoldError> {
    let verbatim = || Folded {
        bytes: compose.to_vec(),
        unset: BTreeSet::new(),
    };
    let document = yaml::parse(compose).map_err(FoldError::Yaml)?;
    let Some(root) = document.root.filter(has_env_file) else {
        return Ok(verbatim());
    };
    if let Some(next) = document.next {
        return Err(FoldError::SecondDocument(next));
    }
    let Value::Map(top) = root.value else {
        return Ok(verbatim());
    };
    let mut unset = BTreeSet::new();
    let mut entries = top.into_entries();
    if let Some((_, services)) = entries.iter_mut().find(|(key, _)| key.text == "services")
        && let Value::Map(map) = &mut services.value
    {
        let mut folded = Vec::with_capacity(map.len());
        for (key, node) in std::mem::take(map).into_entries() {
            let node = service(&key.text, node, &mut read, &mut unset)?;
            folded.push((key, node));
        }
        *map = Map::new(folded);
    }
    let root = Node {
        value: Value::Map(Map::new(entries)),
        at: root.at,
    };
    Ok(Folded {
        bytes: yaml::to_string(&root).into_bytes(),
        unset,
    })
}

fn has_env_file(root: &Node) -> bool {
    let services = root.as_map().and_then(|map| map.get("services")?.as_map());
    services.is_some_and(|services| {
        services
            .iter()
            .any(|(_, service)| service.as_map().is_some_and(|map| map.contains("env_file")))
    })
}

fn service(
    name: &str,
    node: Node,
    read: &mut Option<ReadFile<'_>>,
    unset: &mut BTreeSet<String>,
) -> Result<Node, FoldError> {
    let at = node.at;
    let map = match node.value {
        Value::Map(map) if map.contains("env_file") => map,
        value @ (Value::Map(_) | Value::Seq(_) | Value::Scalar(_)) => {
            return Ok(Node { value, at });
        }
    };
    let explicit = match map.get("environment") {
        Some(node) => explicit(name, node)?,
        None => BTreeMap::new(),
    };
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    for file in files(name, &map)? {
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
        let parsed = parse(&bytes, lookup).map_err(|source| FoldError::File {
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
    Ok(with_environment(map, at, merged))
}

/// Returns the variables of `environment`, with `None` for keys without a value.
fn explicit(service: &str, node: &Node) -> Result<BTreeMap<String, Option<String>>, FoldError> {
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
        Value::Scalar(_) => Err(wrong(node, "environment must be a mapping or a list")),
    }
}

fn with_environment(map: Map, at: Position, environment: BTreeMap<String, Option<String>>) -> Node {
    let entries = environment.into_iter().map(|(text, value)| {
        let scalar = match value {
            Some(text) => Scalar::string(text),
            None => Scalar {
                text: "null".to_owned(),
                plain: true,
            },
        };
        let value = Value::Scalar(scalar);
        (Key { text, at }, Node { value, at })
    });
    let environment = Node {
        value: Value::Map(Map::new(entries.collect())),
        at,
    };
    let mut kept = map.into_entries();
    kept.retain(|(key, _)| !matches!(key.text.as_str(), "env_file" | "environment"));
    let key = Key {
        text: "environment".to_owned(),
        at,
    };
    kept.push((key, environment));
    Node {
        value: Value::Map(Map::new(kept)),
        at,
    }
}

/// One entry of `env_file`.
struct File {
    path: String,
    required: bool,
}

fn files(service: &str, map: &Map) -> Result<Vec<File>, FoldError> {
    let Some(node) = map.get("env_file").filter(|node| !node.is_null()) else {
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
        });
    };
    let mut required = true;
    for (key, value) in map.iter() {
        match key.text.as_str() {
            "path" => {}
            "required" => {
                let text = value.text().unwrap_or_default();
                required = grammar::boolean(text)
                    .ok_or_else(|| fail(value, "required must be a boolean"))?;
            }
            "format" => return Err(fail(value, "format is not supported")),
            other => return Err(fail(value, &format!("unknown key {other:?}"))),
        }
    }
    let given = map
        .get("path")
        .ok_or_else(|| fail(node, "an entry needs a path"))?;
    Ok(File {
        path: path(given)?,
        required,
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
