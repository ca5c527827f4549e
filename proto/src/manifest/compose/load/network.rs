//! Networks of a service, or the namespace that it joins instead.

use std::collections::BTreeSet;

use crate::{
    Error,
    manifest::compose::{
        Namespace, NetworkMode, Service, document::DEFAULT_NETWORK, reader::Reader,
    },
    yaml::{Node, Value},
};

/// Clears the settings that the engine rejects for a container without its own network.
pub(super) fn leave_networks(service: &mut Service) {
    service.networks.clear();
    service.hostname = None;
    service.domainname = None;
    service.dns.clear();
    service.dns_search.clear();
    service.dns_opt.clear();
    service.extra_hosts.clear();
}

pub(super) fn networks(reader: &Reader<'_>, node: &Node) -> Result<Vec<String>, Error> {
    let mut names: Vec<(i64, String)> = Vec::new();
    match &node.value {
        Value::Map(map) => {
            for (key, node) in map.iter() {
                let field = format!("networks.{}", key.text);
                let priority = match reader
                    .any_map(&field, node)?
                    .and_then(|m| m.get("priority"))
                {
                    Some(node) => reader.int(&format!("{field}.priority"), node)?,
                    None => None,
                };
                names.push((priority.unwrap_or(0), key.text.clone()));
            }
        }
        Value::Scalar(_) | Value::Seq(_) => {
            let list = reader.string_list("networks", node)?;
            names.extend(list.into_iter().map(|name| (0, name)));
        }
    }
    for (_, name) in &mut names {
        if name == "default" {
            *name = DEFAULT_NETWORK.to_owned();
        }
    }
    names.sort_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.cmp(y)));
    let mut seen = BTreeSet::new();
    Ok(names
        .into_iter()
        .map(|(_, name)| name)
        .filter(|name| seen.insert(name.clone()))
        .collect())
}

pub(super) fn network_mode(reader: &Reader<'_>, node: &Node) -> Result<Option<NetworkMode>, Error> {
    let Some(mode) = reader.name("network_mode", node)? else {
        return Ok(None);
    };
    match mode.strip_prefix("service:") {
        Some(target) if !target.is_empty() => Ok(Some(NetworkMode::Service(target.to_owned()))),
        None if mode == "none" => Ok(Some(NetworkMode::None)),
        Some(_) | None => Err(reader.wrong("network_mode", node, "none or service:<name>")),
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
