//! Splits the large segments that the kernel hands over into packets that fit the MTU.

use super::{
    checksum::{Sum, set_ipv4},
    offload::{self, Header},
};

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
const UDP_HEADER: usize = 8;
/// Longest headers of an IPv4 TCP segment, with all options.
const MAX_HEADERS: usize = 60 + 60;
const FIN_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;

/// The frame contradicts itself; only a defect of the kernel makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// The packets of one frame, made one after the other.
///
/// A packet is made in place: its headers are written over the end of the packet before it, which
/// the caller has used by then, so no payload is copied.
#[derive(Debug)]
pub(super) struct Segments<'a> {
    packet: &'a mut [u8],
    headers: [u8; MAX_HEADERS],
    /// Bytes of IPv4 header; 0 if the packet is whole.
    ip_len: usize,
    /// Bytes of all headers.
    headers_len: usize,
    protocol: u8,
    segment: usize,
    /// Payload that was handed out.
    done: usize,
    count: u16,
    finished: bool,
}

/// Prepares to split a packet of the interface, and completes its checksum if it is whole.
pub(super) fn split(header: Header, packet: &mut [u8]) -> Result<Segments<'_>, Malformed> {
    let mut segments = Segments {
        packet,
        headers: [0; MAX_HEADERS],
        ip_len: 0,
        headers_len: 0,
        protocol: 0,
        segment: usize::from(header.segment),
        done: 0,
        count: 0,
        finished: false,
    };
    match header.kind {
        0 if header.flags & offload::NEEDS_CHECKSUM == 0 => {}
        0 => complete_checksum(header, segments.packet)?,
        offload::TCP => segments.parse(PROTOCOL_TCP)?,
        offload::UDP => segments.parse(PROTOCOL_UDP)?,
        _ => return Err(Malformed),
    }
    Ok(segments)
}

fn complete_checksum(header: Header, packet: &mut [u8]) -> Result<(), Malformed> {
    let start = usize::from(header.checksum_start);
    let field = start + usize::from(header.checksum_offset);
    // The field holds the sum of the pseudo header, so it takes part in the sum.
    let sum = Sum::default().add(packet.get(start..).ok_or(Malformed)?);
    let field = packet.get_mut(field..field + 2).ok_or(Malformed)?;
    let mut checksum = sum.checksum();
    if checksum == [0, 0] {
        checksum = [0xff, 0xff]; // zero means "no checksum" in UDP
    }
    field.copy_from_slice(&checksum);
    Ok(())
}

impl Segments<'_> {
    fn parse(&mut self, protocol: u8) -> Result<(), Malformed> {
        let packet = &*self.packet;
        let first = *packet.first().ok_or(Malformed)?;
        let ip_len = usize::from(first & 0x0f) * 4;
        let transport = packet.get(ip_len..).ok_or(Malformed)?;
        if first >> 4 != 4 || ip_len < 20 || packet[9] != protocol || self.segment == 0 {
            return Err(Malformed);
        }
        let transport_len = if protocol == PROTOCOL_TCP {
            usize::from(transport.get(12).ok_or(Malformed)? >> 4) * 4
        } else {
            UDP_HEADER
        };
        let shortest = if protocol == PROTOCOL_TCP {
            20
        } else {
            UDP_HEADER
        };
        if transport_len < shortest || transport.len() <= transport_len {
            return Err(Malformed);
        }
        self.ip_len = ip_len;
        self.headers_len = ip_len + transport_len;
        self.protocol = protocol;
        let headers_len = self.headers_len;
        self.headers[..headers_len].copy_from_slice(&self.packet[..headers_len]);
        Ok(())
    }

    /// The next packet, complete with checksums.
    pub(super) fn next(&mut self) -> Option<&mut [u8]> {
        if self.finished {
            return None;
        }
        if self.headers_len == 0 {
            self.finished = true;
            return Some(self.packet);
        }
        let payload = (self.packet.len() - self.headers_len - self.done).min(self.segment);
        let last = self.done + payload == self.packet.len() - self.headers_len;
        let end = self.done + self.headers_len + payload;
        let packet = &mut self.packet[self.done..end];
        packet[..self.headers_len].copy_from_slice(&self.headers[..self.headers_len]);
        let (ip, transport) = packet.split_at_mut(self.ip_len);
        write_ip(ip, transport.len(), self.count);
        if self.protocol == PROTOCOL_TCP {
            write_tcp(transport, self.done, self.count == 0, last);
        } else {
            let len = u16::try_from(transport.len()).unwrap_or(u16::MAX);
            transport[4..6].copy_from_slice(&len.to_be_bytes());
        }
        write_checksum(ip, transport, self.protocol);
        self.done += payload;
        self.count = self.count.wrapping_add(1);
        self.finished = last;
        Some(&mut self.packet[end - payload - self.headers_len..end])
    }
}

fn write_ip(ip: &mut [u8], payload: usize, count: u16) {
    let total = u16::try_from(ip.len() + payload).unwrap_or(u16::MAX);
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(count);
    ip[4..6].copy_from_slice(&id.to_be_bytes());
    set_ipv4(ip);
}

fn write_tcp(tcp: &mut [u8], offset: usize, first: bool, last: bool) {
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let sequence = sequence.wrapping_add(u32::try_from(offset).unwrap_or(0));
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    if !last {
        tcp[13] &= !FIN_PSH;
    }
    if !first {
        tcp[13] &= !CWR;
    }
}

/// Writes the checksum of a TCP segment or UDP datagram.
fn write_checksum(ip: &[u8], transport: &mut [u8], protocol: u8) {
    let len = u16::try_from(transport.len()).unwrap_or(u16::MAX);
    let at = if protocol == PROTOCOL_TCP { 16 } else { 6 };
    transport[at..at + 2].fill(0);
    let sum = Sum::pseudo(&ip[12..16], &ip[16..20], protocol, len).add(transport);
    let mut checksum = sum.checksum();
    if checksum == [0, 0] && protocol == PROTOCOL_UDP {
        checksum = [0xff, 0xff]; // zero means "no checksum"
    }
    transport[at..at + 2].copy_from_slice(&checksum);
}

#[cfg(test)]
pub(super) mod tests;
