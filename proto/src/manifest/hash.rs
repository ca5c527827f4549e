//! Spec hash: identifies the settings of a container.

mod go;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::{
    Error,
    quote::write_quoted,
    v1,
    yaml::{Node, Resolved, Scalar, Value},
};

use super::compose::{document::Document, mounts};

/// Hashes the services of one stored compose file.
///
/// Equal hashes mean that a running container need not be replaced. Comments, key order and layout
/// do not affect the hash; every value does, including its type (`80` is not `"80"`).
pub struct SpecHasher {
    document: Document,
}

impl SpecHasher {
    /// Parses a compose file that was validated before.
    ///
    /// # Errors
    /// Those of [`Project::parse`](super::compose::Project::parse) for the document as a whole.
    pub fn new(compose: &[u8]) -> Result<Self, Error> {
        let document = Document::parse(compose, false)?;
        Ok(Self { document })
    }

    /// Returns the hash of `service` attached to `networks`, in attach order, with `files`; `None`
    /// if the file has no such service.
    pub fn hash(
        &self,
        service: &str,
        networks: &[String],
        files: &[v1::MountedFile],
    ) -> Option<[u8; 32]> {
        let node = self.document.service(service)?;
        let mut text = canonical_json(node);
        self.write_surroundings(&mut text, node, networks);
        for file in files {
            write_file(&mut text, file);
        }
        Some(Sha256::digest(text).into())
    }

    /// Returns the hash that JACO's Go implementation stores for `service`; `None` if the file has
    /// no such service, or a value in it that the two implementations may type differently.
    ///
    /// It covers neither networks nor volumes outside the service.
    pub fn go_hash(&self, service: &str) -> Option<[u8; 32]> {
        let text = go::json(self.document.service(service)?)?;
        Some(Sha256::digest(text).into())
    }

    /// Writes the settings that the container depends on outside its subtree.
    fn write_surroundings(&self, out: &mut String, service: &Node, networks: &[String]) {
        let volumes = service.as_map().and_then(|map| map.get("volumes"));
        let mut volumes: Vec<&str> = volumes.map(mounts::named).unwrap_or_default();
        volumes.sort_unstable();
        volumes.dedup();
        for network in networks {
            out.push_str("\nnetwork ");
            write_string(out, network);
        }
        for key in volumes {
            let Some(declared) = self.document.volume(key).and_then(Node::as_map) else {
                continue;
            };
            for field in ["name", "external"] {
                if let Some(value) = declared.get(field) {
                    out.push_str("\nvolume ");
                    write_string(out, key);
                    let _ = write!(out, " {field} "); // writing to a String cannot fail
                    write_json(out, value);
                }
            }
        }
    }
}

fn write_file(out: &mut String, file: &v1::MountedFile) {
    let v1::MountedFile {
        kind,
        name: _, // of the declaration, which no container sees
        target,
        path,
        uid,
        gid,
        mode,
        content_id,
    } = file;
    // Writing to a String cannot fail.
    let _ = write!(out, "\nfile {kind} {uid} {gid} {mode} ");
    for text in [target, path, content_id] {
        write_string(out, text);
    }
}

/// Formats a node as canonical JSON: keys sorted bytewise, no white space.
///
/// Numbers and booleans keep their source text, as in an environment: `1.50` is not `1.5` to a
/// container.
pub(super) fn canonical_json(node: &Node) -> String {
    let mut text = String::new();
    write_json(&mut text, node);
    text
}

fn write_json(out: &mut String, node: &Node) {
    write_tree(
        out,
        node,
        write_string,
        &mut |out, scalar| match scalar.resolve() {
            Resolved::Null => out.push_str("null"),
            Resolved::Str(text) => write_string(out, text),
            Resolved::Bool(_) | Resolved::Int(_) | Resolved::Float(_) => out.push_str(&scalar.text),
        },
    );
}

/// Writes a node as JSON: mappings by sorted keys, which `key` writes, and scalars with `scalar`.
fn write_tree(
    out: &mut String,
    node: &Node,
    key: fn(&mut String, &str),
    scalar: &mut dyn FnMut(&mut String, &Scalar),
) {
    match &node.value {
        Value::Map(map) => {
            out.push('{');
            for (index, (name, value)) in map.sorted().into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                key(out, &name.text);
                out.push(':');
                write_tree(out, value, key, scalar);
            }
            out.push('}');
        }
        Value::Seq(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_tree(out, item, key, scalar);
            }
            out.push(']');
        }
        Value::Scalar(value) => scalar(out, value),
    }
}

fn write_string(out: &mut String, text: &str) {
    // Not serde_json, which writes `\b` and `\f`: the hashes of running containers must not change.
    write_quoted(out, text, |c| {
        (c < ' ').then(|| format!("\\u{:04x}", u32::from(c)))
    });
}
