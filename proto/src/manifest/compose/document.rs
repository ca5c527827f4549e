//! Rules of the document as a whole: one mapping with known top-level keys.

use crate::{
    Error, ErrorCode,
    manifest::fault::{Located, invalid, invalid_yaml, suggestion},
    yaml::{self, Key, Map, Node},
};

use super::keys::{Effect, TOP_LEVEL};

/// Network of services that declare no network.
pub(super) const DEFAULT_NETWORK: &str = "_default";

/// A compose document whose services are not validated yet.
pub(in crate::manifest) struct Document {
    root: Map,
}

impl Document {
    /// Parses a file; only an `unresolved` one may have keys that clients resolve.
    pub(in crate::manifest) fn parse(bytes: &[u8], unresolved: bool) -> Result<Self, Error> {
        if bytes.is_empty() {
            return Err(invalid("compose_yaml is required").with("field", "compose_yaml"));
        }
        let document = yaml::parse(bytes)
            .map_err(|error| invalid_yaml(ErrorCode::ValidationFailed, "compose load", &error))?;
        if let Some(next) = document.next {
            return Err(
                invalid("a compose file holds one document, here starts a second").at(next),
            );
        }
        let root = match document.root {
            Some(node) if !node.is_null() => node,
            Some(_) | None => return Err(invalid("empty compose file")),
        };
        let yaml::Value::Map(map) = root.value else {
            let kind = root.kind();
            return Err(
                invalid(format!("compose load: expected a mapping, not {kind}")).at(root.at),
            );
        };
        let document = Self { root: map };
        document.check_top_level(unresolved)?;
        Ok(document)
    }

    fn check_top_level(&self, unresolved: bool) -> Result<(), Error> {
        if self.root.is_empty() {
            return Err(invalid("empty compose file"));
        }
        for (key, node) in self.root.sorted() {
            let text = key.text.as_str();
            let is_of_client = TOP_LEVEL.effect(text) == Some(Effect::Client);
            if !TOP_LEVEL.has(text) || (is_of_client && !unresolved) {
                let why = if is_of_client {
                    ", which only `jaco apply` resolves".to_owned()
                } else {
                    suggestion(text, TOP_LEVEL.names())
                };
                let message = format!("unsupported compose field {text:?} at the top level{why}");
                return Err(invalid(message).with("field", text).at(key.at));
            }
            // Null is refused like any other type: a table whose entries are all commented out
            // would otherwise remove every container of the deployment.
            let is_table = matches!(text, "services" | "networks" | "volumes");
            let may_be_null = matches!(text, "configs" | "secrets");
            let is_wrong = is_table || may_be_null && !node.is_null();
            if is_wrong && node.as_map().is_none() {
                let kind = node.kind();
                let message = format!("compose load: {text} must be a mapping, not {kind}");
                return Err(invalid(message).with("field", text).at(node.at));
            }
        }
        Ok(())
    }

    /// Whether what is not declared here may be declared by an included file, which is not known yet.
    pub(super) fn may_include(&self, unresolved: bool) -> bool {
        unresolved && self.root.contains("include")
    }

    /// Returns the value of a top-level key.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.root.get(key)
    }

    /// Returns the entries of a top-level key that is a mapping, by name.
    pub(super) fn table(&self, key: &str) -> Vec<(&Key, &Node)> {
        let map = self.root.get(key).and_then(Node::as_map);
        map.map(Map::sorted).unwrap_or_default()
    }

    /// Returns the services by name.
    pub(super) fn services(&self) -> Vec<(&Key, &Node)> {
        self.table("services")
    }

    /// Returns the declared volumes by key.
    pub(super) fn volumes(&self) -> Vec<(&Key, &Node)> {
        self.table("volumes")
    }

    /// Returns the declared networks by name, without the implicit one.
    pub(super) fn networks(&self) -> Vec<(&Key, &Node)> {
        self.table("networks")
    }

    /// Whether a network is declared; the implicit one always counts as declared.
    pub(super) fn has_network(&self, name: &str) -> bool {
        let map = self.root.get("networks").and_then(Node::as_map);
        name == DEFAULT_NETWORK || map.is_some_and(|map| map.contains(name))
    }

    /// Returns a service.
    pub(in crate::manifest) fn service(&self, name: &str) -> Option<&Node> {
        self.root.get("services")?.as_map()?.get(name)
    }

    /// Returns a declared volume.
    pub(in crate::manifest) fn volume(&self, key: &str) -> Option<&Node> {
        self.root.get("volumes")?.as_map()?.get(key)
    }

    /// Fails on the first service with an `env_file`.
    pub(super) fn check_env_files(&self) -> Result<(), Error> {
        for (key, node) in self.services() {
            let entry = node.as_map().and_then(|map| map.entry("env_file"));
            if let Some((env_file, _)) = entry.filter(|(_, node)| !node.is_null()) {
                let name = &key.text;
                let message =
                    format!("service {name:?} still has an env_file, which only a client can read");
                return Err(Error::new(ErrorCode::EnvFileUnresolved, message)
                    .with("service", name)
                    .at(env_file.at));
            }
        }
        Ok(())
    }
}
