//! Types of settings, and their text.

use std::{fmt, net::IpAddr, str::FromStr};

use jaco_proto::config::is_hostname;

use super::LIST_ENTRIES;

/// Limits per route and client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Requests per second in the long run, above 0 and at most 1,000,000.
    pub rps: f64,
    /// Requests admitted at once after a pause, as a multiple of `rps`, from 1 to 1,000.
    pub burst_multiplier: u32,
    /// Requests in flight, from 1 to 1,000,000.
    pub connections: u32,
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rps,
            burst_multiplier,
            connections,
        } = self;
        write!(f, "{rps},{burst_multiplier},{connections}")
    }
}

/// An address of the ingress as the world sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicAddress {
    /// An IP address: the target of A and AAAA records.
    Address(IpAddr),
    /// A name in lower case: the target of CNAME records.
    Name(String),
}

impl fmt::Display for PublicAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl FromStr for PublicAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if let Ok(address) = text.parse::<IpAddr>() {
            let address = address.to_canonical();
            return match address.is_unspecified() || address.is_multicast() {
                true => Err(()),
                false => Ok(Self::Address(address)),
            };
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        // A last label of digits only is a misspelt address (RFC 3696, section 2).
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
        match is_hostname(&name) && !is_number {
            true => Ok(Self::Name(name)),
            false => Err(()),
        }
    }
}

/// Parses limits; the inner `None` is `off`, the outer one an invalid text.
pub(super) fn limits(text: &str) -> Option<Option<Limits>> {
    if text.trim() == "off" {
        return Some(None);
    }
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let [rps, burst_multiplier, connections] = parts[..] else {
        return None;
    };
    let limits = Limits {
        rps: rps.parse().ok()?,
        burst_multiplier: burst_multiplier.parse().ok()?,
        connections: connections.parse().ok()?,
    };
    let valid = limits.rps > 0.0
        && limits.rps <= 1e6
        && (1..=1000).contains(&limits.burst_multiplier)
        && (1..=1_000_000).contains(&limits.connections);
    valid.then_some(Some(limits))
}

/// Parses a list; an empty text is the empty list, and repeated entries are dropped.
pub(super) fn list<T: FromStr + PartialEq>(text: &str) -> Option<Vec<T>> {
    let mut list = Vec::new();
    if text.trim().is_empty() {
        return Some(list);
    }
    for entry in text.split(',') {
        let entry = entry.trim().parse().ok()?;
        if !list.contains(&entry) {
            list.push(entry);
        }
        if list.len() > LIST_ENTRIES {
            return None;
        }
    }
    Some(list)
}

pub(super) fn join(list: &[impl fmt::Display]) -> String {
    let texts: Vec<String> = list.iter().map(ToString::to_string).collect();
    texts.join(",")
}
