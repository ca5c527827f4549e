//! Address of the client that a request is attributed to.
//!
//! It is the address of the TCP peer, unless the peer is a trusted proxy: then it is the right-most
//! member of `X-Forwarded-For` that is not a trusted proxy itself. A member left of that one may
//! have been written by the client, and is ignored.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName, HeaderValue};

pub(super) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Members of `X-Forwarded-For` that are read, from the right.
const MAX_HOPS: usize = 32;

/// Networks of the proxies in front of this one whose `X-Forwarded-For` is believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<Network>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Network {
    V4 { bits: u32, mask: u32 },
    V6 { bits: u128, mask: u128 },
}

impl TrustedProxies {
    /// Trusts these networks, each an address with the length of its prefix; a length beyond that of
    /// the address counts as the whole address.
    #[must_use]
    pub fn new(networks: impl IntoIterator<Item = (IpAddr, u8)>) -> Self {
        let networks = networks.into_iter();
        let mut networks: Vec<_> = networks
            .map(|(address, prefix)| Network::new(address, prefix))
            .collect();
        networks.sort_unstable();
        networks.dedup();
        Self(networks)
    }

    /// Whether `address` belongs to a trusted proxy.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(address))
    }
}

impl Network {
    fn new(address: IpAddr, prefix: u8) -> Self {
        match (address, address.to_canonical()) {
            (IpAddr::V6(_), IpAddr::V4(mapped)) => Self::v4(mapped, prefix.saturating_sub(96)),
            (_, IpAddr::V4(address)) => Self::v4(address, prefix),
            (_, IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128)));
                let mask = mask.unwrap_or(0);
                let bits = u128::from(address) & mask;
                Self::V6 { bits, mask }
            }
        }
    }

    fn v4(address: Ipv4Addr, prefix: u8) -> Self {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32)));
        let mask = mask.unwrap_or(0);
        let bits = u32::from(address) & mask;
        Self::V4 { bits, mask }
    }

    fn contains(&self, address: IpAddr) -> bool {
        match (*self, address) {
            (Self::V4 { bits, mask }, IpAddr::V4(address)) => u32::from(address) & mask == bits,
            (Self::V6 { bits, mask }, IpAddr::V6(address)) => u128::from(address) & mask == bits,
            (Self::V4 { .. }, IpAddr::V6(_)) | (Self::V6 { .. }, IpAddr::V4(_)) => false,
        }
    }
}

/// The client of a request, and the path from it to this proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    /// Address of the client.
    pub address: IpAddr,
    /// Trusted proxies between the client and this one, the nearest one last.
    pub proxies: Vec<IpAddr>,
}

impl ClientAddress {
    /// Finds the client of a request with `headers` that `peer` sent.
    #[must_use]
    pub fn find(peer: IpAddr, headers: &HeaderMap, trusted: &TrustedProxies) -> Self {
        let mut found = Self {
            address: peer.to_canonical(),
            proxies: Vec::new(),
        };
        if !trusted.contains(peer) {
            return found;
        }
        let fields = headers.get_all(FORWARDED_FOR).iter().rev();
        let members = fields.flat_map(|field| field.as_bytes().rsplit(|&b| b == b','));
        for member in members.take(MAX_HOPS) {
            let member = member.trim_ascii();
            if member.is_empty() {
                continue;
            }
            // A proxy that does not name its client stands for it.
            let Some(hop) = parse_hop(member) else { break };
            found.proxies.push(found.address);
            found.address = hop;
            if !trusted.contains(hop) {
                break;
            }
        }
        found.proxies.reverse();
        found
    }

    /// The field to send on; `None` if the peer itself is the client.
    pub(super) fn forwarded_for(&self) -> Option<HeaderValue> {
        if self.proxies.is_empty() {
            return None;
        }
        let all = [self.address]
            .into_iter()
            .chain(self.proxies.iter().copied());
        let all: Vec<_> = all.map(|address| address.to_string()).collect();
        HeaderValue::try_from(all.join(", ")).ok()
    }
}

/// Parses an address with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`,
/// `[2001:db8::1]` or `[2001:db8::1]:80`.
fn parse_hop(member: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(member).ok()?;
    let address = if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
            return None;
        }
        IpAddr::V6(address.parse::<Ipv6Addr>().ok()?)
    } else if let Ok(address) = text.parse::<IpAddr>() {
        address
    } else {
        let (address, port) = text.split_once(':')?;
        let address = address.parse::<Ipv4Addr>().ok()?;
        IpAddr::V4(is_port(port).then_some(address)?)
    };
    Some(address.to_canonical())
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn trusted(networks: &[(&str, u8)]) -> TrustedProxies {
        TrustedProxies::new(
            networks
                .iter()
                .map(|(address, prefix)| (ip(address), *prefix)),
        )
    }

    fn headers(fields: &[&str]) -> HeaderMap {
        let field = |value: &&str| (FORWARDED_FOR, value.parse().unwrap());
        fields.iter().map(field).collect()
    }

    #[test]
    fn networks_contain_their_addresses_alone() {
        let networks = trusted(&[
            ("10.1.2.3", 8),
            ("192.0.2.7", 32),
            ("2001:db8::", 32),
            ("::ffff:172.16.0.0", 108),
            ("::1", 200),
        ]);
        for (address, inside) in [
            ("10.255.0.1", true),
            ("::ffff:10.0.0.1", true),
            ("11.0.0.1", false),
            ("192.0.2.7", true),
            ("192.0.2.6", false),
            ("2001:db8:ffff::1", true),
            ("2001:db9::", false),
            ("172.31.0.1", true),
            ("172.32.0.1", false),
            ("::1", true),
            ("::2", false),
        ] {
            assert_eq!(networks.contains(ip(address)), inside, "{address}");
        }
        assert!(trusted(&[("0.0.0.0", 0)]).contains(ip("203.0.113.9")));
        assert!(!trusted(&[("::", 0)]).contains(ip("203.0.113.9")));
        assert!(!TrustedProxies::default().contains(ip("::1")));
    }

    #[test]
    fn client_is_right_most_untrusted_hop() {
        let proxies = trusted(&[("10.0.0.0", 8), ("fd00::", 8)]);
        for (peer, fields, client, chain) in [
            // An untrusted peer is the client, whatever it writes.
            ("203.0.113.9", &["1.1.1.1"][..], "203.0.113.9", None),
            ("203.0.113.9", &["10.0.0.1"], "203.0.113.9", None),
            ("10.0.0.1", &[], "10.0.0.1", None),
            (
                "10.0.0.1",
                &["1.1.1.1"],
                "1.1.1.1",
                Some("1.1.1.1, 10.0.0.1"),
            ),
            (
                "::ffff:10.0.0.1",
                &["6.6.6.6, 1.1.1.1"],
                "1.1.1.1",
                Some("1.1.1.1, 10.0.0.1"),
            ),
            (
                "10.0.0.1",
                &["6.6.6.6, 10.9.9.9", "1.1.1.1,10.0.0.3", " , 10.0.0.2"],
                "1.1.1.1",
                Some("1.1.1.1, 10.0.0.3, 10.0.0.2, 10.0.0.1"),
            ),
            // Only proxies: the farthest one is the client.
            (
                "fd00::1",
                &["10.0.0.3, fd00::2"],
                "10.0.0.3",
                Some("10.0.0.3, fd00::2, fd00::1"),
            ),
            // A proxy that names no client stands for it.
            ("10.0.0.1", &["1.1.1.1, unknown"], "10.0.0.1", None),
            (
                "10.0.0.1",
                &["1.1.1.1, unknown, 10.0.0.2"],
                "10.0.0.2",
                Some("10.0.0.2, 10.0.0.1"),
            ),
            (
                "10.0.0.1",
                &["2001:db8::1, [2001:db8::2]:443"],
                "2001:db8::2",
                Some("2001:db8::2, 10.0.0.1"),
            ),
        ] {
            let found = ClientAddress::find(ip(peer), &headers(fields), &proxies);
            assert_eq!(found.address, ip(client), "{fields:?}");
            let field = found.forwarded_for();
            assert_eq!(
                field.as_ref().map(|f| f.to_str().unwrap()),
                chain,
                "{fields:?}"
            );
        }
    }

    #[test]
    fn hops_are_addresses_with_or_without_port() {
        for (text, address) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.1:80", Some("192.0.2.1")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("[2001:db8::1]:80", Some("2001:db8::1")),
            ("[::ffff:192.0.2.1]", Some("192.0.2.1")),
            ("[192.0.2.1]", None),
            ("[2001:db8::1", None),
            ("[2001:db8::1]x", None),
            ("[2001:db8::1]]", None),
            ("[2001:db8::1]:", None),
            ("192.0.2.1:", None),
            ("192.0.2.1:65536", None),
            ("192.0.2.01", None),
            ("unknown", None),
            ("_hidden", None),
            ("for=192.0.2.1", None),
        ] {
            assert_eq!(parse_hop(text.as_bytes()), address.map(ip), "{text}");
        }
    }

    #[test]
    fn endless_chain_is_read_to_a_bound() {
        let proxies = trusted(&[("10.0.0.0", 8)]);
        let chain = vec!["10.0.0.2"; 1000].join(",");
        let found = ClientAddress::find(ip("10.0.0.1"), &headers(&[&chain]), &proxies);
        assert_eq!(found.proxies.len(), MAX_HOPS);
    }

    proptest! {
        /// Text that a client writes left of the address its proxy appended changes nothing.
        #[test]
        fn forged_members_change_nothing(forged in "[ -~]{0,60}", more in "[0-9a-f.:,\\[\\] ]{0,40}") {
            let proxies = trusted(&[("10.0.0.0", 8)]);
            let honest = ClientAddress::find(ip("10.0.0.1"), &headers(&["1.1.1.1"]), &proxies);
            for fields in [
                vec![forged.clone(), more.clone(), "1.1.1.1".to_owned()],
                vec![format!("{forged},{more} , 1.1.1.1")],
            ] {
                let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
                prop_assert_eq!(&ClientAddress::find(ip("10.0.0.1"), &headers(&fields), &proxies), &honest);
                let direct = ClientAddress::find(ip("9.9.9.9"), &headers(&fields), &proxies);
                prop_assert_eq!(direct.address, ip("9.9.9.9"));
            }
        }

        /// Addresses survive being written to the field and read again.
        #[test]
        fn chain_is_read_as_written(v4: bool, bits: u128, hops in prop::collection::vec(any::<u16>(), 0..5)) {
            let client = if v4 {
                IpAddr::V4(Ipv4Addr::from((bits as u32) | 0x8000_0000))
            } else {
                IpAddr::V6(Ipv6Addr::from(bits | (0x2000_u128 << 112)))
            };
            let proxies = trusted(&[("10.0.0.0", 16)]);
            let hop = |n: &u16| IpAddr::V4(Ipv4Addr::from((10 << 24) | u32::from(*n)));
            let written = ClientAddress { address: client, proxies: hops.iter().map(hop).chain([ip("10.0.0.1")]).collect() };
            let field = written.forwarded_for().unwrap();
            // The next proxy appends the address of this one, which is its peer.
            let field = field.to_str().unwrap().rsplit_once(", ").unwrap().0.to_owned();
            let read = ClientAddress::find(ip("10.0.0.1"), &headers(&[&field]), &proxies);
            prop_assert_eq!(read, written);
        }
    }
}
