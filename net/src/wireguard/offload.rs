//! The header that the kernel puts before each packet of a TUN interface with offloads.

/// Length of the header, in bytes.
pub(super) const LEN: usize = 10;
/// The checksum field holds the sum of the pseudo header only (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
pub(super) const NEEDS_CHECKSUM: u8 = 1;
/// A TCP segment that is yet to be split (`VIRTIO_NET_HDR_GSO_TCPV4`).
pub(super) const TCP: u8 = 1;
/// UDP datagrams of one flow that are yet to be split (`VIRTIO_NET_HDR_GSO_UDP_L4`).
pub(super) const UDP: u8 = 5;
/// Added to the kind when the first segment carries CWR (`VIRTIO_NET_HDR_GSO_ECN`).
const ECN: u8 = 0x80;

/// `struct virtio_net_hdr` of `linux/virtio_net.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) flags: u8,
    /// Kind of packets that are joined in this one; 0 for a whole packet.
    pub(super) kind: u8,
    /// Bytes of headers that each segment repeats.
    pub(super) header_len: u16,
    /// Payload of each segment, in bytes.
    pub(super) segment: u16,
    /// Where the checksum begins, from the start of the packet.
    pub(super) checksum_start: u16,
    /// Where the checksum is stored, from `checksum_start`.
    pub(super) checksum_offset: u16,
}

impl Header {
    /// Takes the header off a frame; `None` if the frame is too short.
    pub(super) fn split_off(frame: &mut [u8]) -> Option<(Self, &mut [u8])> {
        let (head, packet) = frame.split_first_chunk_mut::<LEN>()?;
        let word = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let header = Self {
            flags: head[0],
            kind: head[1] & !ECN,
            header_len: word(2),
            segment: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        };
        Some((header, packet))
    }

    /// The header as the kernel reads it.
    pub(super) fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..2].copy_from_slice(&[self.flags, self.kind]);
        let words = [
            self.header_len,
            self.segment,
            self.checksum_start,
            self.checksum_offset,
        ];
        for (bytes, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}
