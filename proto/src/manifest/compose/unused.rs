//! Settings that a compose file may have and that change nothing.
//!
//! They are accepted, because other tools read the same file; a warning names each of them.

use std::collections::BTreeSet;

use crate::{
    manifest::grammar,
    yaml::{Map, Node, Resolved, Scalar, Value},
};

use super::{
    Port, Project, Service,
    document::Document,
    keys::{
        DEPENDENCY, DEPLOY, HEALTHCHECK, NETWORK, PORT, RESERVATIONS, SERVICE_UNUSED, TOP_LEVEL,
        VOLUME,
    },
};

/// Limits that apply only without a block in `deploy.resources`.
const FLAT_LIMITS: [&str; 4] = ["cpus", "mem_limit", "mem_reservation", "pids_limit"];
/// Keys that have no meaning for a container without networks of its own.
const NETWORKED: [&str; 7] = [
    "dns",
    "dns_opt",
    "dns_search",
    "domainname",
    "extra_hosts",
    "hostname",
    "networks",
];
/// Keys that take null in compose, or whose absence has a warning of its own.
const NULLABLE: [&str; 4] = ["command", "entrypoint", "env_file", "image"];
/// Values of keys without an effect that ask for what happens anyway. Containers that end are restarted
/// three times whatever a service asks for, which is close to two values of `restart`.
const DEFAULTS: [(&str, &str); 7] = [
    ("driver", "bridge"),
    ("driver", "local"),
    ("endpoint_mode", "vip"),
    ("mode", "ingress"),
    ("mode", "replicated"),
    ("restart", "always"),
    ("restart", "unless-stopped"),
];

/// Keys without an effect whose values are booleans in any spelling, and which one is the default.
const BOOLEANS: [(&str, bool); 5] = [
    ("attachable", false),
    ("enable_ipv4", true),
    ("enable_ipv6", false),
    ("external", false),
    ("internal", false),
];

/// Returns a warning per service, network or volume with such settings.
pub(super) fn warnings(document: &Document, project: &Project) -> Vec<String> {
    let mut warnings = Vec::new();
    let tables = TOP_LEVEL.unused.iter().filter(|table| {
        let node = document.get(table);
        node.is_some_and(is_set)
    });
    let tables: Vec<String> = tables.map(|&table| table.to_owned()).collect();
    warnings.extend(without_effect("the compose file", &tables));
    let declared = [
        ("network", document.networks(), &NETWORK),
        ("volume", document.volumes(), &VOLUME),
    ];
    for (kind, entries, keys) in declared {
        for (key, node) in entries {
            let keys = node.as_map().map(|map| set_keys(map, "", keys.unused));
            let subject = format!("{kind} {:?}", key.text);
            warnings.extend(without_effect(&subject, &keys.unwrap_or_default()));
        }
    }
    for (key, node) in document.services() {
        let name = format!("service {:?}", key.text);
        let Some(map) = node.as_map() else {
            continue;
        };
        if let Some(service) = project.services.get(&key.text) {
            warnings.extend(unopened_ports(&name, service));
        }
        warnings.extend(without_effect(&name, &unused_keys(map)));
        let empty = map.sorted().into_iter();
        let empty: Vec<&str> = empty
            .filter(|(key, node)| node.is_null() && !NULLABLE.contains(&key.text.as_str()))
            .map(|(key, _)| key.text.as_str())
            .collect();
        if !empty.is_empty() {
            let keys = empty.join(", ");
            warnings.push(format!(
                "{name} has no value for {keys}, which counts as left out"
            ));
        }
    }
    warnings
}

/// Warning for the published ports of a service that no node listens on.
fn unopened_ports(name: &str, service: &Service) -> Option<String> {
    let shown = |port: &Port| {
        let published = port.published.as_deref()?;
        if port.listener.is_some() {
            return None;
        }
        Some(match port.protocol.as_str() {
            "tcp" => published.to_owned(),
            protocol => format!("{published}/{protocol}"),
        })
    };
    let ports: BTreeSet<String> = service.ports.iter().filter_map(shown).collect();
    let (noun, verb) = match ports.len() {
        0 => return None,
        1 => ("port", "stays"),
        _ => ("ports", "stay"),
    };
    let ports = Vec::from_iter(ports).join(", ");
    Some(format!(
        "{name} publishes {noun} {ports}, which {verb} closed: only a single TCP or UDP port on all \
         addresses is opened"
    ))
}

fn without_effect(subject: &str, keys: &[String]) -> Option<String> {
    let verb = match keys.len() {
        0 => return None,
        1 => "has",
        _ => "have",
    };
    Some(format!(
        "{subject} sets {}, which {verb} no effect",
        keys.join(", ")
    ))
}

/// Keys of a service without an effect, as paths below the service.
fn unused_keys(map: &Map) -> Vec<String> {
    let mut unused = BTreeSet::new();
    unused.extend(set_keys(map, "", &SERVICE_UNUSED));
    let table = |key: &str| map.get(key).and_then(Node::as_map);
    if let Some(deploy) = table("deploy") {
        unused.extend(set_keys(deploy, "deploy.", DEPLOY.unused));
        let resources = deploy.get("resources").and_then(Node::as_map);
        let part = |key: &str| resources?.get(key).filter(|node| !node.is_null());
        if let Some(reservations) = part("reservations").and_then(Node::as_map) {
            let path = "deploy.resources.reservations.";
            unused.extend(set_keys(reservations, path, RESERVATIONS.unused));
        }
        if part("limits").or(part("reservations")).is_some() {
            unused.extend(set_keys(map, "", &FLAT_LIMITS));
        }
    }
    if let Some(check) = table("healthcheck") {
        unused.extend(set_keys(check, "healthcheck.", HEALTHCHECK.unused));
    }
    if map.get("network_mode").is_some_and(is_set) {
        unused.extend(set_keys(map, "", &NETWORKED));
    } else if let Some(networks) = table("networks") {
        for (network, node) in networks.iter() {
            let path = format!("networks.{}.", network.text);
            let settings = node.as_map().into_iter();
            unused.extend(settings.flat_map(|map| other_keys(map, &path, &["priority"])));
        }
    }
    if let Some(dependencies) = table("depends_on") {
        for (service, node) in dependencies.iter() {
            let path = format!("depends_on.{}.", service.text);
            let settings = node.as_map().into_iter();
            unused.extend(settings.flat_map(|map| set_keys(map, &path, DEPENDENCY.unused)));
        }
    }
    let items = |key: &str| {
        let items = map.get(key).and_then(Node::as_seq);
        items.unwrap_or_default().iter().filter_map(Node::as_map)
    };
    for mount in items("volumes") {
        unused.extend(unused_mount_keys(mount));
    }
    for port in items("ports") {
        unused.extend(set_keys(port, "ports.", PORT.unused));
    }
    unused.into_iter().collect()
}

fn unused_mount_keys(mount: &Map) -> Vec<String> {
    let mut unused = set_keys(mount, "volumes.", &["consistency", "driver"]);
    let used: [(&str, &[&str]); 4] = [
        ("bind", &["create_host_path", "propagation", "selinux"]),
        ("image", &[]),
        ("tmpfs", &[]),
        ("volume", &["nocopy"]),
    ];
    for (kind, used) in used {
        if let Some(options) = mount.get(kind).and_then(Node::as_map) {
            unused.extend(other_keys(options, &format!("volumes.{kind}."), used));
        }
    }
    unused
}

/// Returns those of `keys` with a value that asks for something else than what happens, with `path`
/// before them.
fn set_keys(map: &Map, path: &str, keys: &[&str]) -> Vec<String> {
    let is_asked = |key: &str, node: &Node| {
        let text = node.text().unwrap_or_default();
        let boolean = BOOLEANS.iter().find(|(name, _)| *name == key);
        match boolean.zip(grammar::boolean(text)) {
            Some(((_, default), value)) => value != *default,
            None => is_set(node) && !DEFAULTS.contains(&(key, text)),
        }
    };
    let set = keys
        .iter()
        .filter(|key| map.get(key).is_some_and(|node| is_asked(key, node)));
    set.map(|key| format!("{path}{key}")).collect()
}

/// Returns the keys with a value other than those of `used`, with `path` before them.
fn other_keys(map: &Map, path: &str, used: &[&str]) -> Vec<String> {
    let others = map.iter().filter(|(key, node)| {
        let text = key.text.as_str();
        !used.contains(&text) && !text.starts_with("x-") && is_set(node)
    });
    others
        .map(|(key, _)| format!("{path}{}", key.text))
        .collect()
}

/// Whether a node asks for something: it is neither null, nor empty, nor false.
fn is_set(node: &Node) -> bool {
    match &node.value {
        Value::Map(map) => !map.is_empty(),
        Value::Seq(items) => !items.is_empty(),
        Value::Scalar(scalar) => match Scalar::resolve(scalar) {
            Resolved::Null | Resolved::Bool(false) => false,
            Resolved::Str(text) => !text.is_empty(),
            Resolved::Bool(true) | Resolved::Int(_) | Resolved::Float(_) => true,
        },
    }
}
