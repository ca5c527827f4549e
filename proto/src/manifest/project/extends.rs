//! Services that extend others, in the same file or in another one.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};

use crate::{
    Error,
    manifest::fault::{Located, invalid, suggestion},
    yaml::{Key, Map, Node, Value},
};

use super::{Loader, MAX_CHAIN, ResolveError, merge, paths, services};

/// Services of one file, each resolved at most once.
struct File {
    path: PathBuf,
    raw: HashMap<String, Node>,
    resolved: HashMap<String, Node>,
}

impl File {
    fn new(path: &Path, root: &Node) -> Self {
        let entries = services(root).into_iter().flat_map(Map::iter);
        Self {
            path: path.to_owned(),
            raw: entries
                .map(|(key, node)| (key.text.clone(), node.clone()))
                .collect(),
            resolved: HashMap::new(),
        }
    }
}

/// The files read so far, and the services that are being resolved.
struct Resolver<'v> {
    variables: &'v BTreeMap<String, String>,
    files: Vec<File>,
    /// Services of a chain of `extends`, by file and name, outermost first.
    chain: Vec<(usize, String)>,
}

/// Resolves the services of a file that extend others.
pub(super) fn apply(
    loader: &mut Loader<'_>,
    root: Node,
    path: &Path,
    variables: &BTreeMap<String, String>,
) -> Result<Node, ResolveError> {
    let extends = |(_, node): (&Key, &Node)| {
        let map = node.as_map();
        map.is_some_and(|map| map.contains("extends"))
    };
    if !services(&root).is_some_and(|services| services.iter().any(extends)) {
        return Ok(root);
    }
    let mut resolver = Resolver {
        variables,
        files: vec![File::new(path, &root)],
        chain: Vec::new(),
    };
    let (at, merge) = (root.at, root.merge);
    let Value::Map(top) = root.value else {
        return Ok(Node { ..root });
    };
    let mut entries = top.into_entries();
    for (key, node) in &mut entries {
        if key.text == "services"
            && let Value::Map(map) = &mut node.value
        {
            let mut resolved = Vec::with_capacity(map.len());
            for (name, _) in std::mem::take(map).into_entries() {
                let node = resolver.service(loader, 0, &name.text)?;
                resolved.push((name, node));
            }
            *map = Map::new(resolved);
        }
    }
    Ok(Node {
        value: Value::Map(Map::new(entries)),
        at,
        merge,
    })
}

impl Resolver<'_> {
    /// Returns a service with everything that it extends.
    fn service(
        &mut self,
        loader: &mut Loader<'_>,
        file: usize,
        name: &str,
    ) -> Result<Node, ResolveError> {
        if let Some(done) = self.files[file].resolved.get(name) {
            let node = done.clone();
            loader.spend(&node)?;
            return Ok(node);
        }
        let Some(raw) = self.files[file].raw.get(name).cloned() else {
            return Err(invalid(format!("service {name:?} does not exist")).into());
        };
        loader.spend(&raw)?;
        let Some((extends, own)) = split(raw.clone()) else {
            return Ok(raw);
        };
        let place = (file, name.to_owned());
        if self.chain.contains(&place) || self.chain.len() >= MAX_CHAIN {
            return Err(self.cycle(&place, &extends).into());
        }
        let reference = Reference::of(name, &extends)?;
        let target = match &reference.file {
            Some(path) => self.open(loader, file, path, &extends)?,
            None => file,
        };
        if !self.files[target].raw.contains_key(&reference.service) {
            return Err(self.missing(name, target, &reference, &extends).into());
        }
        self.chain.push(place);
        let base = self.service(loader, target, &reference.service)?;
        self.chain.pop();
        let base = if base.is_null() {
            Node::new(Value::Map(Map::default()), base.at)
        } else {
            base
        };
        let path = &mut vec!["services".to_owned(), name.to_owned()];
        let merged = merge::merge(base, own, path)?;
        let known = &mut self.files[file].resolved;
        known.insert(name.to_owned(), merged.clone());
        Ok(merged)
    }

    /// Reads the file of a reference, with absolute paths.
    fn open(
        &mut self,
        loader: &mut Loader<'_>,
        from: usize,
        path: &str,
        extends: &Node,
    ) -> Result<usize, ResolveError> {
        if is_remote(path) {
            return Err(remote("extends", path, extends).into());
        }
        let directory = self.files[from].path.parent().unwrap_or(Path::new(""));
        let path = paths::clean(&directory.join(path));
        if let Some(known) = self.files.iter().position(|file| file.path == path) {
            return Ok(known);
        }
        let given = loader.read(&path)?;
        let mut root = loader.parse(given, self.variables)?;
        let home = loader.home.clone();
        let base = paths::Base {
            directory: path.parent().unwrap_or(Path::new("")),
            home: home.as_deref(),
        };
        paths::resolve(&mut root, base, &mut loader.relative)?;
        self.files.push(File::new(&path, &root));
        Ok(self.files.len() - 1)
    }

    fn cycle(&self, place: &(usize, String), extends: &Node) -> Error {
        let start = self.chain.iter().position(|known| known == place);
        let names = self.chain.get(start.unwrap_or(0)..).unwrap_or_default();
        let names = names.iter().chain([place]).map(|(_, name)| name.as_str());
        let names: Vec<&str> = names.collect();
        let message = match start {
            Some(_) => format!("services extend each other: {}", names.join(" -> ")),
            None => format!("services extend each other over more than {MAX_CHAIN} steps"),
        };
        invalid(message)
            .with("service", &place.1)
            .with("field", "extends")
            .at(extends.at)
    }

    fn missing(&self, name: &str, target: usize, to: &Reference, extends: &Node) -> Error {
        let file = &self.files[target];
        let near = suggestion(&to.service, file.raw.keys().map(String::as_str));
        let place = match &to.file {
            Some(path) => format!("in {path}"),
            None => "in its file".to_owned(),
        };
        let message = format!(
            "service {name:?} extends {:?}, which is not {place}{near}",
            to.service
        );
        invalid(message)
            .with("service", name)
            .with("field", "extends")
            .with("value", &to.service)
            .at(extends.at)
    }
}

/// Separates `extends` from the other keys of a service; `None` if it extends nothing.
fn split(service: Node) -> Option<(Node, Node)> {
    let (at, merge) = (service.at, service.merge);
    let Value::Map(map) = service.value else {
        return None;
    };
    let mut entries = map.into_entries();
    let place = entries.iter().position(|(key, _)| key.text == "extends")?;
    let (_, extends) = entries.remove(place);
    if extends.is_null() {
        return None;
    }
    let own = Node {
        value: Value::Map(Map::new(entries)),
        at,
        merge,
    };
    Some((extends, own))
}

/// Service that another one extends.
struct Reference {
    service: String,
    file: Option<String>,
}

impl Reference {
    fn of(name: &str, node: &Node) -> Result<Self, Error> {
        let wrong = |node: &Node, what: &str| {
            invalid(format!("extends of service {name:?} {what}"))
                .with("service", name)
                .with("field", "extends")
                .at(node.at)
        };
        let text = |node: &Node| {
            let text = node
                .text()
                .filter(|text| !text.is_empty() && !node.is_null());
            text.map(str::to_owned)
        };
        match &node.value {
            Value::Scalar(_) => {
                let service = text(node).ok_or_else(|| wrong(node, "names no service"))?;
                Ok(Self {
                    service,
                    file: None,
                })
            }
            Value::Map(map) => {
                for (key, value) in map.iter() {
                    if !matches!(key.text.as_str(), "service" | "file") {
                        let what = format!("has no key {:?}", key.text);
                        return Err(wrong(value, &what));
                    }
                }
                let service = map.get("service").and_then(text);
                let service = service.ok_or_else(|| wrong(node, "names no service"))?;
                let file = match map.get("file").filter(|node| !node.is_null()) {
                    Some(node) => {
                        let path = text(node).ok_or_else(|| wrong(node, "needs a path as file"))?;
                        Some(path)
                    }
                    None => None,
                };
                Ok(Self { service, file })
            }
            Value::Seq(_) => Err(wrong(node, "must be a service or a mapping, not a list")),
        }
    }
}

/// Whether a path is a Git repository or an OCI artifact in compose.
pub(super) fn is_remote(path: &str) -> bool {
    let schemes = [
        "git@",
        "git://",
        "http://",
        "https://",
        "oci://",
        "ssh://",
        "github.com/",
    ];
    schemes.iter().any(|scheme| path.starts_with(scheme))
}

pub(super) fn remote(field: &str, path: &str, node: &Node) -> Error {
    let message = format!(
        "{field} names {path:?}: files are read from this machine only, fetch it and name the copy"
    );
    invalid(message)
        .with("field", field)
        .with("value", path)
        .at(node.at)
}
