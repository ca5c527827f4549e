//! Compose files that others include: projects of their own, with their own directory and variables.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    Error,
    manifest::{
        env_file,
        fault::{Located, invalid},
    },
    yaml::{Key, Map, Node, Value},
};

use super::{
    Loader, MAX_CHAIN, ResolveError, Scope,
    extends::{is_remote, remote},
    merge, paths,
};

/// Tables whose entries an included file adds.
const TABLES: [&str; 6] = [
    "services", "networks", "volumes", "configs", "secrets", "models",
];

/// One entry of `include`.
struct Entry {
    /// Files, the later ones merged over the first.
    paths: Vec<String>,
    directory: Option<String>,
    env_files: Vec<String>,
    node: Node,
}

/// Adds the resources of the included files to `root`, the content of the file `path`.
pub(super) fn apply(
    loader: &mut Loader<'_>,
    root: Node,
    path: &Path,
    scope: Scope<'_>,
) -> Result<Node, ResolveError> {
    let (at, merge) = (root.at, root.merge);
    let Value::Map(top) = root.value else {
        return Ok(Node { ..root });
    };
    let mut entries = top.into_entries();
    let Some(place) = entries.iter().position(|(key, _)| key.text == "include") else {
        return Ok(Node {
            value: Value::Map(Map::new(entries)),
            at,
            merge,
        });
    };
    let (_, include) = entries.remove(place);
    let mut chain = scope.chain.to_vec();
    chain.push(path.to_owned());
    for entry in read_entries(&include)? {
        let included = project(loader, &entry, path, scope, &chain)?;
        import(&mut entries, included, &entry)?;
    }
    Ok(Node {
        value: Value::Map(Map::new(entries)),
        at,
        merge,
    })
}

/// Loads the files of an entry as a project.
fn project(
    loader: &mut Loader<'_>,
    entry: &Entry,
    from: &Path,
    scope: Scope<'_>,
    chain: &[PathBuf],
) -> Result<Node, ResolveError> {
    let here = from.parent().unwrap_or(Path::new(""));
    let absolute = |path: &str| paths::clean(&here.join(path));
    let mut files = Vec::new();
    for path in &entry.paths {
        if is_remote(path) {
            return Err(remote("include", path, &entry.node).into());
        }
        let path = absolute(path);
        if chain.contains(&path) || chain.len() >= MAX_CHAIN {
            let names = chain
                .iter()
                .chain([&path])
                .map(|path| path.display().to_string());
            let names: Vec<String> = names.collect();
            let message = format!("files include each other: {}", names.join(" -> "));
            let error = invalid(message).with("field", "include");
            return Err(error.at(entry.node.at).into());
        }
        files.push(loader.read(&path)?);
    }
    let first = files.first().map(|file| file.path.clone());
    let directory = match (&entry.directory, first) {
        (Some(directory), _) => absolute(directory),
        (None, Some(first)) => first.parent().unwrap_or(Path::new("")).to_owned(),
        (None, None) => here.to_owned(),
    };
    let variables = variables(loader, entry, &directory, here, scope.variables)?;
    let scope = Scope {
        directory: Some(&directory),
        variables: &variables,
        chain,
    };
    loader.model(files, scope)
}

/// Returns the variables of an included project: those of the including one, else those of its
/// environment files, by default `.env` of its directory.
fn variables(
    loader: &mut Loader<'_>,
    entry: &Entry,
    directory: &Path,
    here: &Path,
    outer: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, ResolveError> {
    let mut variables = BTreeMap::new();
    let given: Vec<PathBuf> = match entry.env_files.as_slice() {
        [] => vec![directory.join(".env")],
        named => named
            .iter()
            .map(|path| paths::clean(&here.join(path)))
            .collect(),
    };
    for path in given {
        let bytes = match (loader.read)(&path) {
            Ok(bytes) => bytes,
            Err(_) if entry.env_files.is_empty() => continue,
            Err(source) => return Err(ResolveError::Read { path, source }),
        };
        let parsed = env_file::parse(&bytes, |name| outer.get(name).cloned());
        let parsed = parsed.map_err(|source| ResolveError::Variables { path, source })?;
        loader.unset.extend(parsed.unset);
        variables.extend(parsed.values);
    }
    variables.extend(outer.clone());
    Ok(variables)
}

/// Adds the entries of an included project; equal ones may be there already.
fn import(
    entries: &mut Vec<(Key, Node)>,
    included: Node,
    entry: &Entry,
) -> Result<(), ResolveError> {
    let Value::Map(included) = included.value else {
        return Ok(());
    };
    for (table, node) in included.into_entries() {
        if !TABLES.contains(&table.text.as_str()) {
            continue;
        }
        let Some((_, own)) = entries.iter_mut().find(|(key, _)| key.text == table.text) else {
            entries.push((table, node));
            continue;
        };
        let (Value::Map(own), Value::Map(added)) = (&mut own.value, node.value) else {
            continue;
        };
        let mut merged = std::mem::take(own).into_entries();
        for (key, node) in added.into_entries() {
            match merged.iter().find(|(known, _)| known.text == key.text) {
                Some((_, known)) if merge::same(known, &node) => {}
                Some((known, _)) => return Err(conflict(&table, known, entry).into()),
                None => merged.push((key, node)),
            }
        }
        *own = Map::new(merged);
    }
    Ok(())
}

fn conflict(table: &Key, key: &Key, entry: &Entry) -> Error {
    let message = format!(
        "{}.{} is in this file and in {}, which it includes; change it in a file that is merged over \
         both",
        table.text,
        key.text,
        entry.paths.join(" and ")
    );
    invalid(message)
        .with("field", "include")
        .with("value", &key.text)
        .at(key.at)
}

fn read_entries(node: &Node) -> Result<Vec<Entry>, Error> {
    let wrong = |node: &Node, what: &str| {
        invalid(format!("include {what}"))
            .with("field", "include")
            .at(node.at)
    };
    if node.is_null() {
        return Ok(Vec::new());
    }
    let Some(items) = node.as_seq() else {
        let what = format!("must be a list, not {}", node.kind());
        return Err(wrong(node, &what));
    };
    let texts = |node: Option<&Node>| -> Result<Vec<String>, Error> {
        let Some(node) = node.filter(|node| !node.is_null()) else {
            return Ok(Vec::new());
        };
        let one = std::slice::from_ref(node);
        let items = node.as_seq().unwrap_or(one).iter();
        let texts = items.map(|item| {
            let text = item
                .text()
                .filter(|text| !text.is_empty() && !item.is_null());
            text.map(str::to_owned)
                .ok_or_else(|| wrong(item, "needs paths"))
        });
        texts.collect()
    };
    let mut entries = Vec::new();
    for item in items {
        let mut entry = Entry {
            paths: Vec::new(),
            directory: None,
            env_files: Vec::new(),
            node: item.clone(),
        };
        match &item.value {
            Value::Map(map) => {
                for (key, node) in map.iter() {
                    match key.text.as_str() {
                        "path" => entry.paths = texts(Some(node))?,
                        "env_file" => entry.env_files = texts(Some(node))?,
                        "project_directory" => entry.directory = texts(Some(node))?.pop(),
                        other => {
                            let what = format!("has no key {other:?}");
                            return Err(wrong(node, &what));
                        }
                    }
                }
            }
            Value::Scalar(_) | Value::Seq(_) => entry.paths = texts(Some(item))?,
        }
        if entry.paths.is_empty() {
            return Err(wrong(item, "needs a path"));
        }
        entries.push(entry);
    }
    Ok(entries)
}
