//! Longest-prefix match over the networks of the peers.

use std::net::Ipv4Addr;

/// Networks and the slot of the peer that each belongs to; immutable.
///
/// One sorted list for each prefix length in use, longest first: a mesh has two or three lengths, so
/// a lookup is as many binary searches.
#[derive(Debug, Default)]
pub(super) struct AllowedIps {
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    mask: u32,
    networks: Vec<(u32, u16)>,
}

/// The reason why a list of networks is no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// The prefix is longer than 32 bits.
    Invalid(Ipv4Addr, u8),
    /// The network occurs twice, with different slots.
    Duplicate(Ipv4Addr, u8),
}

impl AllowedIps {
    /// Builds the table. Bits behind the prefix are ignored, as `wg` does.
    pub(super) fn new(
        networks: impl IntoIterator<Item = (Ipv4Addr, u8, u16)>,
    ) -> Result<Self, Conflict> {
        let mut by_length: [Vec<(u32, u16)>; 33] = std::array::from_fn(|_| Vec::new());
        for (address, length, slot) in networks {
            let level = by_length.get_mut(usize::from(length));
            let level = level.ok_or(Conflict::Invalid(address, length))?;
            level.push((u32::from(address) & mask(length), slot));
        }
        let mut levels = Vec::new();
        for length in (0..=32).rev() {
            let mut networks = std::mem::take(&mut by_length[usize::from(length)]);
            networks.sort_unstable();
            networks.dedup();
            if let Some(pair) = networks.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                return Err(Conflict::Duplicate(pair[0].0.into(), length));
            }
            if !networks.is_empty() {
                let mask = mask(length);
                levels.push(Level { mask, networks });
            }
        }
        Ok(Self { levels })
    }

    /// The slot of the longest network that contains the address.
    pub(super) fn lookup(&self, address: Ipv4Addr) -> Option<u16> {
        let address = u32::from(address);
        self.levels.iter().find_map(|level| {
            let network = address & level.mask;
            let found = level
                .networks
                .binary_search_by_key(&network, |entry| entry.0);
            found.ok().map(|at| level.networks[at].1)
        })
    }
}

fn mask(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(text: &[(&str, u16)]) -> Result<AllowedIps, Conflict> {
        AllowedIps::new(text.iter().map(|(network, slot)| {
            let (address, length) = network.split_once('/').unwrap();
            (address.parse().unwrap(), length.parse().unwrap(), *slot)
        }))
    }

    #[test]
    fn longest_network_wins() {
        let table = table(&[
            ("0.0.0.0/0", 1),
            ("10.244.0.0/16", 2),
            ("10.244.7.9/24", 3),
            ("10.244.7.8/32", 4),
            ("10.244.7.8/32", 4),
        ]);
        let table = table.unwrap();
        for (address, slot) in [
            ("10.244.7.8", 4),
            ("10.244.7.9", 3),
            ("10.244.8.9", 2),
            ("10.245.0.1", 1),
            ("255.255.255.255", 1),
        ] {
            assert_eq!(
                table.lookup(address.parse().unwrap()),
                Some(slot),
                "{address}"
            );
        }
    }

    #[test]
    fn address_outside_all_networks_has_no_peer() {
        assert_eq!(table(&[]).unwrap().lookup([10, 0, 0, 1].into()), None);
        let table = table(&[("10.99.0.1/32", 0), ("10.244.1.0/24", 0)]).unwrap();
        assert_eq!(table.lookup([10, 99, 0, 2].into()), None);
        assert_eq!(table.lookup([10, 244, 2, 0].into()), None);
    }

    #[test]
    fn conflicting_networks_are_refused() {
        let twice = table(&[("10.1.2.3/24", 1), ("10.1.2.0/24", 2)]);
        let network = [10, 1, 2, 0].into();
        assert_eq!(twice.err(), Some(Conflict::Duplicate(network, 24)));
        let long = table(&[("10.1.2.0/33", 1)]);
        assert_eq!(long.err(), Some(Conflict::Invalid(network, 33)));
    }

    proptest! {
        #[test]
        fn lookup_agrees_with_a_linear_search(
            networks in prop::collection::btree_map((0..4_u32, 24..=32_u8), 0..9_u16, 0..40),
            address in 0..1024_u32,
        ) {
            let networks: std::collections::BTreeMap<_, _> = networks
                .into_iter()
                .map(|((high, length), slot)| (((high << 8 | high) & mask(length), length), slot))
                .collect();
            let table = AllowedIps::new(
                networks.iter().map(|((address, length), slot)| ((*address).into(), *length, *slot)),
            );
            let expected = networks
                .iter()
                .filter(|((network, length), _)| address & mask(*length) == *network)
                .max_by_key(|((_, length), _)| *length)
                .map(|(_, slot)| *slot);
            prop_assert_eq!(table.unwrap().lookup(address.into()), expected);
        }
    }
}
