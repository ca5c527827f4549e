//! Networks of a service, or the namespace that it joins instead.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    Error,
    manifest::{
        compose::{
            Namespace, NetworkDeclaration, NetworkMode, NetworkSettings, Project, Service,
            document::DEFAULT_NETWORK,
            keys::{NETWORK, SERVICE_NETWORK},
            reader::Reader,
        },
        grammar,
    },
    yaml::{Key, Map, Node, Value},
};

use super::declared;

/// Longest name that can be asked for: with the deployment's name and the internal domain it must
/// fit into 255 bytes of a DNS message.
const MAX_NAME: usize = 128;

/// Reads an entry of the top-level `networks`.
pub(super) fn declaration(
    key: &Key,
    node: &Node,
    unresolved: bool,
) -> Result<NetworkDeclaration, Error> {
    let mut declared = NetworkDeclaration::default();
    let Some(map) = super::declaration("networks", key, node, &NETWORK, unresolved)? else {
        return Ok(declared);
    };
    let reader = declared::Reader {
        table: "networks",
        key,
        unresolved,
    };
    let (name, external) = reader.name_and_external(map)?;
    if external {
        let name = name.unwrap_or_else(|| key.text.clone());
        let is_valid = grammar::is_name(&name) && name.len() <= MAX_NAME;
        if !is_valid && !reader.is_open(&name) {
            let what = format!(
                "is called {name:?}, want up to {MAX_NAME} letters, digits and . _ - in a name"
            );
            return Err(reader.fail(&what, key.at));
        }
        declared.shared = Some(normalised(&name));
        return Ok(declared);
    }
    declared.internal = reader.boolean(map, "internal")?.unwrap_or(false);
    Ok(declared)
}

/// Gives the networks of a service the names that they have in the state.
pub(super) fn name_shared(project: &mut Project) {
    let mut services = std::mem::take(&mut project.services);
    for service in services.values_mut() {
        for key in &mut service.networks {
            let name = project.network_name(key);
            if let Some(settings) = service.network_settings.remove(key) {
                service.network_settings.insert(name.clone(), settings);
            }
            *key = name;
        }
        // Two keys may name one network.
        let mut seen = BTreeSet::new();
        service.networks.retain(|name| seen.insert(name.clone()));
    }
    project.services = services;
}

/// Clears the settings that the engine rejects for a container without its own network.
pub(super) fn leave_networks(service: &mut Service) {
    service.networks.clear();
    service.network_settings.clear();
    service.container_name = None;
    service.links.clear();
    service.mac_address = None;
    if service.network_mode == Some(NetworkMode::Host) {
        // The container itself listens on the ports of its node.
        return service.ports.clear();
    }
    service.hostname = None;
    service.domainname = None;
    service.dns.clear();
    service.dns_search.clear();
    service.dns_opt.clear();
    service.extra_hosts.clear();
}

/// Reads the networks in attach order, and the settings of those that have any.
pub(super) fn networks(
    reader: &Reader<'_>,
    node: &Node,
) -> Result<(Vec<String>, BTreeMap<String, NetworkSettings>), Error> {
    let mut names: Vec<(i64, String)> = Vec::new();
    let mut settings = BTreeMap::new();
    match &node.value {
        Value::Map(map) => {
            for (key, node) in map.iter() {
                let field = format!("networks.{}", key.text);
                let name = normalised(&key.text);
                let mut priority = None;
                if let Some(map) = reader.map(&field, node, &SERVICE_NETWORK)? {
                    let given;
                    (priority, given) = attachment(reader, &field, map)?;
                    if given != NetworkSettings::default() {
                        settings.insert(name.clone(), given);
                    }
                }
                names.push((priority.unwrap_or(0), name));
            }
        }
        Value::Scalar(_) | Value::Seq(_) => {
            let list = reader.string_list("networks", node)?;
            names.extend(list.into_iter().map(|name| (0, normalised(&name))));
        }
    }
    names.sort_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.cmp(y)));
    let mut seen = BTreeSet::new();
    let names = names.into_iter().map(|(_, name)| name);
    let names = names.filter(|name| seen.insert(name.clone())).collect();
    Ok((names, settings))
}

/// Key of a network in a [`Project`].
pub(in crate::manifest::compose) fn normalised(name: &str) -> String {
    match name {
        "default" => DEFAULT_NETWORK.to_owned(),
        name => name.to_owned(),
    }
}

/// Reads the settings on one network, its priority apart.
fn attachment(
    reader: &Reader<'_>,
    field: &str,
    map: &Map,
) -> Result<(Option<i64>, NetworkSettings), Error> {
    let number = |key: &str| match map.get(key) {
        Some(node) => reader.int(&format!("{field}.{key}"), node),
        None => Ok(None),
    };
    let mut aliases = Vec::new();
    if let Some(node) = map.get("aliases") {
        let field = format!("{field}.aliases");
        for item in reader.distinct(&field, node)? {
            aliases.extend(name(reader, &field, item)?);
        }
    }
    let settings = NetworkSettings {
        aliases,
        gateway_priority: number("gw_priority")?,
    };
    Ok((number("priority")?, settings))
}

/// Reads a name under which other containers reach a service.
pub(super) fn name(reader: &Reader<'_>, field: &str, node: &Node) -> Result<Option<String>, Error> {
    let name = reader.name(field, node)?;
    if let Some(name) = &name {
        check_name(reader, field, node, name)?;
    }
    Ok(name)
}

/// Fails if `name` is not a name of services and containers.
pub(super) fn check_name(
    reader: &Reader<'_>,
    field: &str,
    node: &Node,
    name: &str,
) -> Result<(), Error> {
    if grammar::is_name(name) && name.len() <= MAX_NAME {
        return Ok(());
    }
    let what = format!("is {name:?}, want up to {MAX_NAME} letters, digits and . _ - in a name");
    Err(reader.fault(field, node, what))
}

/// Reads a hardware address, six pairs of hexadecimal digits.
pub(super) fn mac_address(reader: &Reader<'_>, node: &Node) -> Result<Option<String>, Error> {
    let address = reader.name("mac_address", node)?;
    let is_pair = |pair: &str| pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit());
    let is_address = |text: &String| {
        let pairs: Vec<&str> = text.split([':', '-']).collect();
        pairs.len() == 6 && pairs.into_iter().all(is_pair)
    };
    match address {
        Some(text) if !is_address(&text) => {
            let want = "an address such as 02:42:ac:11:65:43";
            Err(reader.wrong("mac_address", node, want))
        }
        address => Ok(address),
    }
}

pub(super) fn network_mode(reader: &Reader<'_>, node: &Node) -> Result<Option<NetworkMode>, Error> {
    let Some(mode) = reader.name("network_mode", node)? else {
        return Ok(None);
    };
    match mode.strip_prefix("service:") {
        Some(target) if !target.is_empty() => Ok(Some(NetworkMode::Service(target.to_owned()))),
        None if mode == "none" => Ok(Some(NetworkMode::None)),
        None if mode == "host" => Ok(Some(NetworkMode::Host)),
        Some(_) | None => Err(reader.wrong("network_mode", node, "none, host or service:<name>")),
    }
}

pub(super) fn namespace(
    reader: &Reader<'_>,
    field: &str,
    node: &Node,
) -> Result<Option<Namespace>, Error> {
    let mode = reader.name(field, node)?;
    Ok(mode.map(|mode| match mode.strip_prefix("service:") {
        Some(target) => Namespace::Service(target.to_owned()),
        None => Namespace::Engine(mode),
    }))
}

pub(super) fn extra_hosts(reader: &Reader<'_>, node: &Node) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    let wrong = |node: &Node| reader.wrong("extra_hosts", node, "host:ip or host=ip");
    let mut add = |host: &str, ip: &str, node: &Node| {
        let bare = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']'));
        let ip = bare.unwrap_or(ip);
        if host.is_empty() || ip.is_empty() {
            return Err(wrong(node));
        }
        lines.push(format!("{host}:{ip}"));
        Ok(())
    };
    if let Value::Map(map) = &node.value {
        for (key, node) in map.iter() {
            let field = format!("extra_hosts.{}", key.text);
            let (addresses, open) = match &node.value {
                Value::Seq(items) => (reader.strings(&field, items)?, true),
                Value::Scalar(_) | Value::Map(_) => {
                    let address = reader.name(&field, node)?;
                    (address.into_iter().collect(), reader.is_open(node))
                }
            };
            if addresses.is_empty() && !open {
                return Err(wrong(node));
            }
            for ip in addresses {
                add(&key.text, &ip, node)?;
            }
        }
    } else {
        for item in reader.distinct("extra_hosts", node)? {
            if reader.is_open(item) {
                continue;
            }
            let text = reader.string("extra_hosts", item)?.unwrap_or_default();
            let pair = text.split_once('=').or_else(|| text.split_once(':'));
            let (host, ip) = pair.ok_or_else(|| wrong(item))?;
            add(host, ip, item)?;
        }
    }
    lines.sort();
    Ok(lines)
}
