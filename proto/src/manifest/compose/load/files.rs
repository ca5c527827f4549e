//! Configs and secrets: their declarations, and the references of services to them.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Error,
    manifest::{
        compose::{
            FileObject, FileReference, FileSource, Mount, Project, Service,
            keys::{CONFIG, FILE_REFERENCE, Keys, SECRET},
            reader::Reader,
        },
        fault::suggestion,
        grammar::clean_path,
    },
    secret::SecretString,
    yaml::{Key, Map, Node, Value},
};

use super::{check_name, declaration, declared};

/// One of the two tables.
#[derive(Clone, Copy)]
pub(super) struct Table {
    /// Key at the top level and in services.
    pub(super) name: &'static str,
    keys: &'static Keys,
    /// Directory of relative targets.
    base: &'static str,
}

pub(super) const CONFIGS: Table = Table {
    name: "configs",
    keys: &CONFIG,
    base: "/",
};

pub(super) const SECRETS: Table = Table {
    name: "secrets",
    keys: &SECRET,
    base: "/run/secrets/",
};

/// Permissions of a file whose reference has none.
const MODE: u32 = 0o444;

/// Largest user or group id; one more means "no change" to the system.
const MAX_ID: i64 = u32::MAX as i64 - 1;

/// Reads the entries of a table at the top level.
pub(super) fn objects(
    table: Table,
    entries: Vec<(&Key, &Node)>,
    unresolved: bool,
) -> Result<BTreeMap<String, FileObject>, Error> {
    let mut objects = BTreeMap::new();
    for (key, node) in entries {
        check_name(table.name, key)?;
        let source = source(table, key, node, unresolved)?;
        let object = FileObject { source, at: key.at };
        objects.insert(key.text.clone(), object);
    }
    Ok(objects)
}

/// Reads where the content is from; `None` if a variable in it is unresolved.
fn source(
    table: Table,
    key: &Key,
    node: &Node,
    unresolved: bool,
) -> Result<Option<FileSource>, Error> {
    let reader = declared::Reader {
        table: table.name,
        key,
        unresolved,
    };
    let wants = "needs one of file, environment, content and external";
    let Some(map) = declaration(table.name, key, node, table.keys, unresolved)? else {
        return match unresolved && !node.is_null() {
            true => Ok(None),
            false => Err(reader.fail(wants, node.at)),
        };
    };
    let (name, external) = reader.name_and_external(map)?;
    let open = ["file", "environment", "content", "external", "name"];
    let is_open = |key: &&str| {
        let text = map.get(key).and_then(Node::text);
        text.is_some_and(|text| reader.is_open(text))
    };
    if open.iter().any(is_open) {
        return Ok(None);
    }
    let file = reader.text(map, "file")?.map(FileSource::File);
    let variable = reader.text(map, "environment")?;
    let content = map.get("content").filter(|node| !node.is_null());
    let content = content.map(|node| {
        let text = node.as_scalar().map(|scalar| scalar.text.clone());
        let text = text.ok_or_else(|| reader.fail("needs a string as content", node.at))?;
        Ok::<_, Error>(FileSource::Content(SecretString::new(text)))
    });
    let external = external.then(|| FileSource::External(name.unwrap_or(key.text.clone())));
    let given = [
        file,
        variable.map(FileSource::Environment),
        content.transpose()?,
        external,
    ];
    let mut given = given.into_iter().flatten();
    match (given.next(), given.next()) {
        (Some(source), None) => Ok(Some(source)),
        (None, _) => Err(reader.fail(wants, node.at)),
        (Some(_), Some(_)) => {
            let what = "has more than one of file, environment, content and external";
            Err(reader.fail(what, node.at))
        }
    }
}

/// Reads the references of a service to the entries of a table.
pub(super) fn references(
    reader: &Reader<'_>,
    table: Table,
    node: &Node,
) -> Result<Vec<FileReference>, Error> {
    let mut references = Vec::new();
    for item in reader.distinct(table.name, node)? {
        if reader.is_open(item) {
            continue;
        }
        match &item.value {
            Value::Map(_) => references.extend(long(reader, table, item)?),
            Value::Scalar(_) => {
                let Some(source) = reader.name(table.name, item)? else {
                    return Err(reader.wrong(table.name, item, "a name or a mapping"));
                };
                references.push(FileReference {
                    target: format!("{}{source}", table.base),
                    source,
                    uid: 0,
                    gid: 0,
                    mode: MODE,
                    at: item.at,
                });
            }
            Value::Seq(_) => return Err(reader.wrong(table.name, item, "a name or a mapping")),
        }
    }
    Ok(references)
}

fn long(reader: &Reader<'_>, table: Table, item: &Node) -> Result<Option<FileReference>, Error> {
    let Some(map) = reader.map(table.name, item, &FILE_REFERENCE)? else {
        return Ok(None);
    };
    let field = |key: &str| format!("{}.{key}", table.name);
    if ["source", "target"]
        .iter()
        .any(|key| reader.is_open_in(map, key))
    {
        return Ok(None);
    }
    let text = |key: &str| match map.get(key) {
        Some(node) => reader.name(&field(key), node),
        None => Ok(None),
    };
    let Some(source) = text("source")? else {
        return Err(reader.fault(table.name, item, "needs a source"));
    };
    let given = text("target")?;
    let target = given.as_deref().unwrap_or(&source);
    let inside = !target.split('/').any(|part| part == "..");
    let whole = match target.starts_with('/') {
        true => clean_path(target),
        false => clean_path(&format!("{}{target}", table.base)),
    };
    if !inside || target.ends_with('/') || whole == "/" {
        let place = map.get("target").unwrap_or(item);
        let what = format!("has the target {target:?}, which is no path of a file");
        return Err(reader
            .fault(&field("target"), place, what)
            .with("value", target));
    }
    let mode = match map.get("mode") {
        Some(node) => reader.permissions(&field("mode"), node)?,
        None => None,
    };
    Ok(Some(FileReference {
        source,
        target: whole,
        uid: id(reader, map, &field("uid"), "uid")?,
        gid: id(reader, map, &field("gid"), "gid")?,
        mode: mode.unwrap_or(MODE),
        at: item.at,
    }))
}

/// Reads a numeric id, 0 if it is absent. There is no user database to look a name up in.
fn id(reader: &Reader<'_>, map: &Map, field: &str, key: &str) -> Result<u32, Error> {
    let Some(node) = map.get(key) else {
        return Ok(0);
    };
    let want = "the number of a user or group, 0 to 4294967294";
    let parse = |text: &str| {
        let id = text.parse::<i64>().ok()?;
        u32::try_from(id).ok().filter(|_| id <= MAX_ID)
    };
    let id = reader.parsed(field, node, want, parse)?;
    Ok(id.unwrap_or(0))
}

/// Checks that what services refer to is declared, and that no two files have one target.
/// `may_be_included` is for a document whose included files are not known.
pub(super) fn check(
    project: &Project,
    unresolved: bool,
    may_be_included: bool,
) -> Result<(), Error> {
    for (name, service) in &project.services {
        let reader = Reader {
            service: name,
            unresolved,
        };
        for (table, given, declared) in [
            (CONFIGS, &service.configs, &project.configs),
            (SECRETS, &service.secrets, &project.secrets),
        ] {
            for reference in given {
                if !may_be_included && !declared.contains_key(&reference.source) {
                    let near = suggestion(&reference.source, declared.keys().map(String::as_str));
                    let what = format!(
                        "names {:?}, which the file does not declare{near}",
                        reference.source
                    );
                    return Err(reader
                        .fault_at(table.name, reference.at, &what)
                        .with("value", &reference.source));
                }
            }
        }
        targets(&reader, service)?;
    }
    Ok(())
}

fn targets(reader: &Reader<'_>, service: &Service) -> Result<(), Error> {
    let mounts = service.volumes.iter().map(|Mount { target, .. }| target);
    let mut taken: BTreeSet<&String> = mounts.collect();
    for (table, given) in [(CONFIGS, &service.configs), (SECRETS, &service.secrets)] {
        for reference in given {
            if !taken.insert(&reference.target) {
                let what = format!("mounts a second file at {:?}", reference.target);
                return Err(reader
                    .fault_at(table.name, reference.at, &what)
                    .with("value", &reference.target));
            }
        }
    }
    Ok(())
}
