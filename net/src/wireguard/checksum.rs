//! The checksum of IPv4, TCP and UDP (RFC 1071).

use std::net::Ipv4Addr;

/// A sum of 16-bit words that is not folded yet, in the byte order of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum(u64);

impl Sum {
    /// The pseudo header of TCP and UDP (RFC 9293, section 3.1): `len` bytes of `protocol`.
    pub(super) fn pseudo(source: &[u8], destination: &[u8], protocol: u8, len: u16) -> Self {
        let tail = [0, protocol, len.to_be_bytes()[0], len.to_be_bytes()[1]];
        Self::default().add(source).add(destination).add(&tail)
    }

    /// Adds bytes that begin at an even offset.
    pub(super) fn add(self, bytes: &[u8]) -> Self {
        // 32-bit words in 64-bit lanes: no carry is lost below 2^32 words, and lanes are vectors.
        let mut lanes = [0_u64; 8];
        let mut chunks = bytes.chunks_exact(32);
        for chunk in &mut chunks {
            for (lane, word) in lanes.iter_mut().zip(chunk.as_chunks::<4>().0) {
                *lane += u64::from(u32::from_ne_bytes(*word));
            }
        }
        let (words, rest) = chunks.remainder().as_chunks::<4>();
        let mut sum = lanes.iter().sum::<u64>();
        for word in words {
            sum += u64::from(u32::from_ne_bytes(*word));
        }
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(last));
        Self(self.0 + (sum & 0xffff_ffff) + (sum >> 32))
    }

    /// The sum folded to 16 bits, in network byte order.
    pub(super) fn fold(self) -> [u8; 2] {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let [low, high, ..] = sum.to_le_bytes();
        u16::from_le_bytes([low, high]).to_ne_bytes()
    }

    /// The checksum field that makes the sum of all bytes `ffff`.
    pub(super) fn checksum(self) -> [u8; 2] {
        let [first, second] = self.fold();
        [!first, !second]
    }

    /// Whether the bytes, with their checksum field, are intact.
    pub(super) fn is_valid(self) -> bool {
        self.fold() == [0xff, 0xff]
    }
}

/// Writes the checksum of an IPv4 header; `header` is the whole header.
pub(super) fn set_ipv4(header: &mut [u8]) {
    header[10..12].fill(0);
    let sum = Sum::default().add(header).checksum();
    header[10..12].copy_from_slice(&sum);
}

/// Reads an address at an offset that the caller has checked.
pub(super) fn address(packet: &[u8], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sum_matches_the_example_of_the_rfc() {
        // RFC 1071, section 3.
        let sum = Sum::default().add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.fold(), [0xdd, 0xf2]);
        assert_eq!(sum.checksum(), [0x22, 0x0d]);
    }

    proptest! {
        #[test]
        fn sum_agrees_with_word_by_word_addition(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut expected = 0_u32;
            for pair in bytes.chunks(2) {
                let second = pair.get(1).copied().unwrap_or(0);
                expected += u32::from(u16::from_be_bytes([pair[0], second]));
                expected = (expected & 0xffff) + (expected >> 16);
            }
            let folded = u16::from_be_bytes(Sum::default().add(&bytes).fold());
            prop_assert_eq!(u32::from(folded), expected);
        }
    }
}
