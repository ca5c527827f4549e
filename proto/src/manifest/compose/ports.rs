//! `ports:` entries: short and long form, ranges, and cluster-wide listeners.

use std::{collections::BTreeSet, ops::RangeInclusive};

use crate::{
    Error,
    config::port_number,
    v1::TransportProtocol,
    yaml::{Node, Position, Resolved, Value},
};

use super::{Listener, Port, keys::PORT, reader::Reader};

/// Reads all entries, with ranges expanded pairwise.
pub(super) fn read(reader: &Reader<'_>, node: &Node) -> Result<Vec<Port>, Error> {
    let mut ports = Vec::new();
    for item in reader.distinct("ports", node)? {
        match &item.value {
            Value::Map(_) => ports.extend(long(reader, item)?),
            Value::Scalar(_) if reader.is_open(item) => {}
            Value::Scalar(scalar) => {
                let entry = Short::parse(&scalar.text)
                    .ok_or_else(|| reader.wrong("ports", item, "[ip:][host:]container[/proto]"))?;
                ports.extend(entry.expand(item.at).ok_or_else(|| {
                    reader.fault(
                        "ports",
                        item,
                        "has host and container ranges of unequal length",
                    )
                })?);
            }
            Value::Seq(_) => return Err(reader.wrong("ports", item, "a string or a mapping")),
        }
    }
    Ok(ports)
}

/// Reads the TCP ports of `expose`. Other entries have no effect.
pub(super) fn exposed(reader: &Reader<'_>, node: &Node) -> Result<BTreeSet<u16>, Error> {
    let mut ports = BTreeSet::new();
    for text in reader.distinct("expose", node)?.iter().filter_map(decimal) {
        let entry = Short::parse(&text).filter(|entry| entry.protocol == "tcp");
        ports.extend(entry.into_iter().flat_map(|entry| entry.container));
    }
    Ok(ports)
}

/// Returns the host ports of an entry and its display form; `None` if it has no host port or does
/// not parse.
pub(super) fn published(item: &Node) -> Option<(RangeInclusive<u16>, String)> {
    match &item.value {
        Value::Scalar(scalar) => Some((Short::parse(&scalar.text)?.host?, scalar.text.clone())),
        Value::Map(map) => {
            let published = decimal(map.get("published")?)?;
            let target = map.get("target").and_then(decimal).unwrap_or_default();
            let protocol = map.get("protocol").and_then(Node::text).unwrap_or("tcp");
            let entry = format!("{published}:{target}/{protocol}");
            Some((range(&published)?, entry))
        }
        Value::Seq(_) => None,
    }
}

/// Returns what an entry publishes, in one spelling; `None` if it does not parse.
pub(in crate::manifest) fn key(item: &Node) -> Option<String> {
    match &item.value {
        Value::Scalar(scalar) => {
            let entry = Short::parse(&scalar.text)?;
            let range = |range: &RangeInclusive<u16>| format!("{}-{}", range.start(), range.end());
            let host = entry.host.as_ref().map(range).unwrap_or_default();
            let container = range(&entry.container);
            Some(format!(
                "{}:{host}:{container}/{}",
                address(entry.ip),
                entry.protocol
            ))
        }
        Value::Map(map) => {
            let text = |key: &str| map.get(key).and_then(decimal);
            let single = |text: String| match text.contains('-') {
                true => text,
                false => format!("{text}-{text}"),
            };
            let host = text("published").map(single).unwrap_or_default();
            let target = single(text("target")?);
            let ip = text("host_ip").unwrap_or_default();
            let protocol = text("protocol").unwrap_or_else(|| "tcp".to_owned());
            Some(format!("{}:{host}:{target}/{protocol}", address(&ip)))
        }
        Value::Seq(_) => None,
    }
}

/// An address to bind to; none is every address.
fn address(ip: &str) -> &str {
    if ip.is_empty() { "0.0.0.0" } else { ip }
}

/// Returns the container port behind host port `published` of an entry; `None` if it does not
/// parse.
pub(super) fn target(item: &Node, published: u16) -> Option<String> {
    match &item.value {
        Value::Scalar(scalar) => {
            let entry = Short::parse(&scalar.text)?;
            let offset = published.checked_sub(*entry.host?.start())?;
            let first = *entry.container.start();
            let paired = first.saturating_add(offset);
            let is_paired = entry.container.contains(&paired);
            Some(if is_paired { paired } else { first }.to_string())
        }
        Value::Map(map) => decimal(map.get("target")?),
        Value::Seq(_) => None,
    }
}

/// Returns the text of a scalar; a whole number is converted to decimal notation.
fn decimal(node: &Node) -> Option<String> {
    let scalar = node.as_scalar()?;
    Some(match scalar.resolve() {
        Resolved::Int(value) => value.to_string(),
        Resolved::Null | Resolved::Bool(_) | Resolved::Float(_) | Resolved::Str(_) => {
            scalar.text.clone()
        }
    })
}

/// A parsed entry in the short form.
struct Short<'a> {
    ip: &'a str,
    host: Option<RangeInclusive<u16>>,
    container: RangeInclusive<u16>,
    protocol: &'a str,
}

impl<'a> Short<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (addresses, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let known = ["tcp", "udp", "sctp"].into_iter();
        let protocol = known
            .into_iter()
            .find(|known| protocol.eq_ignore_ascii_case(known))?;
        let (rest, container) = match addresses.rsplit_once(':') {
            Some((rest, container)) => (Some(rest), container),
            None => (None, addresses),
        };
        let (ip, host) = match rest {
            None => ("", ""),
            Some(rest) => match rest.rsplit_once(':') {
                Some((ip, host)) => (unbracket(ip)?, host),
                None => ("", rest),
            },
        };
        if rest.is_some() && ip.is_empty() && host.is_empty() {
            return None;
        }
        Some(Self {
            ip,
            host: if host.is_empty() {
                None
            } else {
                Some(range(host)?)
            },
            container: range(container).filter(|range| *range.start() > 0)?,
            protocol,
        })
    }

    fn expand(self, at: Position) -> Option<Vec<Port>> {
        let port = |target, host: Option<u16>, published| Port {
            target,
            listener: host.and_then(|port| listener(port, self.protocol, self.ip)),
            published,
            protocol: self.protocol.to_owned(),
            host_ip: self.ip.to_owned(),
            at,
        };
        let containers = self.container.clone();
        match self.host {
            None => Some(containers.map(|target| port(target, None, None)).collect()),
            Some(hosts) if hosts.len() == containers.len() => Some(
                containers
                    .zip(hosts)
                    .map(|(target, host)| port(target, Some(host), Some(host.to_string())))
                    .collect(),
            ),
            Some(hosts) if containers.len() == 1 => {
                let published = format!("{}-{}", hosts.start(), hosts.end());
                Some(vec![port(*containers.start(), None, Some(published))])
            }
            Some(_) => None,
        }
    }
}

fn long(reader: &Reader<'_>, item: &Node) -> Result<Option<Port>, Error> {
    let Some(map) = reader.map("ports", item, &PORT)? else {
        return Ok(None);
    };
    let Some(target) = map.get("target") else {
        return Err(reader.fault("ports", item, "needs a target"));
    };
    let text = |key: &str| match map.get(key) {
        Some(node) => reader.name(&format!("ports.{key}"), node),
        None => Ok(None),
    };
    let protocol = text("protocol")?.unwrap_or_else(|| "tcp".to_owned());
    let protocol = protocol.to_ascii_lowercase();
    let host_ip = text("host_ip")?.unwrap_or_default();
    let _ = (text("mode")?, text("name")?, text("app_protocol")?);
    let published = match map.get("published") {
        Some(node) => reader.parsed("ports.published", node, "a port or a range", |text| {
            (text.is_empty() || range(text).is_some()).then(|| text.to_owned())
        })?,
        None => None,
    };
    let published = published.filter(|text| !text.is_empty());
    let target = reader.parsed("ports.target", target, "a port", |text| {
        text.parse::<u16>().ok().filter(|port| *port > 0)
    })?;
    let Some(target) = target else {
        return Ok(None);
    };
    let host = published.as_deref().and_then(|text| text.parse().ok());
    Ok(Some(Port {
        target,
        listener: host.and_then(|port| listener(port, &protocol, &host_ip)),
        published,
        protocol,
        host_ip,
        at: item.at,
    }))
}

fn listener(port: u16, protocol: &str, ip: &str) -> Option<Listener> {
    let protocol = match protocol {
        "tcp" => TransportProtocol::Tcp,
        "udp" => TransportProtocol::Udp,
        _ => return None,
    };
    let listens = port > 0 && matches!(ip, "" | "0.0.0.0");
    listens.then_some(Listener { port, protocol })
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (start, end) = match text.split_once('-') {
        Some((start, end)) => (port_number(start)?, port_number(end)?),
        None => (port_number(text)?, port_number(text)?),
    };
    (start <= end).then_some(start..=end)
}

/// Removes the brackets of an IPv6 address.
fn unbracket(ip: &str) -> Option<&str> {
    match ip.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']'),
        None if ip.contains(':') => None,
        None => Some(ip),
    }
}
