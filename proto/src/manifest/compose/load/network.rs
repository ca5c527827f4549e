//! Networks of a service, or the namespace it borrows instead.

use std::collections::BTreeSet;

use crate::{
    Error,
    manifest::compose::{
        Namespace, NetworkMode, Service, document::DEFAULT_NETWORK, reader::Reader,
    },
    yaml::{Node, Value},
};

/// Drops what the engine refuses on a container without its own network.
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
    let mut add = |host: &str, ip: &str| {
        let bare = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']'));
        lines.push(format!("{host}:{}", bare.unwrap_or(ip)));
    };
    if let Value::Map(map) = &node.value {
        for (key, node) in map.iter() {
            let field = format!("extra_hosts.{}", key.text);
            match &node.value {
                Value::Seq(items) => {
                    for ip in reader.strings(&field, items)? {
                        add(&key.text, &ip);
                    }
                }
                Value::Scalar(_) | Value::Map(_) => {
                    if let Some(ip) = reader.name(&field, node)? {
                        add(&key.text, &ip);
                    }
                }
            }
        }
    } else {
        for item in reader.seq("extra_hosts", node)? {
            let Some(text) = reader.name("extra_hosts", item)? else {
                continue;
            };
            let Some((host, ip)) = text.split_once('=').or_else(|| text.split_once(':')) else {
                return Err(reader.wrong("extra_hosts", item, "host:ip or host=ip"));
            };
            add(host, ip);
        }
    }
    lines.sort();
    Ok(lines)
}
