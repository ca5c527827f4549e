//! Builds nodes from parser events, within limits.
//!
//! The event parser keeps its stack on the heap and returns one event at a time, so a limit stops
//! it after at most one event too many.

use std::collections::{BTreeMap, HashMap};

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use super::{Document, Error, ErrorKind, Key, Limits, Map, Merge, Node, Position, Scalar, Value};

/// Tags and positions of a text.
#[derive(Clone, Copy)]
pub(super) enum Dialect {
    /// A document on its own.
    Document,
    /// A file of several.
    Part { file: u16 },
}

pub(super) fn document(text: &str, limits: Limits, dialect: Dialect) -> Result<Document, Error> {
    let mut parser = Parser::new_from_str(text);
    let mut builder = Builder {
        limits,
        dialect,
        nodes: 0,
        text_bytes: 0,
        open: Vec::new(),
        anchors: BTreeMap::new(),
    };
    let mut root = None;
    let mut next = None;
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| syntax(&error, &limits))?;
        let at = builder.position(&span.start);
        if root.is_some() {
            if matches!(event, Event::DocumentStart(_)) {
                next = Some(at);
                break;
            }
            continue;
        }
        root = builder.handle(event, at)?;
    }
    Ok(Document { root, next })
}

fn position(marker: &Marker) -> Position {
    // The parser counts lines from 1 and columns from 0.
    Position::zero_based(marker.line().saturating_sub(1), marker.col())
}

fn syntax(error: &ScanError, limits: &Limits) -> Error {
    // The parser reads ahead, so its own limit on flow nesting may apply first.
    if error.info() == "recursion limit exceeded" {
        return too_deep(limits, position(error.marker()));
    }
    ErrorKind::Syntax(error.info().to_owned()).at(position(error.marker()))
}

struct Builder {
    limits: Limits,
    dialect: Dialect,
    nodes: usize,
    text_bytes: usize,
    open: Vec<Open>,
    anchors: BTreeMap<usize, Node>,
}

/// A list or mapping whose end event has not arrived.
struct Open {
    at: Position,
    merge: Merge,
    anchor: usize,
    items: Items,
}

enum Items {
    Seq(Vec<Node>),
    Map {
        entries: Vec<(Key, Node)>,
        seen: HashMap<String, u32>,
        key: Option<PendingKey>,
        merges: Vec<Node>,
    },
}

/// A complete node that has not been added to its parent.
struct Finished {
    node: Node,
    /// Whether the node is a plain `<<`, which merges in the position of a key.
    merge_key: bool,
}

impl Builder {
    /// Handles one event; returns the root once it is complete.
    fn handle(&mut self, event: Event<'_>, at: Position) -> Result<Option<Node>, Error> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let (merge, tag) = self.merge(tag.as_deref());
                let plain = plain(style, tag, at)?;
                let merge_key = text == "<<" && style == ScalarStyle::Plain;
                self.spend(text.len(), at)?;
                let value = Value::Scalar(Scalar {
                    text: text.into_owned(),
                    plain,
                });
                self.finish(Node { value, at, merge }, anchor, merge_key)
            }
            Event::SequenceStart(anchor, tag) => {
                let (merge, tag) = self.merge(tag.as_deref());
                collection_tag(tag, "seq", at)?;
                self.start(Items::Seq(Vec::new()), anchor, merge, at)
            }
            Event::MappingStart(anchor, tag) => {
                let (merge, tag) = self.merge(tag.as_deref());
                collection_tag(tag, "map", at)?;
                let items = Items::Map {
                    entries: Vec::new(),
                    seen: HashMap::new(),
                    key: None,
                    merges: Vec::new(),
                };
                self.start(items, anchor, merge, at)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let node = self.expand(anchor, at)?;
                self.attach(Finished {
                    node,
                    merge_key: false,
                })
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(None),
        }
    }

    fn position(&self, marker: &Marker) -> Position {
        let file = match self.dialect {
            Dialect::Document => 0,
            Dialect::Part { file } => file,
        };
        Position {
            file,
            ..position(marker)
        }
    }

    /// Separates the tags of merging from those of types.
    fn merge<'t>(&self, tag: Option<&'t Tag>) -> (Merge, Option<&'t Tag>) {
        let is_part = matches!(self.dialect, Dialect::Part { .. });
        let local = tag.filter(|tag| is_part && tag.handle == "!");
        match local.map(|tag| tag.suffix.as_str()) {
            Some("reset") => (Merge::Reset, None),
            Some("override") => (Merge::Replace, None),
            Some(_) | None => (Merge::Combine, tag),
        }
    }

    fn start(
        &mut self,
        items: Items,
        anchor: usize,
        merge: Merge,
        at: Position,
    ) -> Result<Option<Node>, Error> {
        self.spend(0, at)?;
        if self.open.len() >= self.limits.depth {
            return Err(too_deep(&self.limits, at));
        }
        self.open.push(Open {
            at,
            merge,
            anchor,
            items,
        });
        Ok(None)
    }

    fn end(&mut self) -> Result<Option<Node>, Error> {
        let Some(open) = self.open.pop() else {
            return Ok(None);
        };
        let value = match open.items {
            Items::Seq(items) => Value::Seq(items),
            Items::Map {
                mut entries,
                mut seen,
                merges,
                ..
            } => {
                for merge in merges {
                    merge_into(&mut entries, &mut seen, merge)?;
                }
                Value::Map(Map::new(entries))
            }
        };
        let node = Node {
            value,
            at: open.at,
            merge: open.merge,
        };
        self.finish(node, open.anchor, false)
    }

    fn finish(
        &mut self,
        node: Node,
        anchor: usize,
        merge_key: bool,
    ) -> Result<Option<Node>, Error> {
        if anchor != 0 {
            let mut cost = Cost::of(self);
            cost.add(&node, 0, node.at)?;
            cost.charge(self);
            self.anchors.insert(anchor, node.clone());
        }
        self.attach(Finished { node, merge_key })
    }

    fn attach(&mut self, Finished { node, merge_key }: Finished) -> Result<Option<Node>, Error> {
        let Some(parent) = self.open.last_mut() else {
            return Ok(Some(node));
        };
        match &mut parent.items {
            Items::Seq(items) => items.push(node),
            Items::Map {
                entries,
                seen,
                key,
                merges,
            } => match key.take() {
                Some(written) if written.merge => merges.push(node),
                Some(written) => entries.push((written.into_key(), node)),
                None => *key = Some(pending_key(seen, node, merge_key)?),
            },
        }
        Ok(None)
    }

    /// Copies the node of an anchor, within the limits at the alias.
    fn expand(&mut self, anchor: usize, at: Position) -> Result<Node, Error> {
        let mut cost = Cost::of(self);
        // The parser rejects unknown anchors; one that is missing here is not complete yet.
        let node = self
            .anchors
            .get(&anchor)
            .ok_or_else(|| ErrorKind::RecursiveAlias.at(at))?;
        cost.add(node, self.open.len(), at)?;
        let node = node.clone();
        cost.charge(self);
        Ok(node)
    }

    fn spend(&mut self, text_bytes: usize, at: Position) -> Result<(), Error> {
        let mut cost = Cost::of(self);
        cost.spend(text_bytes, at)?;
        cost.charge(self);
        Ok(())
    }
}

/// Resources that the document has used so far.
struct Cost {
    limits: Limits,
    nodes: usize,
    text_bytes: usize,
}

impl Cost {
    fn of(builder: &Builder) -> Self {
        Self {
            limits: builder.limits,
            nodes: builder.nodes,
            text_bytes: builder.text_bytes,
        }
    }

    fn charge(self, builder: &mut Builder) {
        builder.nodes = self.nodes;
        builder.text_bytes = self.text_bytes;
    }

    fn spend(&mut self, text_bytes: usize, at: Position) -> Result<(), Error> {
        self.nodes += 1;
        self.text_bytes += text_bytes;
        if self.nodes > self.limits.nodes {
            let limit = self.limits.nodes;
            return Err(ErrorKind::TooManyNodes { limit }.at(at));
        }
        if self.text_bytes > self.limits.text_bytes {
            let limit = self.limits.text_bytes;
            return Err(ErrorKind::TooMuchText { limit }.at(at));
        }
        Ok(())
    }

    /// Adds a tree at nesting level `depth`.
    fn add(&mut self, node: &Node, depth: usize, at: Position) -> Result<(), Error> {
        let inside = depth + 1;
        let too_deep = inside > self.limits.depth;
        match &node.value {
            Value::Scalar(scalar) => self.spend(scalar.text.len(), at),
            Value::Seq(_) | Value::Map(_) if too_deep => Err(self::too_deep(&self.limits, at)),
            Value::Seq(items) => {
                self.spend(0, at)?;
                items.iter().try_for_each(|item| self.add(item, inside, at))
            }
            Value::Map(map) => {
                self.spend(0, at)?;
                map.iter().try_for_each(|(key, value)| {
                    self.spend(key.text.len(), at)?;
                    self.add(value, inside, at)
                })
            }
        }
    }
}

fn too_deep(limits: &Limits, at: Position) -> Error {
    ErrorKind::TooDeep {
        limit: limits.depth,
    }
    .at(at)
}

/// A key without a value yet.
struct PendingKey {
    text: String,
    at: Position,
    merge: bool,
}

impl PendingKey {
    fn into_key(self) -> Key {
        Key {
            text: self.text,
            at: self.at,
        }
    }
}

fn pending_key(
    seen: &mut HashMap<String, u32>,
    node: Node,
    merge: bool,
) -> Result<PendingKey, Error> {
    let at = node.at;
    let Value::Scalar(scalar) = node.value else {
        return Err(ErrorKind::ComplexKey.at(at));
    };
    let text = scalar.text;
    if let Some(&first) = seen.get(&text) {
        return Err(ErrorKind::DuplicateKey { key: text, first }.at(at));
    }
    seen.insert(text.clone(), at.line);
    Ok(PendingKey { text, at, merge })
}

/// Adds the entries of a merged node that are not in `entries`.
fn merge_into(
    entries: &mut Vec<(Key, Node)>,
    seen: &mut HashMap<String, u32>,
    merge: Node,
) -> Result<(), Error> {
    match merge.value {
        Value::Map(merged) => {
            for (key, node) in merged.into_entries() {
                if !seen.contains_key(&key.text) {
                    seen.insert(key.text.clone(), key.at.line);
                    entries.push((key, node));
                }
            }
            Ok(())
        }
        Value::Seq(items) => items.into_iter().try_for_each(|item| {
            if item.as_map().is_none() {
                return Err(ErrorKind::BadMerge.at(item.at));
            }
            merge_into(entries, seen, item)
        }),
        Value::Scalar(_) => Err(ErrorKind::BadMerge.at(merge.at)),
    }
}

/// Whether a scalar may have a type other than text.
fn plain(style: ScalarStyle, tag: Option<&Tag>, at: Position) -> Result<bool, Error> {
    let Some(tag) = tag else {
        return Ok(style == ScalarStyle::Plain);
    };
    if tag.is_yaml_core_schema() {
        match tag.suffix.as_str() {
            "str" | "binary" | "timestamp" => return Ok(false),
            "int" | "float" | "bool" | "null" | "merge" => return Ok(true),
            _ => {}
        }
    } else if is_non_specific(tag) {
        return Ok(false);
    }
    Err(ErrorKind::UnsupportedTag(tag.to_string()).at(at))
}

fn collection_tag(tag: Option<&Tag>, expected: &str, at: Position) -> Result<(), Error> {
    match tag {
        None => Ok(()),
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == expected => Ok(()),
        Some(tag) if is_non_specific(tag) => Ok(()),
        Some(tag) => Err(ErrorKind::UnsupportedTag(tag.to_string()).at(at)),
    }
}

/// Whether this is the tag `!`, which only prevents the detection of a type.
fn is_non_specific(tag: &Tag) -> bool {
    tag.handle.is_empty() && tag.suffix == "!"
}
