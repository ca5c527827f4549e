//! Answers of upstream servers as bytes.
//!
//! A forwarder relays every record type, also those it does not know. Answers are therefore neither
//! decoded nor encoded again: this module finds the parts that a forwarder has to read or change
//! (question, codes, times to live, the EDNS record) and leaves every other byte as it is.
//!
//! Source: RFC 1035 section 4, RFC 6891 section 6.

use std::ops::Range;

/// Length of the header.
pub const HEADER: usize = 12;
/// Type of a start of authority.
const SOA: u16 = 6;
/// Type of the EDNS pseudo-record.
pub(super) const OPT: u16 = 41;
/// Largest datagram that this node accepts from servers and sends to clients; without
/// fragmentation on any path (the DNS flag day of 2020).
pub const MAX_PAYLOAD: u16 = 1232;

/// Header bits of byte 2.
pub(super) const QR: u8 = 0x80;
const OPCODE: u8 = 0x78;
const AA: u8 = 0x04;
pub(super) const TC: u8 = 0x02;
pub(super) const RD: u8 = 0x01;
/// Header bits of byte 3.
pub(super) const RA: u8 = 0x80;
pub(super) const AD: u8 = 0x20;
pub(super) const CD: u8 = 0x10;
const RCODE: u8 = 0x0f;

/// Section of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Answer,
    Authority,
    Additional,
}

/// Position of a record in its message.
#[derive(Clone, Debug)]
pub(super) struct RecordAt {
    pub(super) section: Section,
    pub(super) kind: u16,
    /// Offset of the class.
    pub(super) class_at: usize,
    /// Offset of the time to live.
    pub(super) ttl_at: usize,
    pub(super) data: Range<usize>,
}

impl RecordAt {
    /// The minimum of a start of authority: how long its zone's negative answers are valid.
    pub(super) fn soa_minimum(&self, message: &[u8]) -> Option<u32> {
        // Two names of at least one byte each, then five numbers.
        let is_soa = self.kind == SOA && self.data.len() >= 22;
        is_soa.then(|| u32_at(message, self.data.end - 4)).flatten()
    }
}

/// Records of a message, in order.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) records: Vec<RecordAt>,
    /// Length of the message without bytes after the last record.
    pub(super) end: usize,
}

impl Layout {
    /// Finds the records; `None` if the message is malformed or does not have one question.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        let mut at = HEADER + question(message)?.len();
        let mut records = Vec::new();
        let sections = [
            (6, Section::Answer),
            (8, Section::Authority),
            (10, Section::Additional),
        ];
        for (count_at, section) in sections {
            for _ in 0..u16_at(message, count_at)? {
                let class_at = skip_name(message, at)? + 2;
                let data_at = class_at + 8;
                let length = usize::from(u16_at(message, data_at - 2)?);
                let data = data_at..data_at + length;
                message.get(data.clone())?;
                at = data.end;
                records.push(RecordAt {
                    section,
                    kind: u16_at(message, class_at - 2)?,
                    class_at,
                    ttl_at: class_at + 2,
                    data,
                });
            }
        }
        Some(Self { records, end: at })
    }
}

/// The question of a message: name, type and class. `None` unless there is exactly one.
#[must_use]
pub fn question(message: &[u8]) -> Option<&[u8]> {
    if u16_at(message, 4)? != 1 {
        return None;
    }
    let mut at = HEADER;
    loop {
        match usize::from(*message.get(at)?) {
            0 => break,
            length @ 1..=63 => at += 1 + length,
            // A pointer: there is nothing before a question to point to.
            _ => return None,
        }
    }
    let name = HEADER..at + 1;
    (name.len() <= 255).then(|| message.get(HEADER..at + 5))?
}

/// Returns the offset after the name at `at`.
fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            // Targets lie before the pointer, so a chain of pointers ends.
            high @ 192.. => {
                let target = usize::from(high & 0x3f) << 8 | usize::from(*message.get(at + 1)?);
                return (target < at && target >= HEADER).then_some(at + 2);
            }
            64..=191 => return None,
        }
    }
}

pub(super) fn u16_at(message: &[u8], at: usize) -> Option<u16> {
    let bytes = message.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

pub(super) fn u32_at(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

pub(super) fn put_u16(message: &mut [u8], at: usize, value: u16) {
    if let Some(bytes) = message.get_mut(at..at + 2) {
        bytes.copy_from_slice(&value.to_be_bytes());
    }
}

pub(super) fn put_u32(message: &mut [u8], at: usize, value: u32) {
    if let Some(bytes) = message.get_mut(at..at + 4) {
        bytes.copy_from_slice(&value.to_be_bytes());
    }
}

/// The response code without its EDNS part, which no code of interest here has.
#[must_use]
pub fn response_code(message: &[u8]) -> Option<u8> {
    message.get(3).map(|flags| flags & RCODE)
}

/// Whether `reply` is the answer to `query`: same id, same question in the same case, and
/// well-formed. A forged answer has to guess the id and the port, and the case of the name where
/// the client randomises it.
///
/// Source: RFC 5452 section 9.1; draft-vixie-dnsext-dns0x20-00.
#[must_use]
pub fn answers(query: &[u8], reply: &[u8]) -> bool {
    let (Some(asked), Some(answered)) = (question(query), question(reply)) else {
        return false;
    };
    let is_answer = reply[2] & (QR | OPCODE) == QR;
    let same = query[..2] == reply[..2] && asked == answered;
    // A truncated answer is only a request to come back over TCP.
    is_answer && same && (reply[2] & TC != 0 || Layout::parse(reply).is_some())
}

/// Consequence of an upstream answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The answer is relayed.
    Final,
    /// The question must be repeated over TCP.
    Truncated,
    /// The server cannot answer; another one may.
    Failed,
}

/// Returns the consequence of an upstream answer.
#[must_use]
pub fn verdict(reply: &[u8]) -> Verdict {
    const SERVFAIL: u8 = 2;
    const NOTIMP: u8 = 4;
    const REFUSED: u8 = 5;
    match (response_code(reply), reply.get(2)) {
        (Some(SERVFAIL | NOTIMP | REFUSED), _) | (None, _) | (_, None) => Verdict::Failed,
        (Some(_), Some(flags)) if flags & TC != 0 => Verdict::Truncated,
        (Some(_), Some(_)) => Verdict::Final,
    }
}

/// Sets the bits of a relayed answer: recursion is available here, and this node is no authority
/// for it.
pub(super) fn mark_relayed(reply: &mut [u8]) {
    if let [_, _, high, low, ..] = reply {
        *high &= !AA;
        *low |= RA;
    }
}

/// An EDNS record without options.
pub(super) fn opt(payload: u16, extended_code: u8, dnssec_ok: bool) -> [u8; 11] {
    let [high, low] = payload.to_be_bytes();
    let dnssec_ok = if dnssec_ok { 0x80 } else { 0 };
    [0, 0, 41, high, low, extended_code, 0, dnssec_ok, 0, 0, 0]
}

#[cfg(test)]
mod tests;
