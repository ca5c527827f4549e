//! Compose files: the container set of a deployment.
//!
//! Reading has two steps, in the order in which a broken file is reported: checks that look at
//! the nodes and answer with a code per rule, then the typed reading into a [`Project`].

mod check;
pub(super) mod document;
mod load;
mod model;
pub(super) mod mounts;
mod ports;
mod reader;

#[cfg(test)]
mod tests;

pub use model::*;

pub use check::SERVICE_KEYS;

use document::Document;

use super::fault::bounded;
use crate::{Error, yaml::Position};

/// Name the file goes by in error details.
pub(super) const FILE: &str = "compose.yaml";

impl Project {
    /// Reads a compose file, all rules applied.
    ///
    /// # Errors
    /// The first broken rule with its code, service, field and place. Stored files passed the
    /// same rules when they were applied.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        Ok(Compose::checked(bytes)?.project)
    }
}

/// A compose file that keeps every rule.
pub(super) struct Compose {
    document: Document,
    pub(super) project: Project,
}

impl Compose {
    /// Reads a file as a daemon does: everything resolved.
    pub(super) fn checked(bytes: &[u8]) -> Result<Self, Error> {
        Self::read(bytes, false).map_err(|error| bounded(error.with("file", FILE)))
    }

    /// Reads a file before interpolation: `env_file` may stand, and what depends on a scalar
    /// that still holds a `$` is not judged.
    pub(super) fn unresolved(bytes: &[u8]) -> Result<Self, Error> {
        Self::read(bytes, true).map_err(|error| bounded(error.with("file", FILE)))
    }

    fn read(bytes: &[u8], unresolved: bool) -> Result<Self, Error> {
        let document = Document::parse(bytes)?;
        check::services(&document, unresolved)?;
        if !unresolved {
            document.check_env_files()?;
        }
        let project = load::project(&document, unresolved)?;
        Ok(Self { document, project })
    }

    /// Whether a service names an image, open variables included.
    pub(super) fn has_image(&self, service: &str) -> bool {
        let image = self
            .document
            .service(service)
            .and_then(|s| s.as_map()?.get("image"));
        image.is_some_and(|node| node.text().is_some_and(|text| !text.is_empty()))
    }

    /// Fails when a service names a network nobody declared.
    pub(super) fn check_network(&self, service: &str, network: &str) -> Result<(), Error> {
        check::check_network(&self.document, service, network)
    }

    /// Privileged services by name, each with the fields that make it so and where the first
    /// of them stands.
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
