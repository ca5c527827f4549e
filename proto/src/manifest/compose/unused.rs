//! Settings that a compose file may have and that change nothing.
//!
//! They are accepted, because other tools read the same file; a warning names each of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    manifest::grammar,
    yaml::{Map, Node, Resolved, Scalar, Value},
};

use super::{
    Port, Project, Service,
    document::Document,
    keys::{
        CONFIG, DEPENDENCY, DEPLOY, HEALTHCHECK, Keys, MOUNT, NETWORK, PLACEMENT, PORT,
        RESERVATIONS, RESTART_POLICY, SECRET, SERVICE, SERVICE_NETWORK, TOP_LEVEL, UPDATE, VOLUME,
    },
};

/// Keys without an effect, as paths below their subject, each with the reason.
type Unused = BTreeMap<String, &'static str>;

/// Limits that apply only without a block in `deploy.resources`.
const FLAT_LIMITS: [&str; 4] = ["cpus", "mem_limit", "mem_reservation", "pids_limit"];
/// Keys that have no meaning for a container without networks of its own.
const WITHOUT_NETWORKS: [&str; 4] = ["container_name", "links", "mac_address", "networks"];
/// Keys that have none either for a container without a network namespace that may be configured.
const OF_NAMESPACE: [&str; 6] = [
    "dns",
    "dns_opt",
    "dns_search",
    "domainname",
    "extra_hosts",
    "hostname",
];
/// Keys that take null in compose, or whose absence has a warning of its own.
const NULLABLE: [&str; 4] = ["command", "entrypoint", "env_file", "image"];
/// Values of keys without an effect that ask for what happens anyway.
const DEFAULTS: [(&str, &str); 5] = [
    ("driver", "bridge"),
    ("endpoint_mode", "vip"),
    ("mode", "ingress"),
    ("mode", "replicated"),
    ("order", "stop-first"),
];

/// Keys without an effect whose values are booleans in any spelling, and which one is the default.
const BOOLEANS: [(&str, bool); 4] = [
    ("attachable", false),
    ("enable_ipv4", true),
    ("enable_ipv6", false),
    ("use_service_name_alias", true),
];

/// Returns the warnings: one per service, network or volume and reason.
pub(super) fn warnings(document: &Document, project: &Project) -> Vec<String> {
    let mut warnings = Vec::new();
    let tables = TOP_LEVEL.noted().filter(|(table, _)| {
        let node = document.get(table);
        node.is_some_and(is_set)
    });
    let tables = tables.map(|(table, reason)| (table.to_owned(), reason));
    warnings.extend(without_effect("the compose file", &tables.collect()));
    let declared = [
        ("network", document.networks(), &NETWORK),
        ("volume", document.volumes(), &VOLUME),
        ("config", document.table("configs"), &CONFIG),
        ("secret", document.table("secrets"), &SECRET),
    ];
    for (kind, entries, keys) in declared {
        for (key, node) in entries {
            let Some(map) = node.as_map() else {
                continue;
            };
            let mut unused = noted(map, "", keys);
            if kind == "network" {
                unused.extend(unused_of_network(
                    map,
                    project.shared_network(&key.text).is_some(),
                ));
            }
            let subject = format!("{kind} {:?}", key.text);
            warnings.extend(without_effect(&subject, &unused));
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

/// Keys of a network that only a shared one has, or only one of a deployment.
fn unused_of_network(map: &Map, shared: bool) -> Unused {
    let (key, reason) = if shared {
        (
            "internal",
            "a network that deployments share also leads to the outside",
        )
    } else {
        (
            "name",
            "networks are named by JACO; with external, deployments share one by its name",
        )
    };
    set_keys(map, &[key], reason).collect()
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

/// Returns a warning per reason, in the order of the reasons' first keys.
fn without_effect(subject: &str, unused: &Unused) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for (key, reason) in unused {
        match reasons.iter_mut().find(|(known, _)| known == reason) {
            Some((_, keys)) => keys.push(key),
            None => reasons.push((reason, vec![key])),
        }
    }
    let warning = |(reason, keys): (&str, Vec<&str>)| {
        let verb = if keys.len() == 1 { "has" } else { "have" };
        let keys = keys.join(", ");
        format!("{subject} sets {keys}, which {verb} no effect: {reason}")
    };
    reasons.into_iter().map(warning).collect()
}

/// Keys of a service without an effect.
fn unused_keys(map: &Map) -> Unused {
    let mut unused = noted(map, "", &SERVICE);
    let table = |key: &str| map.get(key).and_then(Node::as_map);
    if let Some(deploy) = table("deploy") {
        unused.extend(noted(deploy, "deploy.", &DEPLOY));
        let resources = deploy.get("resources").and_then(Node::as_map);
        let part = |key: &str| resources?.get(key).filter(|node| !node.is_null());
        if let Some(reservations) = part("reservations").and_then(Node::as_map) {
            let path = "deploy.resources.reservations.";
            unused.extend(noted(reservations, path, &RESERVATIONS));
        }
        if part("limits").or(part("reservations")).is_some() {
            let reason = "deploy.resources replaces them as a whole";
            unused.extend(set_keys(map, &FLAT_LIMITS, reason));
        }
    }
    let of_deploy = |key: &str| table("deploy").and_then(|deploy| deploy.get(key)?.as_map());
    if let Some(placement) = of_deploy("placement") {
        unused.extend(noted(placement, "deploy.placement.", &PLACEMENT));
    }
    if let Some(policy) = of_deploy("restart_policy") {
        unused.extend(noted(policy, "deploy.restart_policy.", &RESTART_POLICY));
    }
    if let Some(update) = of_deploy("update_config") {
        unused.extend(noted(update, "deploy.update_config.", &UPDATE));
    }
    if let Some(check) = table("healthcheck") {
        unused.extend(noted(check, "healthcheck.", &HEALTHCHECK));
    }
    let mode = map.get("network_mode").filter(|node| is_set(node));
    if mode.is_some_and(|node| node.text() == Some("host")) {
        let reason = "with network_mode host the container has the addresses and ports of its node";
        unused.extend(set_keys(map, &WITHOUT_NETWORKS, reason));
        unused.extend(set_keys(map, &["ports"], reason));
    } else if mode.is_some() {
        let reason = "with network_mode the container joins no network";
        unused.extend(set_keys(map, &WITHOUT_NETWORKS, reason));
        unused.extend(set_keys(map, &OF_NAMESPACE, reason));
    } else if let Some(networks) = table("networks") {
        for (network, node) in networks.iter() {
            let path = format!("networks.{}.", network.text);
            let settings = node.as_map().into_iter();
            unused.extend(settings.flat_map(|map| noted(map, &path, &SERVICE_NETWORK)));
        }
    }
    if let Some(dependencies) = table("depends_on") {
        for (service, node) in dependencies.iter() {
            let path = format!("depends_on.{}.", service.text);
            let settings = node.as_map().into_iter();
            unused.extend(settings.flat_map(|map| noted(map, &path, &DEPENDENCY)));
        }
    }
    let items = |key: &str| {
        let items = map.get(key).and_then(Node::as_seq);
        items.unwrap_or_default().iter().filter_map(Node::as_map)
    };
    for mount in items("volumes") {
        unused.extend(noted(mount, "volumes.", &MOUNT));
    }
    for port in items("ports") {
        unused.extend(noted(port, "ports.", &PORT));
    }
    unused
}

/// Returns the noted ones of `keys` with a value that asks for something else than what happens,
/// with `path` before them.
fn noted(map: &Map, path: &str, keys: &Keys) -> Unused {
    let set = keys
        .noted()
        .filter(|(key, _)| map.get(key).is_some_and(|node| is_asked(key, node)));
    set.map(|(key, reason)| (format!("{path}{key}"), reason))
        .collect()
}

/// Returns those of `keys` with a value that asks for something, each with `reason`.
fn set_keys<'k>(
    map: &'k Map,
    keys: &'k [&str],
    reason: &'static str,
) -> impl Iterator<Item = (String, &'static str)> + 'k {
    let set = keys.iter();
    let set = set.filter(|key| map.get(key).is_some_and(|node| is_asked(key, node)));
    set.map(move |key| ((*key).to_owned(), reason))
}

/// Whether the value of a key asks for something else than what happens.
fn is_asked(key: &str, node: &Node) -> bool {
    let text = node.text().unwrap_or_default();
    let boolean = BOOLEANS.iter().find(|(name, _)| *name == key);
    match boolean.zip(grammar::boolean(text)) {
        Some(((_, default), value)) => value != *default,
        None => is_set(node) && !DEFAULTS.contains(&(key, text)),
    }
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
