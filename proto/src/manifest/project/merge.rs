//! Merging of a compose file over an earlier one, and of a service over the one that it extends.
//!
//! Mappings are merged key by key, lists are appended, and a scalar replaces the earlier one; some
//! keys have rules of their own. A value with `!reset` or `!override` stays tagged in the result,
//! because it acts on every earlier file; [`finish`] removes the tags.
//!
//! Source: Compose Specification, 13-merge.md; compose-go, package `override`, for what it leaves
//! open.

use crate::{
    Error,
    manifest::fault::{Located, invalid},
    yaml::{Key, Map, Merge, Node, Scalar, Value},
};

use super::unique::has_identities;

/// How the values of a key are merged.
#[derive(Clone, Copy)]
enum Rule {
    /// By their kinds.
    Kind,
    /// The later one counts.
    Replace,
    /// Mappings, or lists of `KEY=value`, by key.
    KeyValues,
    /// Mappings, or lists of names, which stand for an empty entry.
    Named,
    /// Dependencies: mappings, or lists of services that must have started.
    Dependencies,
    /// Lists, single texts, or mappings as lists of `KEY=value`: appended.
    Append,
    /// A build: a mapping, or a text as its context.
    Build,
    /// Logging: options count only for the same driver.
    Logging,
}

fn rule(path: &[&str]) -> Rule {
    match path {
        ["services", _, rest @ ..] => match rest {
            ["command" | "entrypoint"] | ["healthcheck", "test"] => Rule::Replace,
            ["annotations" | "environment" | "labels" | "sysctls"]
            | ["build", "args" | "labels" | "additional_contexts"]
            | ["deploy", "labels"] => Rule::KeyValues,
            ["build"] => Rule::Build,
            ["depends_on"] => Rule::Dependencies,
            ["models" | "networks"] => Rule::Named,
            [
                "dns" | "dns_opt" | "dns_search" | "env_file" | "label_file" | "extra_hosts"
                | "tmpfs",
            ]
            | ["build", "extra_hosts"] => Rule::Append,
            ["logging"] => Rule::Logging,
            _ => Rule::Kind,
        },
        ["networks" | "volumes" | "secrets" | "configs", _, "labels"] => Rule::KeyValues,
        ["networks", _, "ipam", "config"] => Rule::Replace,
        _ => Rule::Kind,
    }
}

/// Merges `over` over `base`; `path` has the keys from the root to them.
///
/// # Errors
/// A mapping or a list and something else cannot be merged.
pub(super) fn merge(base: Node, over: Node, path: &mut Vec<String>) -> Result<Node, Error> {
    if over.merge != Merge::Combine || base.merge == Merge::Reset {
        return Ok(over);
    }
    let keys: Vec<&str> = path.iter().map(String::as_str).collect();
    match rule(&keys) {
        Rule::Replace => Ok(over),
        _ if over.is_null() => Ok(base),
        _ if base.is_null() => Ok(over),
        Rule::KeyValues => {
            let (base, over) = (key_values(base, path)?, key_values(over, path)?);
            mappings(base, over, path)
        }
        Rule::Named => mappings(named(base, path, false)?, named(over, path, false)?, path),
        Rule::Dependencies => mappings(named(base, path, true)?, named(over, path, true)?, path),
        Rule::Append => Ok(append(items(base), items(over), path)),
        Rule::Build => mappings(build(base), build(over), path),
        Rule::Logging => logging(base, over, path),
        Rule::Kind => by_kind(base, over, path),
    }
}

fn by_kind(base: Node, over: Node, path: &mut Vec<String>) -> Result<Node, Error> {
    match (&base.value, &over.value) {
        (Value::Map(_), Value::Map(_)) => mappings(base, over, path),
        (Value::Seq(_), Value::Seq(_)) => Ok(append(base, over, path)),
        // `ulimits` and others have a scalar as their short form.
        (_, Value::Scalar(_)) if is_short(path) => Ok(over),
        (Value::Scalar(_), _) => Ok(over),
        (Value::Map(_) | Value::Seq(_), _) => Err(mismatch(&base, &over, path)),
    }
}

/// Whether a key has a scalar form beside its mapping.
fn is_short(path: &[String]) -> bool {
    let keys: Vec<&str> = path.iter().map(String::as_str).collect();
    matches!(
        keys[..],
        ["services", _, "ulimits", _] | ["services", _, "extends"]
    )
}

fn mismatch(base: &Node, over: &Node, path: &[String]) -> Error {
    let path = path.join(".");
    let message = format!(
        "{path} is {} here, which cannot be merged with {} before",
        over.kind(),
        base.kind()
    );
    invalid(message).with("field", path).at(over.at)
}

fn mappings(base: Node, over: Node, path: &mut Vec<String>) -> Result<Node, Error> {
    let at = base.at;
    let (Value::Map(base), Value::Map(over)) = (base.value, over.value) else {
        return Ok(Node::new(Value::Map(Map::default()), at));
    };
    let mut later: Vec<Option<(Key, Node)>> = over.into_entries().into_iter().map(Some).collect();
    let places: std::collections::HashMap<String, usize> = later
        .iter()
        .enumerate()
        .filter_map(|(place, entry)| Some((entry.as_ref()?.0.text.clone(), place)))
        .collect();
    let mut merged = Vec::with_capacity(base.len() + later.len());
    for (key, node) in base.into_entries() {
        let over = places.get(&key.text).and_then(|place| later[*place].take());
        match over {
            Some((_, over)) => {
                path.push(key.text.clone());
                let node = merge(node, over, path)?;
                path.pop();
                merged.push((key, node));
            }
            None => merged.push((key, node)),
        }
    }
    merged.extend(later.into_iter().flatten());
    Ok(Node::new(Value::Map(Map::new(merged)), at))
}

/// Appends the entries of a list to another. An entry that is there already is left out, except where
/// the last entry for a thing counts: there it may come after one that replaced it.
fn append(base: Node, over: Node, path: &[String]) -> Node {
    let at = base.at;
    let (Value::Seq(mut items), Value::Seq(more)) = (base.value, over.value) else {
        return Node::new(Value::Seq(Vec::new()), at);
    };
    let counts_last = has_identities(path);
    for item in more {
        if counts_last || !items.iter().any(|known| same(known, &item)) {
            items.push(item);
        }
    }
    Node::new(Value::Seq(items), at)
}

/// Whether two nodes have the same content, wherever it is written.
pub(super) fn same(a: &Node, b: &Node) -> bool {
    match (&a.value, &b.value) {
        (Value::Scalar(a), Value::Scalar(b)) => a.resolve() == b.resolve(),
        (Value::Seq(a), Value::Seq(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Map(a), Value::Map(b)) => {
            let equal = |(key, node): (&Key, &Node)| {
                b.get(&key.text).is_some_and(|other| same(node, other))
            };
            a.len() == b.len() && a.iter().all(equal)
        }
        _ => false,
    }
}

fn null() -> Value {
    Value::Scalar(Scalar {
        text: "null".to_owned(),
        plain: true,
    })
}

/// Converts a list of `KEY=value` and `KEY` to a mapping, in which the last entry of a key counts.
fn key_values(node: Node, path: &[String]) -> Result<Node, Error> {
    let at = node.at;
    let items = match node.value {
        Value::Map(_) => return Ok(node),
        Value::Seq(items) => items,
        Value::Scalar(_) => return Err(expected(&node, path, "a mapping or a list")),
    };
    let mut entries: Vec<(Key, Node)> = Vec::with_capacity(items.len());
    for item in items {
        let Some(text) = item.text().filter(|_| !item.is_null()) else {
            return Err(expected(&item, path, "texts"));
        };
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Value::Scalar(Scalar::string(value))),
            None => (text, null()),
        };
        let entry = Node::new(value, item.at);
        match entries.iter_mut().find(|(known, _)| known.text == key) {
            Some((_, node)) => *node = entry,
            None => {
                let text = key.to_owned();
                entries.push((Key { text, at: item.at }, entry));
            }
        }
    }
    Ok(Node::new(Value::Map(Map::new(entries)), at))
}

fn expected(node: &Node, path: &[String], what: &str) -> Error {
    let path = path.join(".");
    let message = format!("{path} must be {what}, not {}", node.kind());
    invalid(message).with("field", path).at(node.at)
}

/// Converts a list of names to a mapping; `started` gives each the condition of a dependency.
fn named(node: Node, path: &[String], started: bool) -> Result<Node, Error> {
    let at = node.at;
    let items = match node.value {
        Value::Map(_) => return Ok(node),
        Value::Seq(items) => items,
        Value::Scalar(_) => return Err(expected(&node, path, "a mapping or a list")),
    };
    let mut entries: Vec<(Key, Node)> = Vec::with_capacity(items.len());
    for item in items {
        let Some(text) = item.text().filter(|_| !item.is_null()) else {
            return Err(expected(&item, path, "names"));
        };
        if entries.iter().any(|(known, _)| known.text == text) {
            continue;
        }
        let at = item.at;
        let value = if started {
            let word = Value::Scalar(Scalar::string("service_started"));
            let key = Key {
                text: "condition".to_owned(),
                at,
            };
            Value::Map(Map::new(vec![(key, Node::new(word, at))]))
        } else {
            null()
        };
        let key = Key {
            text: text.to_owned(),
            at,
        };
        entries.push((key, Node::new(value, at)));
    }
    Ok(Node::new(Value::Map(Map::new(entries)), at))
}

/// Converts a text to a list of it, and a mapping to a list of `KEY=value`.
fn items(node: Node) -> Node {
    let at = node.at;
    let items = match node.value {
        Value::Seq(items) => items,
        Value::Scalar(scalar) => vec![Node::new(Value::Scalar(scalar), at)],
        // `env_file` in its long form is one entry.
        Value::Map(map) if map.contains("path") => vec![Node::new(Value::Map(map), at)],
        Value::Map(map) => {
            let mut items = Vec::new();
            for (key, node) in map.into_entries() {
                let values = match node.value {
                    Value::Seq(values) => values,
                    value => vec![Node::new(value, node.at)],
                };
                for value in values {
                    let text = format!("{}={}", key.text, value.text().unwrap_or_default());
                    items.push(Node::new(Value::Scalar(Scalar::string(text)), value.at));
                }
            }
            items
        }
    };
    Node::new(Value::Seq(items), at)
}

fn build(node: Node) -> Node {
    let at = node.at;
    match node.value {
        Value::Scalar(context) => {
            let key = Key {
                text: "context".to_owned(),
                at,
            };
            let context = Node::new(Value::Scalar(context), at);
            Node::new(Value::Map(Map::new(vec![(key, context)])), at)
        }
        value => Node::new(value, at),
    }
}

fn logging(base: Node, over: Node, path: &mut Vec<String>) -> Result<Node, Error> {
    let driver = |node: &Node| Some(node.as_map()?.get("driver")?.text()?.to_owned());
    match (driver(&base), driver(&over)) {
        (Some(a), Some(b)) if a != b => Ok(over),
        _ => by_kind(base, over, path),
    }
}

/// Removes what is reset, and the tags.
pub(super) fn finish(node: Node) -> Node {
    let at = node.at;
    let value = match node.value {
        Value::Scalar(scalar) => Value::Scalar(scalar),
        Value::Seq(items) => {
            let kept = items.into_iter().filter(|item| item.merge != Merge::Reset);
            Value::Seq(kept.map(finish).collect())
        }
        Value::Map(map) => {
            let entries = map.into_entries().into_iter();
            let kept = entries.filter(|(_, node)| node.merge != Merge::Reset);
            Value::Map(Map::new(
                kept.map(|(key, node)| (key, finish(node))).collect(),
            ))
        }
    };
    Node::new(value, at)
}
