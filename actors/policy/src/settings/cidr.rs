//! Prefixes of IP addresses.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

/// Range of the IPv4 or IPv6 addresses with a common prefix. No bit is set behind the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    length: u8,
}

impl Cidr {
    /// First address of the range.
    #[must_use]
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Length of the prefix in bits, at most 32 for IPv4 and 128 for IPv6.
    #[must_use]
    pub fn length(self) -> u8 {
        self.length
    }

    /// Whether the address is in the range. An IPv4 address mapped to IPv6 is an IPv4 address.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4()
            && (bits(address) ^ bits(self.address)) & self.mask() == 0
    }

    /// The bits of the prefix, in the place where [`bits`] has them.
    fn mask(self) -> u128 {
        u128::MAX
            .checked_shl(128 - u32::from(self.length))
            .unwrap_or(0)
    }
}

/// The bits of an address; the first one is the highest.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Cidr {
    type Err = ();

    /// Parses an address, or an address and a prefix length; no bit may be set behind the prefix.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| ())?;
        let mapped = matches!(address, IpAddr::V6(v6) if is_mapped(v6));
        let bits_of_family = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => bits_of_family,
            // No sign, no leading zero: both are misspellings.
            Some(text) if text != "0" && text.starts_with(['0', '+']) => return Err(()),
            Some(text) => text.parse().map_err(|_| ())?,
        };
        let cidr = Self { address, length };
        // Clients are compared as IPv4 addresses, so a range of mapped ones would match none.
        if mapped || length > bits_of_family || bits(address) & !cidr.mask() != 0 {
            return Err(());
        }
        Ok(cidr)
    }
}

fn is_mapped(address: Ipv6Addr) -> bool {
    address.to_ipv4_mapped().is_some()
}
