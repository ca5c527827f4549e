//! Where each part of a resolved document was written.

use std::collections::HashMap;

use crate::yaml::{self, Node, Position, Value};

/// Positions of a resolved document, by those of its text.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins(HashMap<(u32, u32), Position>);

impl Origins {
    /// Maps the positions of `text` to those of the nodes that it was written from.
    pub(super) fn of(root: &Node, text: &[u8]) -> Self {
        let mut origins = Self::default();
        if let Ok(document) = yaml::parse(text)
            && let Some(written) = &document.root
        {
            origins.add(written, root);
        }
        origins
    }

    /// Returns where the part of the text at a line and column was written.
    pub(super) fn find(&self, line: u32, col: u32) -> Option<Position> {
        self.0.get(&(line, col)).copied()
    }

    fn add(&mut self, written: &Node, original: &Node) {
        // A mapping begins where its first key does, whose own place counts then.
        let place = (written.at.line, written.at.col);
        self.0.entry(place).or_insert(original.at);
        match (&written.value, &original.value) {
            (Value::Map(written), Value::Map(original)) => {
                for ((key, node), (origin, child)) in written.iter().zip(original.iter()) {
                    self.0.insert((key.at.line, key.at.col), origin.at);
                    self.add(node, child);
                }
            }
            (Value::Seq(written), Value::Seq(original)) => {
                for (node, child) in written.iter().zip(original) {
                    self.add(node, child);
                }
            }
            _ => {}
        }
    }
}
