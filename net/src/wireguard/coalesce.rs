//! Joins decrypted packets of one flow, so that the kernel takes them as one.

use super::{
    checksum::{Sum, set_ipv4},
    offload::{self, Header, LEN},
};

const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// Longest packet of IPv4, in bytes.
const MAX_PACKET: usize = 65_535;
/// Most segments of one packet: `UDP_MAX_SEGMENTS` of the oldest kernels that join.
const MAX_SEGMENTS: u16 = 64;
/// Flows that are joined at the same time.
const SLOTS: usize = 8;

/// Joins packets of up to [`SLOTS`] flows at a time, and keeps the order within each flow.
///
/// A frame is [`LEN`] bytes of room for the kernel's header, and an IPv4 packet. The rules for what
/// may be joined are those of the kernel (`net/ipv4/tcp_offload.c`, `udp_offload.c`): a packet that
/// was joined can be split into what it was. A packet with a wrong checksum is passed on as it is.
#[derive(Debug)]
pub(super) struct Coalescer {
    slots: Box<[Slot]>,
    /// Whether the kernel takes joined UDP datagrams.
    udp: bool,
    /// The slot that the next new flow replaces when all are in use.
    next: usize,
}

#[derive(Debug)]
struct Slot {
    frame: Box<[u8]>,
    /// Bytes of the frame in use; 0 if the slot is free.
    len: usize,
    flow: Flow,
    headers_len: usize,
    /// Payload of every segment but the last.
    segment: usize,
    count: u16,
    next_sequence: u32,
    /// The last segment was shorter or pushed: nothing can follow.
    closed: bool,
}

/// Addresses, ports and protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Flow {
    addresses: [u8; 8],
    ports: [u8; 4],
    protocol: u8,
}

/// A packet of a flow.
#[derive(Clone, Copy, Debug)]
struct Inspected {
    flow: Flow,
    headers_len: usize,
    sequence: u32,
    /// May begin or extend a joined packet.
    joinable: bool,
    pushed: bool,
}

impl Coalescer {
    pub(super) fn new(udp: bool) -> Self {
        let slots = (0..SLOTS).map(|_| Slot {
            frame: vec![0; LEN + MAX_PACKET].into_boxed_slice(),
            len: 0,
            flow: Flow::default(),
            headers_len: 0,
            segment: 0,
            count: 0,
            next_sequence: 0,
            closed: false,
        });
        Self {
            slots: slots.collect(),
            udp,
            next: 0,
        }
    }

    /// Takes a packet; `write` gets each frame that is complete now.
    pub(super) fn push(&mut self, frame: &mut [u8], write: &mut impl FnMut(&[u8])) {
        let Some(inspected) = inspect(&frame[LEN..], self.udp) else {
            frame[..LEN].fill(0);
            return write(frame);
        };
        let flow = inspected.flow;
        let held = self
            .slots
            .iter()
            .position(|slot| slot.len > 0 && slot.flow == flow);
        if let Some(at) = held {
            let slot = &mut self.slots[at];
            if slot.extend(&frame[LEN..], inspected) {
                return;
            }
            slot.flush(write);
        }
        if !inspected.joinable {
            frame[..LEN].fill(0);
            return write(frame);
        }
        let at = held.or_else(|| self.slots.iter().position(|slot| slot.len == 0));
        let at = at.unwrap_or_else(|| {
            self.next = (self.next + 1) % SLOTS;
            self.next
        });
        self.slots[at].flush(write);
        self.slots[at].begin(&frame[LEN..], inspected);
    }

    /// Writes all that is held.
    pub(super) fn flush(&mut self, write: &mut impl FnMut(&[u8])) {
        for slot in &mut self.slots {
            slot.flush(write);
        }
    }
}

impl Slot {
    fn begin(&mut self, packet: &[u8], inspected: Inspected) {
        let payload = packet.len() - inspected.headers_len;
        self.frame[LEN..LEN + packet.len()].copy_from_slice(packet);
        self.len = LEN + packet.len();
        self.flow = inspected.flow;
        self.headers_len = inspected.headers_len;
        self.segment = payload;
        self.count = 1;
        self.next_sequence = add(inspected.sequence, payload);
        self.closed = inspected.pushed;
    }

    /// Appends the payload if the packet continues what is held.
    fn extend(&mut self, packet: &[u8], new: Inspected) -> bool {
        let payload = &packet[new.headers_len.min(packet.len())..];
        if self.closed
            || !new.joinable
            || new.headers_len != self.headers_len
            || payload.len() > self.segment
            || self.count >= MAX_SEGMENTS
            || self.len + payload.len() > self.frame.len()
            || !self.has_headers_of(packet, new)
        {
            return false;
        }
        self.frame[self.len..self.len + payload.len()].copy_from_slice(payload);
        self.len += payload.len();
        self.count += 1;
        self.next_sequence = add(self.next_sequence, payload.len());
        self.closed = new.pushed || payload.len() < self.segment;
        if new.pushed {
            self.frame[LEN + IP_HEADER + 13] |= PSH;
        }
        true
    }

    /// Whether the headers differ only in what splitting computes again.
    fn has_headers_of(&self, packet: &[u8], new: Inspected) -> bool {
        let held = &self.frame[LEN..];
        let same = |from: usize, to: usize| held[from..to] == packet[from..to];
        // Type of service; fragment bits and time to live.
        if !same(1, 2) || !same(6, 9) {
            return false;
        }
        new.flow.protocol == PROTOCOL_UDP
            // Acknowledgement and header length; window; urgent pointer and options.
            || (new.sequence == self.next_sequence
                && same(28, 33)
                && same(34, 36)
                && same(38, self.headers_len))
    }

    fn flush(&mut self, write: &mut impl FnMut(&[u8])) {
        if self.len == 0 {
            return;
        }
        let header = if self.count > 1 {
            self.join()
        } else {
            Header::default()
        };
        self.frame[..LEN].copy_from_slice(&header.to_bytes());
        write(&self.frame[..self.len]);
        self.len = 0;
    }

    /// Completes the headers of a joined packet.
    fn join(&mut self) -> Header {
        let (ip, transport) = self.frame[LEN..self.len].split_at_mut(IP_HEADER);
        let len = u16::try_from(transport.len()).unwrap_or(u16::MAX);
        let total = u16::try_from(transport.len() + IP_HEADER).unwrap_or(u16::MAX);
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        set_ipv4(ip);
        let protocol = self.flow.protocol;
        let (kind, offset) = if protocol == PROTOCOL_TCP {
            (offload::TCP, 16)
        } else {
            transport[4..6].copy_from_slice(&len.to_be_bytes());
            (offload::UDP, 6)
        };
        // The kernel adds the rest of the sum when it splits or verifies the packet.
        let sum = Sum::pseudo(&ip[12..16], &ip[16..20], protocol, len).fold();
        transport[offset..offset + 2].copy_from_slice(&sum);
        Header {
            flags: offload::NEEDS_CHECKSUM,
            kind,
            header_len: u16::try_from(self.headers_len).unwrap_or(u16::MAX),
            segment: u16::try_from(self.segment).unwrap_or(u16::MAX),
            checksum_start: 20,
            checksum_offset: if protocol == PROTOCOL_TCP { 16 } else { 6 },
        }
    }
}

fn add(sequence: u32, len: usize) -> u32 {
    sequence.wrapping_add(u32::try_from(len).unwrap_or(0))
}

/// Recognises a packet of a TCP or UDP flow; `None` if it can be written in any order.
fn inspect(packet: &[u8], udp: bool) -> Option<Inspected> {
    let ip: &[u8; IP_HEADER] = packet.first_chunk()?;
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0;
    // Options of IPv4 and fragments are rare, and the kernel joins neither.
    if ip[0] != 0x45 || fragment || total != packet.len() {
        return None;
    }
    let transport = &packet[IP_HEADER..];
    let (transport_len, sequence, flags) = match ip[9] {
        PROTOCOL_TCP => {
            let tcp: &[u8; 20] = transport.first_chunk()?;
            let len = usize::from(tcp[12] >> 4) * 4;
            let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
            (len, sequence, tcp[13])
        }
        PROTOCOL_UDP if udp => (UDP_HEADER, 0, ACK),
        _ => return None,
    };
    let flow = Flow {
        addresses: *packet[12..].first_chunk()?,
        ports: *transport.first_chunk()?,
        protocol: ip[9],
    };
    let plain = flags & !PSH == ACK
        && transport_len
            >= if flow.protocol == PROTOCOL_TCP {
                20
            } else {
                UDP_HEADER
            }
        && transport.len() > transport_len;
    Some(Inspected {
        flow,
        headers_len: IP_HEADER + transport_len,
        sequence,
        joinable: plain && is_intact(ip, transport, flow.protocol),
        pushed: flags & PSH != 0,
    })
}

/// Whether both checksums are right, and the length of a datagram is that of its packet.
fn is_intact(ip: &[u8; IP_HEADER], transport: &[u8], protocol: u8) -> bool {
    let len = u16::try_from(transport.len()).unwrap_or(u16::MAX);
    if protocol == PROTOCOL_UDP
        && (transport[4..6] != len.to_be_bytes() || transport[6..8] == [0, 0])
    {
        return false;
    }
    let sum = Sum::pseudo(&ip[12..16], &ip[16..20], protocol, len).add(transport);
    sum.is_valid() && Sum::default().add(ip).is_valid()
}

#[cfg(test)]
mod tests;
