//! Values with their own grammar.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use super::Error;

/// A host, as a name or a literal address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The host without brackets; may be empty, which means any address.
    pub host: String,
    /// The port; 0 lets the system choose.
    pub port: u16,
}

impl HostPort {
    /// Splits the `host:port` of an endpoint to connect to: an IPv6 host must be in brackets, and
    /// neither host nor port may be missing. The characters of the host are not checked.
    pub fn endpoint(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:")?,
            None => text
                .rsplit_once(':')
                .filter(|(host, _)| !host.contains(':'))?,
        };
        let port = port.parse().ok().filter(|&port| port != 0)?;
        (!host.is_empty()).then(|| Self {
            host: host.to_owned(),
            port,
        })
    }

    /// Whether the host means all addresses of the machine.
    pub fn is_unspecified(&self) -> bool {
        self.host.is_empty()
            || self
                .host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_unspecified())
    }

    /// Splits `host:port`; an IPv6 host must be in brackets.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (host, port) = text.rsplit_once(':').ok_or("missing port")?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or("missing ']'")?,
            None if text.starts_with('[') => return Err("missing port"),
            None if host.contains(':') => return Err("too many colons"),
            None => host,
        };
        if host.contains(['[', ']']) || host.contains(char::is_whitespace) {
            return Err("bad host");
        }
        let port = port_number(port).ok_or("the port must be a number up to 65535")?;
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Parses a port in decimal digits, without a sign.
pub(crate) fn port_number(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Address space that container subnets are allocated from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// First address; bits after the prefix are zero.
    pub network: Ipv4Addr,
    /// Length of the prefix, 8 to 20.
    pub prefix: u8,
}

impl Pool {
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let invalid = |reason| Error::PoolInvalid {
            value: text.to_owned(),
            reason,
        };
        let (address, length) = text
            .split_once('/')
            .ok_or(invalid("missing prefix length"))?;
        let network = match address.parse() {
            Ok(IpAddr::V4(address)) => address,
            Ok(IpAddr::V6(_)) => return Err(invalid("IPv6 is not supported")),
            Err(_) => return Err(invalid("bad address")),
        };
        let plain = !length.is_empty()
            && length.bytes().all(|b| b.is_ascii_digit())
            && (length.len() == 1 || !length.starts_with('0'));
        let prefix: u8 = match length.parse() {
            Ok(prefix @ 0..=32) if plain => prefix,
            Ok(_) | Err(_) => return Err(invalid("bad prefix length")),
        };
        if !(8..=20).contains(&prefix) {
            return Err(Error::PoolSize {
                value: text.to_owned(),
                got: prefix,
            });
        }
        let pool = Self { network, prefix };
        if pool.network.to_bits() & !pool.mask() != 0 {
            return Err(invalid("host bits are set"));
        }
        Ok(pool)
    }

    /// Whether `address` is in the pool.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        address.to_bits() & self.mask() == self.network.to_bits()
    }

    fn mask(self) -> u32 {
        u32::MAX << (32 - u32::from(self.prefix))
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

/// Parses `host[:port]` of a DNS server; the default port is 53.
pub(super) fn forwarder(text: &str) -> Result<HostPort, &'static str> {
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(text);
    let bare_v6 = bare.parse::<std::net::Ipv6Addr>().is_ok();
    let server = if bare_v6 || !text.contains(':') {
        HostPort {
            host: bare.to_owned(),
            port: 53,
        }
    } else {
        HostPort::parse(text)?
    };
    if server.host.is_empty() {
        return Err("missing host");
    }
    if server.port == 0 || server.host.contains(['/', '[', ']', ' ', '\t']) {
        return Err("bad host or port");
    }
    Ok(server)
}

/// Whether a query to `server` could come back to our own DNS responders.
pub(super) fn loops_back(server: &HostPort, pool: Pool, block: u8) -> bool {
    let Ok(address) = server.host.parse::<Ipv4Addr>() else {
        return false;
    };
    let [a, b, _, d] = address.octets();
    let engine_resolver = address.is_loopback() && d == 11;
    let default_gateway = a == 10 && b == 244 && d == 1;
    let offset_mask = u32::MAX.checked_shr(u32::from(block)).unwrap_or(0);
    let first_of_block = address.to_bits() & offset_mask == 1;
    engine_resolver || default_gateway || (pool.contains(address) && (d == 1 || first_of_block))
}

/// Whether `text` is an `https` URL that names a host.
pub(super) fn is_https_url(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host_port = authority.rsplit('@').next().unwrap_or_default();
    let host = if host_port.starts_with('[') {
        host_port
    } else {
        host_port.split(':').next().unwrap_or_default()
    };
    scheme.eq_ignore_ascii_case("https")
        && !host.is_empty()
        && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// Whether `text` is a sequence of DNS labels of at most 253 characters (RFC 1123, 2.1).
#[must_use]
pub fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}
