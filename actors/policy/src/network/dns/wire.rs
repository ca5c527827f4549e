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
/// Length of an EDNS record without options.
pub(super) const OPT_RECORD: usize = 11;
/// Largest datagram that this node accepts from servers and sends to clients; without
/// fragmentation on any path (the DNS flag day of 2020).
pub const MAX_PAYLOAD: u16 = 1232;

/// Header bits of byte 2.
pub(super) const QR: u8 = 0x80;
pub(super) const OPCODE: u8 = 0x78;
pub(super) const AA: u8 = 0x04;
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
    /// Whether it belongs to the root.
    pub(super) is_root: bool,
    /// Offset of the record.
    pub(super) start: usize,
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

/// Iterates over the records of a message; ends after an item that is `None`, at which the message
/// is malformed.
#[derive(Clone, Debug)]
pub(super) struct Records<'a> {
    message: &'a [u8],
    /// Offset of the next record.
    at: usize,
    /// Records left in each section.
    left: [u16; 3],
}

impl<'a> Records<'a> {
    /// The records of `message`, the first of which begins at `at`. `None` without a header.
    pub(super) fn after(message: &'a [u8], at: usize) -> Option<Self> {
        let left = [
            u16_at(message, 6)?,
            u16_at(message, 8)?,
            u16_at(message, 10)?,
        ];
        Some(Self { message, at, left })
    }

    fn read(&mut self, section: Section) -> Option<RecordAt> {
        let (message, start) = (self.message, self.at);
        let class_at = skip_name(message, start)? + 2;
        let data_at = class_at + 8;
        let length = usize::from(u16_at(message, data_at - 2)?);
        let data = data_at..data_at + length;
        message.get(data.clone())?;
        self.at = data.end;
        Some(RecordAt {
            section,
            kind: u16_at(message, class_at - 2)?,
            is_root: class_at == start + 3,
            start,
            class_at,
            ttl_at: class_at + 2,
            data,
        })
    }
}

impl Iterator for Records<'_> {
    type Item = Option<RecordAt>;

    fn next(&mut self) -> Option<Self::Item> {
        let sections = [Section::Answer, Section::Authority, Section::Additional];
        let (section, left) = sections
            .into_iter()
            .zip(&mut self.left)
            .find(|(_, left)| **left > 0)?;
        *left -= 1;
        let record = self.read(section);
        if record.is_none() {
            self.left = [0; 3];
        }
        Some(record)
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
        let first = HEADER + question(message)?.len();
        let records: Vec<_> = Records::after(message, first)?.collect::<Option<_>>()?;
        let end = records.last().map_or(first, |record| record.data.end);
        Some(Self { records, end })
    }

    /// Number of records in a section.
    pub(super) fn count(&self, section: Section) -> usize {
        let records = self.records.iter();
        records.filter(|record| record.section == section).count()
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
    /// The question must be repeated without EDNS, which the server does not know.
    NoEdns,
    /// The server cannot answer; another one may.
    Failed,
}

/// Returns the consequence of the answer to a query with an EDNS record if `edns`.
///
/// A response code with an extended part is about the exchange between this node and the server,
/// such as a version or a cookie, so the server failed.
///
/// Source: RFC 6891 sections 6.1.3 and 7.
#[must_use]
pub fn verdict(reply: &[u8], edns: bool) -> Verdict {
    const FORMERR: u8 = 1;
    const SERVFAIL: u8 = 2;
    const NOTIMP: u8 = 4;
    const REFUSED: u8 = 5;
    let (Some(code), Some(flags)) = (response_code(reply), reply.get(2)) else {
        return Verdict::Failed;
    };
    let extended = extended_code(reply);
    match code {
        FORMERR | NOTIMP if edns && extended.is_none() => Verdict::NoEdns,
        SERVFAIL | NOTIMP | REFUSED => Verdict::Failed,
        _ if extended.is_some_and(|extended| extended > 0) => Verdict::Failed,
        _ if flags & TC != 0 => Verdict::Truncated,
        _ => Verdict::Final,
    }
}

/// The extended part of the response code; `None` without an EDNS record.
fn extended_code(reply: &[u8]) -> Option<u8> {
    let first = HEADER + question(reply)?.len();
    let records = Records::after(reply, first)?.flatten();
    let mut edns = records.filter(|record| record.kind == OPT);
    let [extended, ..] = u32_at(reply, edns.next()?.ttl_at)?.to_be_bytes();
    Some(extended)
}

/// An EDNS record without options.
pub(super) fn opt(payload: u16, extended_code: u8, dnssec_ok: bool) -> [u8; OPT_RECORD] {
    let [high, low] = payload.to_be_bytes();
    let dnssec_ok = if dnssec_ok { 0x80 } else { 0 };
    [0, 0, 41, high, low, extended_code, 0, dnssec_ok, 0, 0, 0]
}

#[cfg(test)]
mod tests;
