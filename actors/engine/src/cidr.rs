//! IPv4 blocks.

use std::{fmt, net::Ipv4Addr, str::FromStr};

/// A block of IPv4 addresses; its address has no host bits set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    base: u32,
    prefix: u8,
}

/// Error of a text or a pair of values that is not an IPv4 block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an IPv4 block")]
pub struct InvalidCidr(pub String);

impl Cidr {
    /// The block of `address` with a prefix of `prefix` bits.
    ///
    /// # Errors
    /// [`InvalidCidr`] if the prefix is over 32 or the address has host bits set.
    pub fn new(address: Ipv4Addr, prefix: u8) -> Result<Self, InvalidCidr> {
        let base = u32::from(address);
        let invalid = || InvalidCidr(format!("{address}/{prefix}"));
        let mask = mask(prefix).ok_or_else(invalid)?;
        if base & !mask != 0 {
            return Err(invalid());
        }
        Ok(Self { base, prefix })
    }

    /// Creates the block at `base`, which must be aligned to its size.
    #[must_use]
    pub fn aligned(base: u32, prefix: u8) -> Self {
        debug_assert_eq!(mask(prefix).map(|mask| base & !mask), Some(0));
        Self { base, prefix }
    }

    /// Bits of the prefix, at most 32.
    #[must_use]
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// First address of the block.
    #[must_use]
    pub fn network(self) -> Ipv4Addr {
        self.base.into()
    }

    /// Second address of the block, used by the gateway.
    #[must_use]
    pub fn gateway(self) -> Ipv4Addr {
        self.base.saturating_add(1).into()
    }

    /// Whether the two blocks share an address.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.first() <= other.last() && other.first() <= self.last()
    }

    /// First address as a number.
    #[must_use]
    pub fn first(self) -> u64 {
        self.base.into()
    }

    /// Last address as a number.
    #[must_use]
    pub fn last(self) -> u64 {
        self.first() + self.size() - 1
    }

    /// Number of addresses in the block.
    #[must_use]
    pub fn size(self) -> u64 {
        1 << (32 - u64::from(self.prefix))
    }
}

fn mask(prefix: u8) -> Option<u32> {
    let host_bits = 32_u32.checked_sub(prefix.into())?;
    Some(u32::MAX.checked_shl(host_bits).unwrap_or(0))
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network(), self.prefix)
    }
}

impl FromStr for Cidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, InvalidCidr> {
        let invalid = || InvalidCidr(text.to_owned());
        let (address, prefix) = parse(text.as_bytes()).ok_or_else(invalid)?;
        Self::new(address, prefix).map_err(|_| invalid())
    }
}

/// Address and prefix of a block. One pass over the bytes: every pass of the firewall parses the
/// blocks of all networks.
fn parse(text: &[u8]) -> Option<(Ipv4Addr, u8)> {
    let (mut address, mut rest) = (0_u32, text);
    for end in [b'.', b'.', b'.', b'/'] {
        let (octet, after) = number(rest)?;
        address = (address << 8) | u32::from(octet);
        rest = after.strip_prefix(&[end])?;
    }
    let (prefix, after) = number(rest)?;
    after.is_empty().then_some((address.into(), prefix))
}

/// The decimal number without leading zeros at the start of `text`, and the rest.
fn number(text: &[u8]) -> Option<(u8, &[u8])> {
    let mut value = 0_u16;
    let mut rest = text;
    while let [digit @ b'0'..=b'9', after @ ..] = rest {
        let is_first = rest.len() == text.len();
        // A zero before another digit.
        if value == 0 && !is_first {
            return None;
        }
        value = value * 10 + u16::from(digit - b'0');
        if value > u16::from(u8::MAX) {
            return None;
        }
        rest = after;
    }
    let value = u8::try_from(value).ok()?;
    (rest.len() < text.len()).then_some((value, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn only_canonical_blocks_are_parsed() {
        for text in ["10.244.0.0/16", "0.0.0.0/0", "10.1.2.3/32", "10.0.0.16/28"] {
            assert_eq!(cidr(text).to_string(), text);
        }
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.1/24",
            "10.0.0.0/024",
            "10.0.0.0/+8",
            "10.0.0.0/8/8",
            "a/8",
            "fd00::/8",
            "10.0.0.0/-1",
            "10.0.0/24",
            "10.0.0.00/24",
            "010.0.0.0/24",
            "256.0.0.0/24",
            "10..0.0/24",
            "10.0.0.0.0/24",
            " 10.0.0.0/24",
            "10.0.0.0/24 ",
        ] {
            assert_eq!(
                text.parse::<Cidr>(),
                Err(InvalidCidr(text.into())),
                "{text}"
            );
        }
    }

    #[test]
    fn gateway_is_second_address() {
        assert_eq!(
            cidr("10.244.3.0/24").gateway(),
            Ipv4Addr::new(10, 244, 3, 1)
        );
        assert_eq!(
            cidr("10.244.3.16/28").gateway(),
            Ipv4Addr::new(10, 244, 3, 17)
        );
    }

    proptest! {
        #[test]
        fn addresses_are_parsed_as_the_library_does(text in "[0-9]{0,4}(\\.[0-9]{0,3}){3}") {
            let expected = text.parse::<Ipv4Addr>().ok();
            let block = format!("{text}/32").parse::<Cidr>().ok();
            prop_assert_eq!(block.map(Cidr::network), expected);
        }

        #[test]
        fn overlapping_blocks_share_an_address(a: u32, b: u32, pa in 0..=32_u8, pb in 0..=32_u8) {
            let near = (a & !0xffff) | (b & 0xffff); // independent blocks hardly ever overlap
            let (ma, mb) = (mask(pa).unwrap(), mask(pb).unwrap());
            let (x, y) = (Cidr::aligned(a & ma, pa), Cidr::aligned(near & mb, pb));
            // Blocks are nested or disjoint: they overlap if and only if they agree on the shorter
            // prefix.
            let common = ma & mb;
            prop_assert_eq!(x.overlaps(y), a & common == near & common);
        }
    }
}
