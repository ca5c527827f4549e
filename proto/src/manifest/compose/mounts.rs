//! `volumes:` entries of a service: short and long form.

use crate::{
    Error,
    manifest::{
        fault::suggestion,
        grammar::{clean_path, is_name},
    },
    yaml::{Map, Node, Value},
};

use super::{
    Mount, MountSource, Recursive,
    keys::{MOUNT, MOUNT_BIND, MOUNT_IMAGE, MOUNT_TMPFS, MOUNT_VOLUME},
    reader::Reader,
};

const PROPAGATIONS: [&str; 6] = [
    "private", "rprivate", "shared", "rshared", "slave", "rslave",
];

const SELINUX: [&str; 2] = ["z", "Z"];

/// Engine mount types that are passed through with their source.
const OTHER_KINDS: [&str; 3] = ["cluster", "image", "npipe"];

/// Reads all entries, in file order.
pub(super) fn read(reader: &Reader<'_>, node: &Node) -> Result<Vec<Mount>, Error> {
    let mut mounts = Vec::new();
    for item in reader.distinct("volumes", node)? {
        if reader.is_open(item) {
            continue;
        }
        match &item.value {
            Value::Map(_) => mounts.extend(long(reader, item)?),
            Value::Scalar(_) => {
                let text = reader.string("volumes", item)?.unwrap_or_default();
                mounts.push(short(reader, item, &text)?);
            }
            Value::Seq(_) => return Err(reader.wrong("volumes", item, "a string or a mapping")),
        }
    }
    Ok(mounts)
}

/// Returns the keys of the named volumes that a service mounts; does not validate the other
/// entries.
pub(in crate::manifest) fn named(node: &Node) -> Vec<&str> {
    let items = node.as_seq().unwrap_or_default();
    items.iter().filter_map(name).collect()
}

fn name(item: &Node) -> Option<&str> {
    match &item.value {
        Value::Scalar(scalar) => {
            let (source, _) = scalar.text.split_once(':')?;
            (!is_path(source) && !source.is_empty()).then_some(source)
        }
        Value::Map(map) if map.get("type")?.text()? == "volume" => map.get("source")?.text(),
        Value::Map(_) | Value::Seq(_) => None,
    }
}

/// Returns the path in the container that an entry mounts at; `None` if it does not parse.
pub(in crate::manifest) fn target(item: &Node) -> Option<String> {
    match &item.value {
        Value::Scalar(scalar) => {
            let mut parts = scalar.text.split(':');
            let first = parts.next()?;
            Some(clean_path(parts.next().unwrap_or(first)))
        }
        Value::Map(map) => map.get("target")?.text().map(clean_path),
        Value::Seq(_) => None,
    }
}

fn is_path(source: &str) -> bool {
    source.starts_with(['/', '.', '~'])
}

fn short(reader: &Reader<'_>, item: &Node, text: &str) -> Result<Mount, Error> {
    let mut parts = text.split(':');
    let (first, second, options) = (
        parts.next().unwrap_or_default(),
        parts.next(),
        parts.next().unwrap_or_default(),
    );
    if parts.next().is_some() || first.is_empty() {
        return Err(reader.wrong("volumes", item, "[source:]target[:options]"));
    }
    let (source, target) = match second {
        None => (MountSource::Anonymous, first),
        Some(target) if is_path(first) => (bind(reader, item, first, true)?, target),
        Some(target) => (volume(reader, item, first)?, target),
    };
    let options: Vec<&str> = options.split(',').collect();
    let one_of = |words: &[&str]| {
        let given = options.iter().find(|option| words.contains(option));
        given.map(|option| (*option).to_owned())
    };
    Ok(Mount {
        read_only: options.contains(&"ro"),
        no_copy: options.contains(&"nocopy"),
        propagation: one_of(&PROPAGATIONS),
        selinux: one_of(&SELINUX),
        ..Mount::new(source, clean_target(reader, item, target)?)
    })
}

/// Reads an entry in the long form; `None` if a variable in it is unresolved.
fn long(reader: &Reader<'_>, item: &Node) -> Result<Option<Mount>, Error> {
    let Some(map) = reader.map("volumes", item, &MOUNT)? else {
        return Ok(None);
    };
    let is_open = |key: &str| reader.is_open_in(map, key);
    if is_open("type") || is_open("source") || is_open("target") {
        return Ok(None);
    }
    let Some(kind) = text(reader, map, "volumes.", "type")? else {
        return Err(reader.fault("volumes", item, "needs a type in the long form"));
    };
    let Some(target) = text(reader, map, "volumes.", "target")? else {
        return Err(reader.fault("volumes", item, "needs a target"));
    };
    let place = |key: &str| map.get(key).unwrap_or(item);
    let mut mount = Mount::new(
        MountSource::Anonymous,
        clean_target(reader, place("target"), &target)?,
    );
    mount.read_only = flag(reader, map, "volumes.", "read_only")?.unwrap_or(false);
    let create = options(reader, map, &mut mount)?;
    let source = text(reader, map, "volumes.", "source")?;
    mount.source = match (kind.as_str(), source) {
        ("bind", Some(path)) => bind(reader, place("source"), &path, create)?,
        ("bind", None) => return Err(reader.fault("volumes", item, "needs a source to bind")),
        ("volume", Some(key)) => volume(reader, place("source"), &key)?,
        ("volume", None) => MountSource::Anonymous,
        ("tmpfs", _) => MountSource::Tmpfs,
        (other, source) if OTHER_KINDS.contains(&other) => MountSource::Other {
            kind: kind.clone(),
            source: source.unwrap_or_default(),
        },
        (other, _) => {
            let known = ["bind", "volume", "tmpfs"].into_iter().chain(OTHER_KINDS);
            let near = suggestion(other, known);
            let what = format!("{other:?} is no type of mount{near}");
            return Err(reader.fault("volumes.type", place("type"), what));
        }
    };
    Ok(Some(mount))
}

/// Reads the settings per type into `mount`, and whether a missing path of the host is created.
fn options(reader: &Reader<'_>, map: &Map, mount: &mut Mount) -> Result<bool, Error> {
    let inner = |key: &str, keys| match map.get(key) {
        Some(node) => reader.map(&format!("volumes.{key}"), node, keys),
        None => Ok(None),
    };
    let mut create = true;
    if let Some(map) = inner("bind", &MOUNT_BIND)? {
        let path = "volumes.bind.";
        create = flag(reader, map, path, "create_host_path")?.unwrap_or(true);
        let known = |words: &'static [&str]| move |text: &String| words.contains(&text.as_str());
        mount.propagation = text(reader, map, path, "propagation")?.filter(known(&PROPAGATIONS));
        mount.selinux = text(reader, map, path, "selinux")?.filter(known(&SELINUX));
        if let Some(node) = map.get("recursive") {
            let words = [
                ("enabled", Recursive::Enabled),
                ("disabled", Recursive::Disabled),
                ("writable", Recursive::Writable),
                ("readonly", Recursive::ReadOnly),
            ];
            let chosen = reader.choice("volumes.bind.recursive", node, &words)?;
            mount.recursive = chosen.unwrap_or_default();
        }
    }
    if let Some(map) = inner("volume", &MOUNT_VOLUME)? {
        let path = "volumes.volume.";
        mount.no_copy = flag(reader, map, path, "nocopy")?.unwrap_or(false);
        mount.subpath = text(reader, map, path, "subpath")?;
        if let Some(node) = map.get("labels") {
            mount.labels = reader.labels("volumes.volume.labels", node)?;
        }
    }
    if let Some(map) = inner("image", &MOUNT_IMAGE)? {
        mount.subpath = text(reader, map, "volumes.image.", "subpath")?;
    }
    if let Some(map) = inner("tmpfs", &MOUNT_TMPFS)? {
        if let Some(node) = map.get("size") {
            let size = reader.bytes("volumes.tmpfs.size", node)?;
            mount.size = size.filter(|size| *size > 0);
        }
        if let Some(node) = map.get("mode") {
            mount.mode = reader.permissions("volumes.tmpfs.mode", node)?;
        }
    }
    Ok(create)
}

fn text(reader: &Reader<'_>, map: &Map, path: &str, key: &str) -> Result<Option<String>, Error> {
    match map.get(key) {
        Some(node) => reader.name(&format!("{path}{key}"), node),
        None => Ok(None),
    }
}

fn flag(reader: &Reader<'_>, map: &Map, path: &str, key: &str) -> Result<Option<bool>, Error> {
    match map.get(key) {
        Some(node) => reader.boolean(&format!("{path}{key}"), node),
        None => Ok(None),
    }
}

fn bind(reader: &Reader<'_>, node: &Node, path: &str, create: bool) -> Result<MountSource, Error> {
    // The daemon has neither the directory of the compose file nor the home directories of other
    // users to resolve a relative path; a client has.
    let is_home = path == "~" || path.starts_with("~/");
    if !path.starts_with('/') && !is_home && !reader.unresolved {
        let what = format!(
            "binds the relative path {path:?}, which only `jaco apply` resolves; write an absolute one"
        );
        return Err(reader.fault("volumes", node, what).with("value", path));
    }
    Ok(MountSource::Bind {
        path: path.to_owned(),
        create,
    })
}

fn volume(reader: &Reader<'_>, node: &Node, key: &str) -> Result<MountSource, Error> {
    if !is_name(key) {
        let what = format!("mounts volume {key:?}, want letters, digits and . _ - only");
        return Err(reader.fault("volumes", node, what).with("value", key));
    }
    Ok(MountSource::Volume(key.to_owned()))
}

fn clean_target(reader: &Reader<'_>, node: &Node, target: &str) -> Result<String, Error> {
    if !target.starts_with('/') {
        let what = format!("mounts at {target:?}, which is not an absolute path");
        return Err(reader.fault("volumes", node, what).with("value", target));
    }
    Ok(clean_path(target))
}
