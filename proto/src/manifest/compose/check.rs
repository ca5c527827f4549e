//! Checks with an error code per rule, in a fixed order, before typed reading.
//!
//! A node of the wrong type is skipped here and rejected by the typed reading.

mod cycles;
mod security;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Error, ErrorCode,
    manifest::{
        fault::{Located, invalid, suggestion},
        grammar,
    },
    yaml::{Map, Node, Position, Resolved, Value},
};

use super::{
    Condition,
    document::Document,
    keys::{Effect, SERVICE},
    ports,
};
use security::widens;

/// Label that a service with privileged fields must have.
const ALLOW_PRIVILEGED: &str = "jaco.io/allow-privileged";

/// Keys of the first compose formats, with their replacements.
const LEGACY: [(&str, &str); 5] = [
    ("dockerfile", "build.dockerfile"),
    ("log_driver", "logging.driver"),
    ("log_opt", "logging.options"),
    ("net", "network_mode"),
    (
        "volume_driver",
        "no direct equivalent, long-form volumes: with driver:",
    ),
];

/// Ports of the ingress.
const RESERVED: [u16; 2] = [80, 443];

/// Checks every service by name, then the dependencies between them.
pub(super) fn services(document: &Document, unresolved: bool) -> Result<(), Error> {
    let mut edges = BTreeMap::new();
    for (key, node) in document.services() {
        let Some(map) = node.as_map() else {
            continue;
        };
        let checks = Checks {
            document,
            name: &key.text,
            map,
            unresolved,
        };
        checks.legacy()?;
        checks.allowlist()?;
        checks.networks()?;
        checks.reserved_ports()?;
        checks.pull_policy()?;
        checks.privileged_label()?;
        checks.namespaces()?;
        checks.references()?;
        edges.insert(key.text.as_str(), (checks.depends_on()?, key.at));
    }
    container_names(document, unresolved)?;
    cycles::check(edges)
}

/// Fails if two services have one `container_name`, in any case of its letters, as names have none.
fn container_names(document: &Document, unresolved: bool) -> Result<(), Error> {
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    for (key, node) in document.services() {
        let given = node.as_map().and_then(|map| map.get("container_name"));
        let Some((node, name)) = given.and_then(|node| Some((node, node.text()?))) else {
            continue;
        };
        if name.is_empty() || node.is_null() || (unresolved && name.contains('$')) {
            continue;
        }
        if let Some(other) = owners.insert(name.to_ascii_lowercase(), &key.text) {
            let message = format!(
                "services {other:?} and {:?} have the same container_name {name:?}",
                key.text
            );
            return Err(invalid(message)
                .with("service", &key.text)
                .with("field", "container_name")
                .with("value", name)
                .at(node.at));
        }
    }
    Ok(())
}

/// Returns the fields that make a service privileged and their positions, in a fixed order.
pub(super) fn privileged_fields(map: &Map) -> Vec<(&'static str, Position)> {
    let privileged = map.entry("privileged").filter(|_| is_privileged(map));
    let security_opt = map.entry("security_opt").filter(|(_, node)| {
        let mut options = node.as_seq().unwrap_or_default().iter();
        options.any(|option| option.text().is_none_or(widens))
    });
    let hooks = ["post_start", "pre_stop"].map(|key| {
        let entry = map.entry(key).filter(|(_, node)| {
            let mut items = node.as_seq().unwrap_or_default().iter();
            items.any(|item| item.as_map().is_some_and(is_privileged))
        });
        (key, entry)
    });
    let network_mode = map
        .entry("network_mode")
        .filter(|(_, node)| node.text() == Some("host"));
    let fields = [
        ("privileged", privileged),
        ("security_opt", security_opt),
        ("network_mode", network_mode),
    ];
    let fields = fields.into_iter().chain(hooks);
    fields
        .filter_map(|(name, entry)| Some((name, entry?.0.at)))
        .collect()
}

/// Whether a service, or a command in its container, has full access to the host.
fn is_privileged(map: &Map) -> bool {
    let scalar = map.get("privileged").and_then(Node::as_scalar);
    scalar.is_some_and(|scalar| match scalar.resolve() {
        Resolved::Bool(value) => value,
        Resolved::Str(text) => grammar::boolean(text) == Some(true),
        Resolved::Null | Resolved::Int(_) | Resolved::Float(_) => false,
    })
}

struct Checks<'a> {
    document: &'a Document,
    name: &'a str,
    map: &'a Map,
    unresolved: bool,
}

impl<'a> Checks<'a> {
    fn is_open(&self, text: &str) -> bool {
        self.unresolved && text.contains('$')
    }

    fn invalid(&self, field: &str, message: String, at: Position) -> Error {
        invalid(message)
            .with("service", self.name)
            .with("field", field)
            .at(at)
    }

    fn legacy(&self) -> Result<(), Error> {
        for (field, modern) in LEGACY {
            if let Some((key, _)) = self.map.entry(field) {
                let message = format!(
                    "service {:?} uses {field}, which compose no longer has; its place took {modern}",
                    self.name
                );
                return Err(Error::new(ErrorCode::LegacyComposeField, message)
                    .with("service", self.name)
                    .with("field", field)
                    .with("modern_equivalent", modern)
                    .at(key.at));
            }
        }
        Ok(())
    }

    fn allowlist(&self) -> Result<(), Error> {
        for (key, node) in self.map.sorted() {
            let field = key.text.as_str();
            let why = match SERVICE.effect(field) {
                // The typed error for it follows after all checks.
                Some(Effect::Client) if self.unresolved || field == "env_file" => continue,
                Some(Effect::Client) if node.is_null() => continue,
                Some(Effect::Client) => ", which only `jaco apply` resolves".to_owned(),
                Some(Effect::Kept | Effect::Noted(_) | Effect::Silent) => continue,
                None if field.starts_with("x-") => continue,
                None => suggestion(field, SERVICE.names()),
            };
            let message = format!(
                "unsupported compose field {field:?} on service {:?}{why}",
                self.name
            );
            return Err(self.invalid(field, message, key.at));
        }
        Ok(())
    }

    fn networks(&self) -> Result<(), Error> {
        let Some(node) = self.map.get("networks") else {
            return Ok(());
        };
        let names: Vec<(&str, Position)> = match &node.value {
            Value::Map(map) => map.iter().map(|(k, _)| (k.text.as_str(), k.at)).collect(),
            Value::Seq(items) => items
                .iter()
                .filter_map(|item| Some((item.text()?, item.at)))
                .collect(),
            Value::Scalar(_) => Vec::new(),
        };
        for (network, at) in names {
            if self.is_open(network) || self.document.may_include(self.unresolved) {
                continue;
            }
            check_network(self.document, self.name, network).map_err(|error| error.at(at))?;
        }
        Ok(())
    }

    fn reserved_ports(&self) -> Result<(), Error> {
        let entries = self.map.get("ports").and_then(Node::as_seq);
        for item in entries.unwrap_or_default() {
            let Some((range, entry)) = ports::published(item) else {
                continue;
            };
            if let Some(port) = RESERVED.into_iter().find(|port| range.contains(port)) {
                let target = ports::target(item, port).unwrap_or_else(|| "<port>".to_owned());
                let message = format!(
                    "service {:?} publishes port {port} ({entry}), which the ingress uses; remove \
                     the entry and add to jaco.yaml, or below x-jaco in this file: routes: [{{domain: \
                     <your domain>, service: \
                     {}, port: {target}}}]",
                    self.name, self.name
                );
                return Err(Error::new(ErrorCode::ReservedPort, message)
                    .with("service", self.name)
                    .with("port", port)
                    .with("entry", entry)
                    .at(item.at));
            }
        }
        Ok(())
    }

    fn pull_policy(&self) -> Result<(), Error> {
        let Some(node) = self.map.get("pull_policy").filter(|node| !node.is_null()) else {
            return Ok(());
        };
        let value = node.text().unwrap_or_default();
        let known = [
            "",
            "always",
            "build",
            "daily",
            "if_not_present",
            "missing",
            "never",
            "refresh",
            "weekly",
        ];
        let is_string = node
            .as_scalar()
            .is_some_and(|scalar| matches!(scalar.resolve(), Resolved::Str(_)));
        let is_interval = value
            .strip_prefix("every_")
            .is_some_and(|interval| grammar::duration(interval).is_some());
        if (is_string && (known.contains(&value) || is_interval)) || self.is_open(value) {
            return Ok(());
        }
        let near = suggestion(value, known.into_iter().skip(1));
        let message = format!(
            "service {:?} has pull_policy {}, want always, missing, never or build{near}",
            self.name,
            shown(node)
        );
        Err(self
            .invalid("pull_policy", message, node.at)
            .with("value", value))
    }

    fn privileged_label(&self) -> Result<(), Error> {
        let fields = privileged_fields(self.map);
        let Some((_, at)) = fields.first().filter(|_| !self.has_privileged_label()) else {
            return Ok(());
        };
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        let fields = names.join(",");
        let message = format!(
            "service {:?} sets {fields}, which needs the label {ALLOW_PRIVILEGED}: \"true\" \
             (a quoted string)",
            self.name
        );
        Err(invalid(message)
            .with("service", self.name)
            .with("fields", &fields)
            .with("label", ALLOW_PRIVILEGED)
            .at(*at))
    }

    fn has_privileged_label(&self) -> bool {
        match self.map.get("labels").map(|node| &node.value) {
            Some(Value::Map(labels)) => labels
                .get(ALLOW_PRIVILEGED)
                .and_then(Node::as_scalar)
                .is_some_and(|scalar| {
                    scalar.resolve() == Resolved::Str("true") || self.is_open(&scalar.text)
                }),
            Some(Value::Seq(labels)) => labels.iter().filter_map(Node::text).any(|text| {
                text.strip_prefix(ALLOW_PRIVILEGED) == Some("=true") || self.is_open(text)
            }),
            Some(Value::Scalar(scalar)) => self.is_open(&scalar.text),
            None => false,
        }
    }

    fn namespaces(&self) -> Result<(), Error> {
        if let Some(node) = self.map.get("network_mode").filter(|node| !node.is_null()) {
            self.network_mode(node)?;
        }
        for field in ["ipc", "pid", "uts"] {
            let node = self.map.get(field);
            let target = node.and_then(|n| Some((n, n.text()?.strip_prefix("service:")?)));
            if let Some((node, target)) = target {
                self.namespace_target(field, node, target)?;
            }
        }
        Ok(())
    }

    fn network_mode(&self, node: &Node) -> Result<(), Error> {
        let value = node.text().unwrap_or_default();
        let is_string = node
            .as_scalar()
            .is_some_and(|scalar| matches!(scalar.resolve(), Resolved::Str(_)));
        if is_string && (self.is_open(value) || matches!(value, "" | "none" | "host")) {
            return Ok(());
        }
        match value.strip_prefix("service:") {
            Some(target) if is_string && !target.is_empty() => {
                self.namespace_target("network_mode", node, target)
            }
            Some(_) | None => {
                let near = match value.starts_with("container:") {
                    true => ": a container of another service is service:<name>",
                    false => "",
                };
                let message = format!(
                    "service {:?} has network_mode {}, want none, host or service:<name>{near}",
                    self.name,
                    shown(node)
                );
                Err(self
                    .invalid("network_mode", message, node.at)
                    .with("value", value))
            }
        }
    }

    fn namespace_target(&self, field: &str, node: &Node, target: &str) -> Result<(), Error> {
        if self.is_open(target) || (self.is_declared(target) && target != self.name) {
            return Ok(());
        }
        let why = if target == self.name {
            "is the service itself".to_owned()
        } else {
            format!("is not in this file{}", self.near_service(target))
        };
        let message = format!(
            "{field} of service {:?} names {target:?}, which {why}",
            self.name
        );
        Err(self
            .invalid(field, message, node.at)
            .with("value", node.text().unwrap_or_default())
            .with("target_service", target))
    }

    /// Checks the services of `links` and `volumes_from`.
    fn references(&self) -> Result<(), Error> {
        for field in ["links", "volumes_from"] {
            let items = self.map.get(field).and_then(Node::as_seq);
            for item in items.unwrap_or_default() {
                let Some(text) = item.text() else {
                    continue;
                };
                if field == "volumes_from" && text.starts_with("container:") {
                    let message = format!(
                        "service {:?} mounts the volumes of {text}, but containers outside the \
                         deployment may be on another node; name a service of this file",
                        self.name
                    );
                    return Err(self.invalid(field, message, item.at).with("value", text));
                }
                let target = text.split(':').next().unwrap_or_default();
                self.namespace_target(field, item, target)?;
            }
        }
        Ok(())
    }

    fn is_declared(&self, service: &str) -> bool {
        self.document.may_include(self.unresolved) || self.document.service(service).is_some()
    }

    fn near_service(&self, name: &str) -> String {
        let services = self.document.services();
        suggestion(name, services.iter().map(|(key, _)| key.text.as_str()))
    }

    /// Checks all dependencies, and returns the blocking ones.
    fn depends_on(&self) -> Result<BTreeSet<&'a str>, Error> {
        let mut required = BTreeSet::new();
        match self.map.get("depends_on").map(|node| &node.value) {
            Some(Value::Seq(items)) => {
                for item in items {
                    if let Some(target) = item.text() {
                        self.dependency(target, None, item.at)?;
                        required.insert(target);
                    }
                }
            }
            Some(Value::Map(map)) => {
                for (key, entry) in map.iter() {
                    let get = |name| {
                        let node = entry.as_map()?.get(name)?;
                        node.text()
                            .filter(|_| !node.is_null())
                            .map(|text| (text, node.at))
                    };
                    self.dependency(&key.text, get("condition"), key.at)?;
                    let blocks = get("required").and_then(|(text, _)| grammar::boolean(text));
                    if blocks.unwrap_or(true) {
                        required.insert(key.text.as_str());
                    }
                }
            }
            Some(Value::Scalar(_)) | None => {}
        }
        for field in ["network_mode", "ipc", "pid", "uts"] {
            let mode = self.map.get(field).and_then(Node::text);
            required.extend(mode.and_then(|mode| mode.strip_prefix("service:")));
        }
        for field in ["links", "volumes_from"] {
            let items = self.map.get(field).and_then(Node::as_seq);
            let texts = items.unwrap_or_default().iter().filter_map(Node::text);
            required.extend(texts.filter_map(|text| text.split(':').next()));
        }
        Ok(required)
    }

    fn dependency(
        &self,
        target: &str,
        condition: Option<(&str, Position)>,
        at: Position,
    ) -> Result<(), Error> {
        if self.is_open(target) {
            return Ok(());
        }
        let fail = |code, what: String| {
            Error::new(code, format!("service {:?} {what}", self.name))
                .with("service", self.name)
                .with("depends_on", target)
                .at(at)
        };
        if target == self.name {
            let code = ErrorCode::InvalidDependsOn;
            return Err(fail(code, "depends on itself".to_owned()));
        }
        if !self.is_declared(target) {
            let near = self.near_service(target);
            let what = format!("depends on {target:?}, which is not in this file{near}");
            return Err(fail(ErrorCode::UnknownDependsOnService, what));
        }
        let words = Condition::ALL.map(Condition::as_str);
        match condition {
            None => Ok(()),
            Some((word, _)) if words.contains(&word) => Ok(()),
            Some((open, _)) if self.is_open(open) => Ok(()),
            Some((other, at)) => {
                let what = format!(
                    "depends on {target:?} with condition {other:?}, want {}",
                    words.join(" or ")
                );
                let code = ErrorCode::UnsupportedDependsOnCondition;
                Err(fail(code, what).with("condition", other).at(at))
            }
        }
    }
}

/// Formats a node for a message: its text, or its kind.
fn shown(node: &Node) -> String {
    match node.text() {
        Some(text) => format!("{text:?}"),
        None => node.kind().to_owned(),
    }
}

/// Fails if a service joins an undeclared network.
pub(super) fn check_network(
    document: &Document,
    service: &str,
    network: &str,
) -> Result<(), Error> {
    if document.has_network(network) {
        return Ok(());
    }
    let declared = document.networks();
    let near = suggestion(network, declared.iter().map(|(key, _)| key.text.as_str()));
    let message = format!(
        "service {service:?} joins network {network:?}, which is not declared under networks:{near}"
    );
    Err(Error::new(ErrorCode::UnknownNetwork, message)
        .with("service", service)
        .with("network", network))
}
