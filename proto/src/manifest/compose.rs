//! Compose files: the container set of a deployment.
//!
//! Parsing has two steps, in the order in which errors are reported: checks of the nodes with an
//! error code per rule, then typed reading into a [`Project`].

mod check;
pub(super) mod document;
mod keys;
mod load;
mod model;
pub(super) mod mounts;
mod ports;
mod reader;
mod unused;

#[cfg(test)]
mod tests;

pub use model::*;

use document::Document;
pub(super) use mounts::target as mount_target;
pub(super) use ports::key as port_key;

use std::collections::BTreeMap;

use super::fault::bounded;
use crate::{
    Error,
    v1::FileKind,
    yaml::{Node, Position, Value},
};

/// Scope of the networks that deployments share, in place of a deployment; no deployment that exists
/// beside them has this name.
pub const SHARED_SCOPE: &str = "shared";

/// Returns the name that deployments share of a network of a service, by its name in the state; `None` for one
/// of its own deployment.
#[must_use]
pub fn shared_name(network: &str) -> Option<&str> {
    // The keys of a file hold no slash.
    network.strip_prefix(SHARED_SCOPE)?.strip_prefix('/')
}

/// File name in error details.
pub(super) const FILE: &str = "compose.yaml";

impl Project {
    /// Parses a compose file and checks all rules.
    ///
    /// # Errors
    /// The first violated rule with its code, service, field and position. Stored files passed the
    /// same rules when they were applied.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        Ok(Compose::checked(bytes)?.project)
    }

    /// Name in the cluster's state of the network that the file declares as `key`: the key itself, or
    /// `shared/<name>` for one that deployments share.
    #[must_use]
    pub fn network_name(&self, key: &str) -> String {
        match self.shared_network(key) {
            Some(name) => format!("{SHARED_SCOPE}/{name}"),
            None => load::normalised(key),
        }
    }

    fn shared_network(&self, key: &str) -> Option<&String> {
        let declared = self.networks.get(&load::normalised(key));
        declared.and_then(|declared| declared.shared.as_ref())
    }

    /// Returns the origins of the configs and secrets that services mount, by kind and key.
    pub fn file_sources(&self) -> BTreeMap<(FileKind, String), FileSource> {
        let mut sources = BTreeMap::new();
        for service in self.services.values() {
            for (kind, given, declared) in [
                (FileKind::Config, &service.configs, &self.configs),
                (FileKind::Secret, &service.secrets, &self.secrets),
            ] {
                for FileReference { source: name, .. } in given {
                    let source = declared.get(name).and_then(|object| object.source.clone());
                    sources.extend(source.map(|source| ((kind, name.clone()), source)));
                }
            }
        }
        sources
    }
}

/// Returns the keys that a service may have, sorted; `env_file` and others are resolved by clients.
pub fn service_keys() -> impl Iterator<Item = &'static str> {
    keys::SERVICE.names()
}

/// Returns a table in Markdown per kind of mapping: its keys and what JACO does with each.
pub fn key_reference() -> String {
    keys::reference()
}

/// A compose file that passed all rules.
pub(super) struct Compose {
    document: Document,
    pub(super) project: Project,
}

impl Compose {
    /// Parses a file as a daemon does: with all variables resolved.
    pub(super) fn checked(bytes: &[u8]) -> Result<Self, Error> {
        Self::read(bytes, false).map_err(|error| bounded(error.with("file", FILE)))
    }

    /// Parses a file before interpolation: `env_file` is allowed, and rules about a scalar that
    /// still contains a `$` are skipped.
    pub(super) fn unresolved(bytes: &[u8]) -> Result<Self, Error> {
        Self::read(bytes, true).map_err(|error| bounded(error.with("file", FILE)))
    }

    fn read(bytes: &[u8], unresolved: bool) -> Result<Self, Error> {
        let document = Document::parse(bytes, unresolved)?;
        check::services(&document, unresolved)?;
        if !unresolved {
            document.check_env_files()?;
        }
        let project = load::project(&document, unresolved)?;
        Ok(Self { document, project })
    }

    /// Whether a service has an image; an unresolved variable counts as one.
    pub(super) fn has_image(&self, service: &str) -> bool {
        let service = self.document.service(service).and_then(Node::as_map);
        let image = service.and_then(|map| map.get("image"));
        // An unresolved service may have that of another one.
        service.is_some_and(|map| map.contains("extends"))
            || image.is_some_and(|node| node.text().is_some_and(|text| !text.is_empty()))
    }

    /// Position of a key of a service.
    pub(super) fn field(&self, service: &str, key: &str) -> Option<Position> {
        let (key, _) = self.document.service(service)?.as_map()?.entry(key)?;
        Some(key.at)
    }

    /// Directory from which a service is built, if it is; `.` if the file does not say.
    pub(super) fn build_context(&self, service: &str) -> Option<&str> {
        let node = self.document.service(service)?.as_map()?.get("build")?;
        match &node.value {
            Value::Scalar(scalar) => (!scalar.is_null()).then_some(scalar.text.as_str()),
            Value::Map(map) => Some(map.get("context").and_then(Node::text).unwrap_or(".")),
            Value::Seq(_) => None,
        }
    }

    /// Returns warnings about settings that have no effect.
    pub(super) fn unused(&self) -> Vec<String> {
        unused::warnings(&self.document, &self.project)
    }

    /// Fails if a service joins an undeclared network.
    pub(super) fn check_network(&self, service: &str, network: &str) -> Result<(), Error> {
        check::check_network(&self.document, service, network)
    }

    /// Returns the privileged services by name, each with its privileged fields and the position of
    /// the first.
    pub(super) fn privileged(&self) -> Vec<(&str, String, Position)> {
        let services = self.document.services();
        let fields = services.into_iter().filter_map(|(key, node)| {
            let fields = check::privileged_fields(node.as_map()?);
            let (_, at) = fields.first()?;
            let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
            Some((key.text.as_str(), names.join(","), *at))
        });
        fields.collect()
    }
}
