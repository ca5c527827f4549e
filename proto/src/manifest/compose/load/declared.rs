//! Entries of the tables at the top level.

use std::collections::BTreeMap;

use crate::{
    Error,
    manifest::grammar,
    yaml::{Key, Map, Node, Position, Resolved, Scalar, Value},
};

use super::invalid_declaration;

#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    /// Top-level key that has the entry.
    pub(super) table: &'static str,
    pub(super) key: &'a Key,
    pub(super) unresolved: bool,
}

impl Reader<'_> {
    pub(super) fn fail(&self, what: &str, at: Position) -> Error {
        invalid_declaration(self.table, self.key, what, at)
    }

    pub(super) fn is_open(&self, text: &str) -> bool {
        self.unresolved && text.contains('$')
    }

    pub(super) fn name_and_external(&self, map: &Map) -> Result<(Option<String>, bool), Error> {
        let name = self.text(map, "name")?;
        let Some(node) = map.get("external") else {
            return Ok((name, false));
        };
        let needs = || self.fail("needs a boolean as external", node.at);
        match &node.value {
            Value::Map(older) => {
                let inner = self.text(older, "name")?;
                if name.is_some() && inner.is_some() && name != inner {
                    let what = "has two names, name and external.name";
                    return Err(self.fail(what, node.at));
                }
                Ok((name.or(inner), true))
            }
            Value::Scalar(scalar) if scalar.is_null() || self.is_open(&scalar.text) => {
                Ok((name, false))
            }
            Value::Scalar(scalar) => {
                let external = grammar::boolean(&scalar.text).ok_or_else(needs)?;
                Ok((name, external))
            }
            Value::Seq(_) => Err(needs()),
        }
    }

    pub(super) fn text(&self, map: &Map, key: &str) -> Result<Option<String>, Error> {
        let Some(node) = map.get(key).filter(|node| !node.is_null()) else {
            return Ok(None);
        };
        match node.as_scalar().map(Scalar::resolve) {
            Some(Resolved::Str(text)) => Ok(Some(text.to_owned()).filter(|text| !text.is_empty())),
            Some(Resolved::Null | Resolved::Bool(_) | Resolved::Int(_) | Resolved::Float(_))
            | None => Err(self.fail(&format!("needs a string as {key}"), node.at)),
        }
    }

    pub(super) fn boolean(&self, map: &Map, key: &str) -> Result<Option<bool>, Error> {
        let Some(node) = map.get(key).filter(|node| !node.is_null()) else {
            return Ok(None);
        };
        match node.text() {
            Some(text) if self.is_open(text) => Ok(None),
            text => match text.and_then(grammar::boolean) {
                Some(value) => Ok(Some(value)),
                None => Err(self.fail(&format!("needs a boolean as {key}"), node.at)),
            },
        }
    }

    /// Reads a mapping of scalars, or a list of `key=value`.
    pub(super) fn texts(&self, map: &Map, key: &str) -> Result<BTreeMap<String, String>, Error> {
        let Some(node) = map.get(key).filter(|node| !node.is_null()) else {
            return Ok(BTreeMap::new());
        };
        let wrong = |node: &Node| {
            let what = format!("needs a mapping of texts as {key}");
            self.fail(&what, node.at)
        };
        match &node.value {
            Value::Map(map) => map
                .iter()
                .map(|(key, node)| {
                    let text = node.text().ok_or_else(|| wrong(node))?;
                    let text = if node.is_null() { "" } else { text };
                    Ok((key.text.clone(), text.to_owned()))
                })
                .collect(),
            Value::Seq(items) => items
                .iter()
                .map(|item| {
                    let text = item.text().ok_or_else(|| wrong(item))?;
                    let (key, value) = text.split_once('=').unwrap_or((text, ""));
                    Ok((key.to_owned(), value.to_owned()))
                })
                .collect(),
            Value::Scalar(scalar) if self.is_open(&scalar.text) => Ok(BTreeMap::new()),
            Value::Scalar(_) => Err(wrong(node)),
        }
    }
}
