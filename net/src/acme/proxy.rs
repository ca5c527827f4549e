//! The HTTP proxy that leads to a directory, as the environment names it.

use std::{env, net::IpAddr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, Uri, uri::Authority};

/// Variables with the proxy of HTTPS addresses; the first one that is set counts.
const PROXY: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
/// Variables with the hosts that are reached without a proxy.
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Error of the settings of the proxy. It does not quote them: they may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The address does not parse.
    #[error("HTTPS_PROXY is not an address like http://host:port")]
    Address,
    /// The proxy would be reached over another protocol.
    #[error("HTTPS_PROXY does not begin with http://")]
    Scheme,
}

/// The proxy in use, and the hosts that are reached without it.
///
/// `HTTP_PROXY` has no effect: directories are HTTPS resources.
#[derive(Clone, Debug, Default)]
pub struct ProxySettings {
    proxy: Option<HttpProxy>,
    direct: Vec<Exception>,
}

/// A proxy that opens tunnels (RFC 9110, section 9.3.6).
#[derive(Clone, Debug)]
pub(super) struct HttpProxy {
    pub(super) host: String,
    pub(super) port: u16,
    /// Value of `Proxy-Authorization`.
    pub(super) authorization: Option<HeaderValue>,
}

/// Hosts that are reached without the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    All,
    /// A name and its subdomains, at any port or at one.
    Name(String, Option<u16>),
    /// Addresses that agree in the leading bits, at any port or at one.
    Block(IpAddr, u8, Option<u16>),
}

impl ProxySettings {
    /// Reads `HTTPS_PROXY` and `NO_PROXY`, or their names in lower case.
    ///
    /// # Errors
    /// [`ProxyError`] if the proxy cannot be used.
    pub fn from_env() -> Result<Self, ProxyError> {
        Self::from_lookup(|name| env::var(name).ok())
    }

    /// Reads the settings that `lookup` returns for the names of variables. An empty value counts as
    /// an absent one. Entries of `NO_PROXY` are separated by commas: `*`, a domain with its
    /// subdomains, an address or a CIDR block, each but the first with `:port` if wanted.
    ///
    /// # Errors
    /// [`ProxyError`] if the proxy cannot be used.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ProxyError> {
        let first = |names: [&str; 2]| {
            let values = names.into_iter().filter_map(&lookup);
            let mut values = values.map(|value| value.trim().to_owned());
            values.find(|value| !value.is_empty())
        };
        let proxy = first(PROXY).map(|address| HttpProxy::parse(&address));
        let direct = first(NO_PROXY).unwrap_or_default();
        let direct = direct.split(',').filter_map(Exception::parse);
        Ok(Self {
            proxy: proxy.transpose()?,
            direct: direct.collect(),
        })
    }

    /// The proxy that leads to a host, which is a name or an address without brackets.
    pub(super) fn of(&self, host: &str, port: u16) -> Option<&HttpProxy> {
        let proxy = self.proxy.as_ref()?;
        let direct = |exception: &Exception| exception.covers(host, port);
        (!self.direct.iter().any(direct)).then_some(proxy)
    }
}

impl HttpProxy {
    fn parse(address: &str) -> Result<Self, ProxyError> {
        let address = match address.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return Err(ProxyError::Scheme),
            None => address,
        };
        let authority: Authority = address
            .trim_end_matches('/')
            .parse()
            .map_err(|_| ProxyError::Address)?;
        let host = authority.host().trim_matches(['[', ']']);
        if host.is_empty() {
            return Err(ProxyError::Address);
        }
        let user = authority.as_str().rsplit_once('@').map(|(user, _)| user);
        let authorization = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            let mut credentials = decoded(name);
            credentials.push(b':');
            credentials.extend(decoded(password));
            let value = format!("Basic {}", STANDARD.encode(credentials));
            let mut value = HeaderValue::from_str(&value).map_err(|_| ProxyError::Address)?;
            value.set_sensitive(true);
            Ok(value)
        });
        Ok(Self {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authorization: authorization.transpose()?,
        })
    }

    /// Target of the request that opens a tunnel to a host.
    pub(super) fn target(host: &str, port: u16) -> Option<Uri> {
        let target = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        target.parse().ok()
    }
}

impl Exception {
    /// Reads an entry of the list; one that says nothing is skipped.
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim().to_ascii_lowercase();
        if entry == "*" {
            return Some(Self::All);
        }
        if let Some((base, bits)) = entry.split_once('/') {
            let (base, bits) = (base.parse().ok()?, bits.parse().ok()?);
            return (bits <= length(base)).then_some(Self::Block(base, bits, None));
        }
        if let Ok(address) = entry.trim_matches(['[', ']']).parse() {
            return Some(Self::Block(address, length(address), None));
        }
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (&*entry, None),
        };
        if let Ok(address) = host.trim_matches(['[', ']']).parse() {
            return Some(Self::Block(address, length(address), port));
        }
        let name = host.trim_start_matches("*.").trim_matches('.');
        (!name.is_empty()).then(|| Self::Name(name.to_owned(), port))
    }

    fn covers(&self, host: &str, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Name(name, only) => {
                let host = host.trim_end_matches('.').to_ascii_lowercase();
                let parent = host.strip_suffix(name.as_str());
                let below = parent.is_some_and(|parent| parent.is_empty() || parent.ends_with('.'));
                below && only.is_none_or(|only| only == port)
            }
            Self::Block(base, bits, only) => {
                let address = host.parse::<IpAddr>();
                let inside = address.is_ok_and(|address| {
                    length(*base) == length(address)
                        && leading(*base, *bits) == leading(address, *bits)
                });
                inside && only.is_none_or(|only| only == port)
            }
        }
    }
}

/// Number of bits of an address.
fn length(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The first `bits` bits of an address.
fn leading(address: IpAddr, bits: u8) -> u128 {
    let value = match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let rest = length(address).saturating_sub(bits);
    value.checked_shr(rest.into()).unwrap_or(0)
}

/// Bytes of a percent-encoded text; an invalid escape stands for itself.
fn decoded(text: &str) -> Vec<u8> {
    let mut rest = text.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((&first, others)) = rest.split_first() {
        let escape = others.get(..2).filter(|_| first == b'%');
        let escape = escape.and_then(|digits| std::str::from_utf8(digits).ok());
        match escape.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[2..];
            }
            None => {
                bytes.push(first);
                rest = others;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(proxy: &str, direct: &str) -> Result<ProxySettings, ProxyError> {
        ProxySettings::from_lookup(|name| match name {
            "HTTPS_PROXY" => Some(proxy.to_owned()),
            "no_proxy" => Some(direct.to_owned()),
            _ => None,
        })
    }

    #[test]
    fn address_of_the_proxy_is_read() {
        type Case = (
            &'static str,
            Result<(&'static str, u16, Option<&'static str>), ProxyError>,
        );
        let table: &[Case] = &[
            (
                "http://proxy.example:3128",
                Ok(("proxy.example", 3128, None)),
            ),
            ("HTTP://proxy.example/", Ok(("proxy.example", 80, None))),
            ("proxy.example:8080", Ok(("proxy.example", 8080, None))),
            ("http://[2001:db8::1]:1", Ok(("2001:db8::1", 1, None))),
            (
                "http://us%65r:p%40ss@proxy.example:1",
                Ok(("proxy.example", 1, Some("user:p@ss"))),
            ),
            ("http://me@p:1", Ok(("p", 1, Some("me:")))),
            ("https://proxy.example", Err(ProxyError::Scheme)),
            ("socks5://proxy.example", Err(ProxyError::Scheme)),
            ("http://", Err(ProxyError::Address)),
            ("http://a b", Err(ProxyError::Address)),
        ];
        for (address, expected) in table {
            let read = settings(address, "").map(|settings| settings.proxy.unwrap());
            let expected = expected.map(|(host, port, user)| {
                let user = user.map(|user| format!("Basic {}", STANDARD.encode(user)));
                (host.to_owned(), port, user)
            });
            let read = read.map(|proxy| {
                let value = proxy.authorization;
                let value = value.map(|value| value.to_str().unwrap().to_owned());
                (proxy.host, proxy.port, value)
            });
            assert_eq!(read, expected, "{address}");
        }
    }

    #[test]
    fn empty_variables_are_absent() {
        let settings = settings(" ", "").unwrap();
        assert!(settings.of("a.example", 443).is_none());
    }

    #[test]
    fn exceptions_are_reached_directly() {
        let table = [
            ("", "a.example", 443, true),
            ("*", "a.example", 443, false),
            ("example", "a.example", 443, false),
            (".a.example", "a.example", 443, false),
            ("*.example", "a.Example.", 443, false),
            ("xample", "a.example", 443, true),
            ("b.example, a.example", "a.example", 443, false),
            ("a.example:444", "a.example", 443, true),
            ("a.example:443", "a.example", 443, false),
            ("10.0.0.0/8", "10.2.3.4", 443, false),
            ("10.0.0.0/8", "11.2.3.4", 443, true),
            ("0.0.0.0/0", "11.2.3.4", 443, false),
            ("::/0", "11.2.3.4", 443, true),
            ("10.2.3.4", "10.2.3.4", 443, false),
            ("10.2.3.4:1", "10.2.3.4", 443, true),
            ("[2001:db8::1]", "2001:db8::1", 443, false),
            ("2001:db8::/32", "2001:db8::1", 443, false),
            ("10.0.0.0/40,/,:,", "10.2.3.4", 443, true),
        ];
        for (direct, host, port, proxied) in table {
            let settings = settings("http://proxy:1", direct).unwrap();
            let found = settings.of(host, port).is_some();
            assert_eq!(found, proxied, "{direct} {host}:{port}");
        }
    }

    #[test]
    fn credentials_are_not_shown() {
        let settings = settings("http://user:secret@proxy:1", "").unwrap();
        let shown = format!("{settings:?}");
        assert!(!shown.contains("secret") && !shown.contains(&STANDARD.encode("user:secret")));
    }
}
