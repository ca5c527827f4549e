//! Fuzzes environment files, and their merge into compose files.

use std::{collections::BTreeMap, fmt::Write as _, io};

use jaco_proto::{
    manifest::env_file::{FoldError, fold, parse},
    yaml::Node,
};

use crate::{parts::parts, tree};

/// Input: the environment files `a.env` and `b.env`, then a compose file that may name them.
///
/// Values written with quotes and escapes parse to the same values; an error has a line of the
/// file. A file without `env_file` is unchanged. Folding removes every `env_file` and changes no
/// other key and no explicit value.
pub fn env_file(data: &[u8]) {
    let [a, b, compose] = parts(data);
    read(a);
    read(b);
    folded(compose, a, b);
}

fn read(file: &[u8]) {
    let lines = 1 + file.iter().filter(|&&byte| byte == b'\n').count();
    let read = match parse(file, |_| None) {
        Ok(read) => read,
        Err(error) => {
            assert!(
                (1..=lines).contains(&error.line),
                "{error} of {lines} lines"
            );
            return;
        }
    };
    assert!(read.values.len() <= lines);
    let size: usize = read.values.values().map(String::len).sum();
    assert!(size <= 16 << 20, "{size} bytes out of {}", file.len());
    let again = parse(canonical(&read.values).as_bytes(), |_| None).expect("canonical");
    assert_eq!(again.values, read.values);
    assert!(again.unset.is_empty());
}

/// Writes the values in the only notation that can represent all of them.
fn canonical(values: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    for (key, value) in values {
        let mut quoted = String::new();
        for c in value.chars() {
            match c {
                '\\' | '"' | '$' => quoted.extend(['\\', c]),
                '\r' => quoted.push_str("\\r"),
                c => quoted.push(c),
            }
        }
        let _ = writeln!(text, "{key}=\"{quoted}\""); // writing to a String cannot fail
    }
    text
}

fn folded(compose: &[u8], a: &[u8], b: &[u8]) {
    let mut read = |path: &str| match path {
        "a.env" => Ok(a.to_vec()),
        "b.env" => Ok(b.to_vec()),
        "locked" => Err(io::ErrorKind::PermissionDenied.into()),
        _ => Err(io::ErrorKind::NotFound.into()),
    };
    let folded = match fold(compose, Some(&mut read)) {
        Ok(folded) => folded,
        Err(error) => return assert_has_position(compose, &error),
    };
    let before = tree::read(compose).expect("parsed by fold").root;
    let Some(before) = before else {
        assert_eq!(folded.bytes, compose);
        return;
    };
    let services = services(&before);
    if !services.iter().any(|(_, service)| has(service, "env_file")) {
        assert_eq!(folded.bytes, compose);
        return;
    }
    let text = String::from_utf8(folded.bytes.clone()).expect("YAML is text");
    let again = fold(&folded.bytes, None).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(again.bytes, folded.bytes);
    let after = tree::read(&folded.bytes).expect("fold emits YAML").root;
    let after = after.expect("a root was written");
    for (name, before) in services {
        let after = service(&after, name).expect("fold keeps every service");
        assert_folded(before, after);
    }
}

fn services(root: &Node) -> Vec<(&str, &Node)> {
    let services = root.as_map().and_then(|map| map.get("services")?.as_map());
    let entries = services.into_iter().flat_map(|services| services.iter());
    entries
        .map(|(key, node)| (key.text.as_str(), node))
        .collect()
}

fn service<'a>(root: &'a Node, name: &str) -> Option<&'a Node> {
    root.as_map()?.get("services")?.as_map()?.get(name)
}

fn has(service: &Node, key: &str) -> bool {
    service.as_map().is_some_and(|map| map.contains(key))
}

fn assert_folded(before: &Node, after: &Node) {
    if !has(before, "env_file") {
        assert!(
            tree::same(before, after),
            "a service without env_file changed"
        );
        return;
    }
    assert!(!has(after, "env_file"));
    let (before, after) = (before.as_map().unwrap(), after.as_map().unwrap());
    for (key, node) in before.iter() {
        if !matches!(key.text.as_str(), "env_file" | "environment") {
            let kept = after.get(&key.text).expect("a key was lost");
            assert!(tree::same(node, kept), "{} changed", key.text);
        }
    }
    let environment = after.get("environment").and_then(Node::as_map);
    let environment = environment.expect("folding writes a mapping");
    let keys: Vec<_> = environment.iter().map(|(key, _)| &key.text).collect();
    assert!(keys.is_sorted(), "{keys:?}");
    let explicit = before.get("environment").and_then(Node::as_map);
    for (key, node) in explicit.into_iter().flat_map(|map| map.iter()) {
        if node.as_scalar().is_some() {
            let kept = environment
                .get(&key.text)
                .expect("an explicit key was lost");
            assert_eq!(node.is_null(), kept.is_null(), "{}", key.text);
            assert!(node.is_null() || node.text() == kept.text(), "{}", key.text);
        }
    }
}

fn assert_has_position(compose: &[u8], error: &FoldError) {
    match error {
        FoldError::Yaml(source) => tree::assert_inside(compose, source.at),
        FoldError::SecondDocument(at) | FoldError::Entry { at, .. } => {
            tree::assert_inside(compose, *at);
        }
        FoldError::NoDirectory { .. } => panic!("there is a directory"),
        FoldError::NotFound { path, .. } => {
            assert!(!["a.env", "b.env", "locked"].contains(&path.as_str()))
        }
        FoldError::Read { path, .. } => assert_eq!(path, "locked"),
        FoldError::File { path, .. } => assert!(["a.env", "b.env"].contains(&path.as_str())),
    }
}
