//! Relative paths of a compose file, and `~`, as absolute paths of the client.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

use crate::{
    Error,
    manifest::fault::{Located, invalid},
    yaml::{Node, Scalar, Value},
};

/// Base of relative paths.
#[derive(Clone, Copy)]
pub(super) struct Base<'a> {
    /// Directory of relative paths.
    pub(super) directory: &'a Path,
    /// Home directory; without one `~` stays as it is.
    pub(super) home: Option<&'a Path>,
}

impl Base<'_> {
    /// Resolves a path as written.
    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        let at_home = path
            .strip_prefix('~')
            .filter(|rest| rest.is_empty() || rest.starts_with('/'));
        match (at_home, self.home) {
            (Some(rest), Some(home)) => clean(&home.join(rest.trim_start_matches('/'))),
            (Some(_), None) => PathBuf::from(path),
            (None, _) => clean(&self.directory.join(path)),
        }
    }
}

/// Removes `.` and `..` without regard to symbolic links.
pub(super) fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                if !clean.pop() {
                    clean.push("..");
                }
            }
            Component::RootDir | Component::Prefix(_) | Component::Normal(_) => {
                clean.push(component);
            }
        }
    }
    clean
}

/// Paths of binds that were relative to a directory of the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelativeBinds {
    /// Absolute paths of those that were relative to the project.
    pub to_project: BTreeSet<String>,
    /// Whether one was relative to the home directory.
    pub to_home: bool,
}

/// Resolves the paths of all services, volumes, configs and secrets; adds those of relative binds to
/// `binds`.
///
/// # Errors
/// A bind in the short form whose path has a colon.
pub(super) fn resolve(
    root: &mut Node,
    base: Base<'_>,
    binds: &mut RelativeBinds,
) -> Result<(), Error> {
    for service in entries(root, "services") {
        service_paths(service, base, binds)?;
    }
    for volume in entries(root, "volumes") {
        device(volume, base);
    }
    for table in ["configs", "secrets"] {
        for object in entries(root, table) {
            if let Some(node) = object.get_mut("file") {
                path(node, base);
            }
        }
    }
    Ok(())
}

/// Resolves the paths of one service.
fn service_paths(
    service: &mut Node,
    base: Base<'_>,
    binds: &mut RelativeBinds,
) -> Result<(), Error> {
    if let Some(volumes) = service.get_mut("volumes")
        && let Value::Seq(items) = &mut volumes.value
    {
        for item in items {
            bind(item, base, binds)?;
        }
    }
    for field in ["env_file", "label_file"] {
        if let Some(node) = service.get_mut(field) {
            files(node, base);
        }
    }
    Ok(())
}

fn entries<'n>(root: &'n mut Node, table: &str) -> Vec<&'n mut Node> {
    match root.get_mut(table).map(|node| &mut node.value) {
        Some(Value::Map(map)) => map.values_mut().collect(),
        Some(Value::Scalar(_) | Value::Seq(_)) | None => Vec::new(),
    }
}

fn set(node: &mut Node, text: String) {
    node.value = Value::Scalar(Scalar::string(text));
}

/// Replaces the source of a mount if it is a relative path.
fn bind(item: &mut Node, base: Base<'_>, binds: &mut RelativeBinds) -> Result<(), Error> {
    match &mut item.value {
        Value::Scalar(scalar) => {
            let Some((source, rest)) = scalar.text.split_once(':') else {
                return Ok(());
            };
            if !source.starts_with(['.', '~']) {
                return Ok(());
            }
            let path = base.resolve(source).display().to_string();
            if path.contains(':') {
                let message = format!(
                    "the path {path:?} has a colon, which separates the parts of the short form: \
                     write the mount as {{type: bind, source: …, target: …}}"
                );
                return Err(invalid(message)
                    .with("field", "volumes")
                    .with("value", path)
                    .at(item.at));
            }
            let text = format!("{path}:{rest}");
            binds.add(source, path);
            set(item, text);
        }
        Value::Map(map) => {
            let is_bind = map.get("type").and_then(Node::text) == Some("bind");
            let Some(node) = map.get_mut("source").filter(|_| is_bind) else {
                return Ok(());
            };
            let written = node.text().unwrap_or_default().to_owned();
            if path(node, base) {
                binds.add(&written, node.text().unwrap_or_default().to_owned());
            }
        }
        Value::Seq(_) => {}
    }
    Ok(())
}

impl RelativeBinds {
    fn add(&mut self, written: &str, resolved: String) {
        if written.starts_with('~') {
            self.to_home = true;
        } else {
            self.to_project.insert(resolved);
        }
    }
}

/// Replaces a relative path, or one below `~`; returns whether it was one.
fn path(node: &mut Node, base: Base<'_>) -> bool {
    let Some(text) = node
        .text()
        .filter(|text| !text.is_empty() && !node.is_null())
    else {
        return false;
    };
    if text.starts_with('/') {
        return false;
    }
    let resolved = base.resolve(text).display().to_string();
    set(node, resolved);
    true
}

/// Replaces the paths of an `env_file` or a `label_file` in any of its forms.
fn files(node: &mut Node, base: Base<'_>) {
    match &mut node.value {
        Value::Seq(items) => items.iter_mut().for_each(|item| files(item, base)),
        Value::Map(map) => {
            if let Some(node) = map.get_mut("path") {
                path(node, base);
            }
        }
        Value::Scalar(_) => {
            path(node, base);
        }
    }
}

/// Replaces the device of a volume that is a bind of the local driver.
fn device(volume: &mut Node, base: Base<'_>) {
    let driver = volume.as_map().and_then(|map| map.get("driver")?.text());
    let is_local = driver.is_none_or(|driver| driver == "local");
    let Some(options) = volume.get_mut("driver_opts").filter(|_| is_local) else {
        return;
    };
    let option = |key: &str| options.as_map()?.get(key)?.text();
    let is_bind = option("o").is_some_and(|list| list.split(',').any(|word| word == "bind"));
    if let Some(node) = options.get_mut("device").filter(|_| is_bind) {
        path(node, base);
    }
}
