//! Typed access to the fields of a closed mapping.

use std::collections::BTreeMap;

use super::Error;
use crate::{
    duration::{self, Nanos},
    yaml::{Key, Map, Node, Resolved, Scalar, Value},
};

/// The fields of one mapping, all of whose keys are known.
///
/// A quoted scalar equals an unquoted one, except that a quoted `~` is text. A null counts as
/// absent.
pub(super) struct Fields<'a> {
    /// Prefix of the keys in messages: empty, or the parents with a dot.
    prefix: &'static str,
    map: Option<&'a Map>,
}

impl<'a> Fields<'a> {
    /// Checks that `node` is a mapping of `known` keys; `None` counts as an empty mapping.
    pub(super) fn closed(
        node: Option<&'a Node>,
        prefix: &'static str,
        known: &[&str],
    ) -> Result<Self, Error> {
        let Some(node) = node.filter(|node| !node.is_null()) else {
            return Ok(Self { prefix, map: None });
        };
        let name = match prefix.trim_end_matches('.') {
            "" => "the file",
            parent => parent,
        };
        let map = node
            .as_map()
            .ok_or_else(|| wrong_type(name.to_owned(), node, "a mapping"))?;
        if let Some((key, _)) = map.iter().find(|(key, _)| !known.contains(&&*key.text)) {
            return Err(Error::UnknownKey {
                key: format!("{prefix}{}", key.text),
                line: key.at.line,
                suggestion: closest(&key.text, known).map(|near| format!("{prefix}{near}")),
            });
        }
        Ok(Self {
            prefix,
            map: Some(map),
        })
    }

    pub(super) fn node(&self, key: &str) -> Option<&'a Node> {
        self.map?.get(key).filter(|node| !node.is_null())
    }

    /// Returns the text of a scalar of any type.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        let found = self.scalar(key, "text")?;
        Ok(found.map(|(_, scalar)| &*scalar.text))
    }

    pub(super) fn boolean(&self, key: &str) -> Result<Option<bool>, Error> {
        const EXPECTED: &str = "true or false";
        let Some((node, scalar)) = self.scalar(key, EXPECTED)? else {
            return Ok(None);
        };
        match scalar.text.as_str() {
            "true" | "True" | "TRUE" | "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
                Ok(Some(true))
            }
            "false" | "False" | "FALSE" | "n" | "N" | "no" | "No" | "NO" | "off" | "Off"
            | "OFF" => Ok(Some(false)),
            _ => Err(wrong_type(self.name(key), node, EXPECTED)),
        }
    }

    pub(super) fn integer(&self, key: &str) -> Result<Option<i128>, Error> {
        const EXPECTED: &str = "a whole number";
        let Some((node, scalar)) = self.scalar(key, EXPECTED)? else {
            return Ok(None);
        };
        match whole_number(scalar) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong_type(self.name(key), node, EXPECTED)),
        }
    }

    /// Returns a duration; a bare number is in nanoseconds.
    pub(super) fn duration(&self, key: &str) -> Result<Option<Nanos>, Error> {
        let Some((_, scalar)) = self.scalar(key, "a duration")? else {
            return Ok(None);
        };
        let nanos = match whole_number(scalar) {
            Some(number) => number.try_into().ok(),
            None => duration::parse(&scalar.text).ok(),
        };
        nanos.map(Some).ok_or_else(|| Error::NotADuration {
            key: self.name(key),
            value: scalar.text.clone(),
        })
    }

    /// Returns a list of scalars as text; a null element is empty text.
    pub(super) fn texts(&self, key: &str) -> Result<Vec<&'a str>, Error> {
        let Some(node) = self.node(key) else {
            return Ok(Vec::new());
        };
        let Value::Seq(items) = &node.value else {
            return Err(wrong_type(self.name(key), node, "a list"));
        };
        items
            .iter()
            .map(|item| match item.text() {
                Some(_) if item.is_null() => Ok(""),
                Some(text) => Ok(text),
                None => Err(wrong_type(self.name(key), item, "a list of text")),
            })
            .collect()
    }

    /// Returns a mapping of scalars as text; null is empty text.
    pub(super) fn pairs(&self, key: &str) -> Result<BTreeMap<String, String>, Error> {
        let Some(node) = self.node(key) else {
            return Ok(BTreeMap::new());
        };
        let map = node
            .as_map()
            .ok_or_else(|| wrong_type(self.name(key), node, "a mapping"))?;
        let pair = |(name, item): (&Key, &Node)| match item.text() {
            Some(_) if item.is_null() => Ok((name.text.clone(), String::new())),
            Some(text) => Ok((name.text.clone(), text.to_owned())),
            None => {
                let name = format!("{}.{}", self.name(key), name.text);
                Err(wrong_type(name, item, "text"))
            }
        };
        map.iter().map(pair).collect()
    }

    fn scalar(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<(&'a Node, &'a Scalar)>, Error> {
        let Some(node) = self.node(key) else {
            return Ok(None);
        };
        match node.as_scalar() {
            Some(scalar) => Ok(Some((node, scalar))),
            None => Err(wrong_type(self.name(key), node, expected)),
        }
    }

    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

fn wrong_type(key: String, node: &Node, expected: &'static str) -> Error {
    Error::WrongType {
        key,
        line: node.at.line,
        expected,
        found: node.kind(),
    }
}

/// Parses a YAML number, including digits grouped with `_` and whole floats.
fn whole_number(scalar: &Scalar) -> Option<i128> {
    let unquoted = Scalar {
        text: scalar.text.replace('_', ""),
        plain: true,
    };
    match unquoted.resolve() {
        Resolved::Int(number) => Some(number),
        Resolved::Float(number) if number.fract() == 0.0 && number.abs() < 1e18 => {
            // Exact: whole, and far below the limits of `i128`.
            Some(number as i128)
        }
        Resolved::Float(_) | Resolved::Null | Resolved::Bool(_) | Resolved::Str(_) => None,
    }
}

fn closest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    known
        .iter()
        .map(|candidate| (strsim::osa_distance(key, candidate), *candidate))
        .filter(|(distance, _)| *distance <= 2)
        .min()
        .map(|(_, candidate)| candidate)
}
