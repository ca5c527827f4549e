//! Typed reading of the nodes of one service.
//!
//! A null value counts as an absent key. In an `unresolved` document, so does a scalar that contains
//! a `$`: its value is not known yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

use crate::{
    Error,
    manifest::{
        fault::{Located, invalid, suggestion},
        grammar,
        hash::canonical_json,
    },
    yaml::{Map, Node, Position, Resolved, Scalar, Value},
};

use super::keys::Keys;

#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) service: &'a str,
    pub(super) unresolved: bool,
}

impl Reader<'_> {
    /// Error for a node of the wrong type.
    pub(super) fn wrong(&self, field: &str, node: &Node, expected: &str) -> Error {
        let value = node.text().filter(|_| !node.is_null());
        let value = value.map(|text| format!(" {text:?}"));
        self.fault(
            field,
            node,
            format!(
                "must be {expected}, not {}{}",
                node.kind(),
                value.unwrap_or_default()
            ),
        )
    }

    /// Error for a node that violates a rule of the field.
    pub(super) fn fault(&self, field: &str, node: &Node, what: impl AsRef<str>) -> Error {
        let error = self.fault_at(field, node.at, what.as_ref());
        match node.text().filter(|_| !node.is_null()) {
            Some(text) => error.with("value", text),
            None => error,
        }
    }

    /// Error at a position of the field.
    pub(super) fn fault_at(&self, field: &str, at: Position, what: &str) -> Error {
        let service = self.service;
        let message = format!("compose load: services.{service}.{field} {what}");
        invalid(message)
            .with("service", service)
            .with("field", field)
            .at(at)
    }

    /// Whether the value is unknown until interpolation.
    pub(super) fn is_open(&self, node: &Node) -> bool {
        self.unresolved && node.text().is_some_and(|text| text.contains('$'))
    }

    /// Whether the value of `key` is unknown until interpolation.
    pub(super) fn is_open_in(&self, map: &Map, key: &str) -> bool {
        map.get(key).is_some_and(|node| self.is_open(node))
    }

    fn scalar<'n>(
        &self,
        field: &str,
        node: &'n Node,
        expected: &str,
    ) -> Result<Option<&'n Scalar>, Error> {
        match &node.value {
            Value::Scalar(scalar) if scalar.is_null() || self.is_open(node) => Ok(None),
            Value::Scalar(scalar) => Ok(Some(scalar)),
            Value::Seq(_) | Value::Map(_) => Err(self.wrong(field, node, expected)),
        }
    }

    pub(super) fn string(&self, field: &str, node: &Node) -> Result<Option<String>, Error> {
        let Some(scalar) = self.scalar(field, node, "a string")? else {
            return Ok(None);
        };
        match scalar.resolve() {
            Resolved::Str(text) => Ok(Some(text.to_owned())),
            Resolved::Null | Resolved::Bool(_) | Resolved::Int(_) | Resolved::Float(_) => {
                Err(self.wrong(field, node, "a string"))
            }
        }
    }

    /// Reads a string; an empty one counts as absent.
    pub(super) fn name(&self, field: &str, node: &Node) -> Result<Option<String>, Error> {
        Ok(self.string(field, node)?.filter(|text| !text.is_empty()))
    }

    pub(super) fn boolean(&self, field: &str, node: &Node) -> Result<Option<bool>, Error> {
        let Some(scalar) = self.scalar(field, node, "a boolean")? else {
            return Ok(None);
        };
        let value = match scalar.resolve() {
            Resolved::Bool(value) => Some(value),
            Resolved::Str(text) => grammar::boolean(text),
            Resolved::Null | Resolved::Int(_) | Resolved::Float(_) => None,
        };
        match value {
            Some(value) => Ok(Some(value)),
            None => Err(self.wrong(field, node, "a boolean")),
        }
    }

    pub(super) fn int(&self, field: &str, node: &Node) -> Result<Option<i64>, Error> {
        let Some(scalar) = self.scalar(field, node, "a whole number")? else {
            return Ok(None);
        };
        let value = match scalar.resolve() {
            Resolved::Int(value) => i64::try_from(value).ok(),
            Resolved::Str(text) => text.parse().ok(),
            Resolved::Null | Resolved::Bool(_) | Resolved::Float(_) => None,
        };
        match value {
            Some(value) => Ok(Some(value)),
            None => Err(self.wrong(field, node, "a whole number")),
        }
    }

    /// Reads a whole number within `range`.
    pub(super) fn int_within(
        &self,
        field: &str,
        node: &Node,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, Error> {
        let value = self.int(field, node)?;
        match value.filter(|value| !range.contains(value)) {
            Some(_) => {
                let want = format!("{} to {}", range.start(), range.end());
                Err(self.wrong(field, node, &want))
            }
            None => Ok(value),
        }
    }

    /// Reads a number or text and parses it.
    pub(super) fn parsed<T>(
        &self,
        field: &str,
        node: &Node,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(scalar) = self.scalar(field, node, expected)? else {
            return Ok(None);
        };
        let value = match scalar.resolve() {
            Resolved::Int(value) => parse(&value.to_string()),
            Resolved::Str(text) => parse(text),
            Resolved::Float(_) => parse(&scalar.text),
            Resolved::Null | Resolved::Bool(_) => None,
        };
        match value {
            Some(value) => Ok(Some(value)),
            None => Err(self.wrong(field, node, expected)),
        }
    }

    pub(super) fn duration(&self, field: &str, node: &Node) -> Result<Option<Duration>, Error> {
        let expected = "a duration such as 1m30s";
        self.parsed(field, node, expected, grammar::duration)
    }

    pub(super) fn bytes(&self, field: &str, node: &Node) -> Result<Option<i64>, Error> {
        self.parsed(field, node, "a size such as 64M", grammar::bytes)
    }

    /// Reads permissions of a file: a number, which YAML takes as octal with a leading zero, or
    /// octal digits as text.
    pub(super) fn permissions(&self, field: &str, node: &Node) -> Result<Option<u32>, Error> {
        let expected = "permissions such as 0644";
        let Some(scalar) = self.scalar(field, node, expected)? else {
            return Ok(None);
        };
        let value = match scalar.resolve() {
            Resolved::Int(value) => u32::try_from(value).ok(),
            Resolved::Str(text) => u32::from_str_radix(text, 8).ok(),
            Resolved::Null | Resolved::Bool(_) | Resolved::Float(_) => None,
        };
        match value.filter(|mode| *mode <= 0o7777) {
            Some(mode) => Ok(Some(mode)),
            None => Err(self.wrong(field, node, expected)),
        }
    }

    /// Reads one of the given words.
    pub(super) fn choice<T: Copy>(
        &self,
        field: &str,
        node: &Node,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Error> {
        let Some(text) = self.name(field, node)? else {
            return Ok(None);
        };
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                let near = suggestion(&text, words.iter().copied());
                let what = format!("is {text:?}, want {}{near}", words.join(" or "));
                Err(self.fault(field, node, what))
            }
        }
    }

    pub(super) fn seq<'n>(&self, field: &str, node: &'n Node) -> Result<&'n [Node], Error> {
        match &node.value {
            Value::Seq(items) => Ok(items),
            Value::Scalar(scalar) if scalar.is_null() || self.is_open(node) => Ok(&[]),
            Value::Scalar(_) | Value::Map(_) => Err(self.wrong(field, node, "a list")),
        }
    }

    /// Reads a list without duplicates.
    pub(super) fn distinct<'n>(&self, field: &str, node: &'n Node) -> Result<&'n [Node], Error> {
        let items = self.seq(field, node)?;
        let mut seen = BTreeSet::new();
        for item in items {
            let text = canonical_json(item);
            if seen.contains(&text) {
                return Err(self.fault(field, item, format!("repeats the item {text}")));
            }
            seen.insert(text);
        }
        Ok(items)
    }

    /// Reads a mapping with known keys; `None` if absent.
    pub(super) fn map<'n>(
        &self,
        field: &str,
        node: &'n Node,
        keys: &Keys,
    ) -> Result<Option<&'n Map>, Error> {
        let Some(map) = self.any_map(field, node)? else {
            return Ok(None);
        };
        for (key, _) in map.iter() {
            let text = key.text.as_str();
            if !keys.has(text) {
                let near = suggestion(text, keys.names());
                let field = format!("{field}.{text}");
                let message = format!(
                    "compose load: services.{}.{field} is not a known key{near}",
                    self.service
                );
                return Err(invalid(message)
                    .with("service", self.service)
                    .with("field", field)
                    .at(key.at));
            }
        }
        Ok(Some(map))
    }

    /// Reads a mapping with any keys; `None` if absent.
    pub(super) fn any_map<'n>(
        &self,
        field: &str,
        node: &'n Node,
    ) -> Result<Option<&'n Map>, Error> {
        match &node.value {
            Value::Map(map) => Ok(Some(map)),
            Value::Scalar(scalar) if scalar.is_null() || self.is_open(node) => Ok(None),
            Value::Scalar(_) | Value::Seq(_) => Err(self.wrong(field, node, "a mapping")),
        }
    }

    pub(super) fn strings(&self, field: &str, items: &[Node]) -> Result<Vec<String>, Error> {
        let mut strings = Vec::with_capacity(items.len());
        for item in items {
            if item.is_null() {
                return Err(self.wrong(field, item, "a list of strings"));
            }
            strings.extend(self.string(field, item)?);
        }
        Ok(strings)
    }

    pub(super) fn string_list(&self, field: &str, node: &Node) -> Result<Vec<String>, Error> {
        self.strings(field, self.distinct(field, node)?)
    }

    pub(super) fn string_or_list(&self, field: &str, node: &Node) -> Result<Vec<String>, Error> {
        match &node.value {
            Value::Seq(items) => self.strings(field, items),
            Value::Scalar(_) | Value::Map(_) => Ok(self.name(field, node)?.into_iter().collect()),
        }
    }

    /// Reads a list of words, or splits a string into words; `None` if empty.
    pub(super) fn command(&self, field: &str, node: &Node) -> Result<Option<Vec<String>>, Error> {
        let words = match &node.value {
            Value::Seq(items) => self.strings(field, items)?,
            Value::Scalar(_) | Value::Map(_) => match self.string(field, node)? {
                Some(text) => grammar::words(&text)
                    .ok_or_else(|| self.fault(field, node, "has an open quote"))?,
                None => Vec::new(),
            },
        };
        Ok((!words.is_empty()).then_some(words))
    }

    /// Reads a mapping of scalars, or a list of `KEY=value` and `KEY`, whose value is `None`.
    pub(super) fn dict(
        &self,
        field: &str,
        node: &Node,
    ) -> Result<BTreeMap<String, Option<String>>, Error> {
        if let Value::Map(map) = &node.value {
            return map
                .iter()
                .map(|(key, value)| {
                    let field = format!("{field}.{}", key.text);
                    Ok((key.text.clone(), self.any_scalar(&field, value)?))
                })
                .collect();
        }
        if node.text().is_some() && !node.is_null() && !self.is_open(node) {
            return Err(self.wrong(field, node, "a mapping or a list"));
        }
        let items = self.strings(field, self.distinct(field, node)?)?;
        Ok(items
            .into_iter()
            .map(|item| match item.split_once('=') {
                Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
                None => (item, None),
            })
            .collect())
    }

    /// Like [`Self::dict`], with the empty string for absent values.
    pub(super) fn labels(
        &self,
        field: &str,
        node: &Node,
    ) -> Result<BTreeMap<String, String>, Error> {
        let dict = self.dict(field, node)?;
        Ok(dict
            .into_iter()
            .map(|(key, value)| (key, value.unwrap_or_default()))
            .collect())
    }

    /// Returns the source text of a scalar of any type; `None` for null.
    pub(super) fn any_scalar(&self, field: &str, node: &Node) -> Result<Option<String>, Error> {
        match &node.value {
            Value::Scalar(scalar) if scalar.is_null() => Ok(None),
            Value::Scalar(scalar) => Ok(Some(scalar.text.clone())),
            Value::Seq(_) | Value::Map(_) => {
                Err(self.wrong(field, node, "a string, a number, a boolean or null"))
            }
        }
    }
}
