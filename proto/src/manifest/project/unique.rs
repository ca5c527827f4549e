//! Lists of a service in which a later entry replaces an earlier one for the same thing.
//!
//! Source: compose-go, package `override`, `EnforceUnicity`.

use crate::{
    manifest::compose::{mount_target, port_key},
    yaml::{Map, Node, Value},
};

/// Returns the subject of an entry of a list; `None` for an entry that does not parse.
type Identity = fn(&Node) -> Option<String>;

/// Lists of a service by key.
const LISTS: [(&str, Identity); 14] = [
    ("cap_add", text),
    ("cap_drop", text),
    ("configs", config),
    ("devices", device),
    ("dns", text),
    ("dns_opt", text),
    ("dns_search", text),
    ("env_file", env_file),
    ("expose", text),
    ("links", text),
    ("ports", port_key),
    ("secrets", secret),
    ("tmpfs", text),
    ("volumes", mount_target),
];

/// Whether the list at a path is one of them.
pub(super) fn has_identities(path: &[String]) -> bool {
    matches!(path, [services, _, key]
        if services == "services" && LISTS.iter().any(|(known, _)| known == key))
}

/// Keeps the last entry for each thing, at the place of the first, in the lists of all services.
pub(super) fn unique(root: &mut Node) {
    let Some(services) = root.get_mut("services") else {
        return;
    };
    let Value::Map(services) = &mut services.value else {
        return;
    };
    for service in services.values_mut() {
        for (key, identity) in LISTS {
            if let Some(list) = service.get_mut(key)
                && let Value::Seq(items) = &mut list.value
            {
                unique_items(items, identity);
            }
        }
    }
}

fn unique_items(items: &mut Vec<Node>, identity: Identity) {
    let mut places = std::collections::HashMap::new();
    let mut kept: Vec<Node> = Vec::with_capacity(items.len());
    for item in items.drain(..) {
        let Some(key) = identity(&item) else {
            kept.push(item);
            continue;
        };
        match places.get(&key) {
            Some(&place) => kept[place] = item,
            None => {
                places.insert(key, kept.len());
                kept.push(item);
            }
        }
    }
    *items = kept;
}

fn text(item: &Node) -> Option<String> {
    item.text().map(str::to_owned)
}

fn member(map: &Map, key: &str) -> Option<String> {
    text(map.get(key)?)
}

fn device(item: &Node) -> Option<String> {
    match &item.value {
        Value::Scalar(scalar) => {
            let mut parts = scalar.text.split(':');
            let source = parts.next()?;
            Some(parts.next().unwrap_or(source).to_owned())
        }
        Value::Map(map) => member(map, "target").or_else(|| member(map, "source")),
        Value::Seq(_) => None,
    }
}

fn config(item: &Node) -> Option<String> {
    file(item, "")
}

fn secret(item: &Node) -> Option<String> {
    file(item, "/run/secrets")
}

/// Path in the container of a config or secret, whose default is below `directory`.
fn file(item: &Node, directory: &str) -> Option<String> {
    let default = |source: String| format!("{directory}/{source}");
    match &item.value {
        Value::Scalar(_) => text(item).map(default),
        Value::Map(map) => member(map, "target").or_else(|| member(map, "source").map(default)),
        Value::Seq(_) => None,
    }
}

fn env_file(item: &Node) -> Option<String> {
    match &item.value {
        Value::Scalar(scalar) => Some(scalar.text.clone()),
        Value::Map(map) => member(map, "path"),
        Value::Seq(_) => None,
    }
}
