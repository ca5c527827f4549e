//! Queries of clients, and this node's own answers.
//!
//! Messages are composed byte by byte: a query of a service is answered without an allocation
//! besides the caller's buffer, and questions are returned in the case in which they came.

use std::net::Ipv4Addr;

use super::{
    relay::Relayed,
    wire::{
        self, AA, AD, CD, HEADER, MAX_PAYLOAD, OPT, OPT_RECORD, QR, RA, RD, Records, Section, TC,
        opt, put_u16, put_u32, question, u16_at, u32_at,
    },
};

/// Time to live of the addresses of a service, in seconds.
pub const TTL: u32 = 5;
/// Bytes of an address record whose name is a pointer.
const ADDRESS_RECORD: usize = 16;
/// Largest answer in a datagram to a client without EDNS (RFC 1035 section 4.2.1).
const PLAIN_PAYLOAD: u16 = 512;
/// Longest question: a name of 255 bytes, type and class.
const MAX_QUESTION: usize = 259;
/// Bit of a question's answer to DNSSEC in the key of the cache; no header flag has it.
const KEY_DNSSEC_OK: u8 = 0x40;

const TYPE_A: u16 = 1;
const TYPE_IXFR: u16 = 251;
const TYPE_AXFR: u16 = 252;
const CLASS_IN: u16 = 1;
const CLASS_ANY: u16 = 255;

/// Response codes (RFC 1035 section 4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    NoError = 0,
    FormErr = 1,
    ServFail = 2,
    NxDomain = 3,
    NotImp = 4,
    Refused = 5,
}

/// Transport of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// One datagram.
    Udp,
    /// A message on a connection.
    Tcp,
}

/// A message that is no query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// An unsupported or malformed message; the answer says so.
    Rejected(Vec<u8>),
    /// No request at all.
    Ignored,
}

/// A query of a client.
#[derive(Clone, Debug)]
pub struct Request {
    id: u16,
    /// Bytes 2 and 3 of the header.
    flags: [u8; 2],
    question: Question,
    edns: Option<ClientEdns>,
    transport: Transport,
}

/// A question as it was received.
#[derive(Clone, Debug)]
struct Question {
    bytes: [u8; MAX_QUESTION],
    length: usize,
}

#[derive(Clone, Copy, Debug)]
struct ClientEdns {
    payload: u16,
    dnssec_ok: bool,
}

/// Identity of a question in a cache.
#[derive(Clone, Debug)]
pub struct CacheKey {
    bytes: [u8; MAX_QUESTION + 2],
    length: usize,
}

impl AsRef<[u8]> for CacheKey {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Question {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn kind(&self) -> u16 {
        u16_at(self.bytes(), self.length - 4).unwrap_or(0)
    }

    fn class(&self) -> u16 {
        u16_at(self.bytes(), self.length - 2).unwrap_or(0)
    }
}

impl Request {
    /// Reads one message that arrived over `transport`.
    ///
    /// # Errors
    /// [`Unreadable`] if it is no query that this node supports.
    pub fn read(message: &[u8], transport: Transport) -> Result<Self, Unreadable> {
        let Some(header) = message.first_chunk::<HEADER>() else {
            return Err(Unreadable::Ignored);
        };
        if header[2] & QR != 0 {
            return Err(Unreadable::Ignored);
        }
        let rejected = |code| Unreadable::Rejected(bare(header, code));
        if header[2] & wire::OPCODE != 0 {
            return Err(rejected(Code::NotImp));
        }
        let malformed = || rejected(Code::FormErr);
        let received = question(message).ok_or_else(malformed)?;
        let mut bytes = [0; MAX_QUESTION];
        let length = received.len();
        bytes
            .get_mut(..length)
            .ok_or_else(malformed)?
            .copy_from_slice(received);
        let edns = client_edns(message, length).ok_or_else(malformed)?;
        let request = Self {
            id: u16::from_be_bytes([header[0], header[1]]),
            flags: [header[2], header[3]],
            question: Question { bytes, length },
            edns: edns.map(|(edns, _)| edns),
            transport,
        };
        if edns.is_some_and(|(_, version)| version > 0) {
            return Err(Unreadable::Rejected(request.bad_version()));
        }
        Ok(request)
    }

    /// Labels of the name, without the root.
    pub fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.question.bytes();
        std::iter::from_fn(move || {
            let (length, after) = rest.split_first().filter(|(length, _)| **length > 0)?;
            let (label, after) = after.split_at_checked(usize::from(*length))?;
            rest = after;
            Some(label)
        })
    }

    /// The name as it was received, with the lengths of its labels.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        let question = self.question.bytes();
        &question[..question.len() - 4]
    }

    /// Whether addresses are requested.
    #[must_use]
    pub fn asks_addresses(&self) -> bool {
        self.question.kind() == TYPE_A && matches!(self.question.class(), CLASS_IN | CLASS_ANY)
    }

    /// Whether a whole zone is requested, which takes more than one answer.
    #[must_use]
    pub fn is_transfer(&self) -> bool {
        matches!(self.question.kind(), TYPE_AXFR | TYPE_IXFR)
    }

    /// Largest answer that the client accepts.
    #[must_use]
    pub fn limit(&self) -> usize {
        let limit = match (self.transport, self.edns) {
            (Transport::Tcp, _) => u16::MAX,
            (Transport::Udp, None) => PLAIN_PAYLOAD,
            (Transport::Udp, Some(edns)) => edns.payload.clamp(PLAIN_PAYLOAD, MAX_PAYLOAD),
        };
        usize::from(limit)
    }

    /// Writes an answer with addresses, as many as fit; the truncation bit is set if some do not.
    /// A client that ignores the bit has at least those.
    pub fn addresses(&self, addresses: &[Ipv4Addr], answer: &mut Vec<u8>) {
        let edns = self.edns.map_or(0, |_| OPT_RECORD);
        let room = self
            .limit()
            .saturating_sub(HEADER + self.question.length + edns);
        let fitting = addresses.len().min(room / ADDRESS_RECORD);
        self.begin(Code::NoError, answer);
        answer[2] |= AA;
        if fitting < addresses.len() {
            answer[2] |= TC;
        }
        put_u16(answer, 6, u16::try_from(fitting).unwrap_or(u16::MAX));
        // The name is a pointer to the question.
        let mut record = [0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4];
        put_u32(&mut record, 6, TTL);
        for address in addresses.iter().take(fitting) {
            answer.extend(record);
            answer.extend(address.octets());
        }
        self.put_edns(answer);
    }

    /// Answers that the name has no records of the requested type.
    pub fn no_data(&self, answer: &mut Vec<u8>) {
        self.empty(Code::NoError, answer);
        answer[2] |= AA;
    }

    /// Answers that the name does not exist.
    pub fn nx_domain(&self, answer: &mut Vec<u8>) {
        self.empty(Code::NxDomain, answer);
        answer[2] |= AA;
    }

    /// Answers that the query is not answered here.
    pub fn refused(&self, answer: &mut Vec<u8>) {
        self.empty(Code::Refused, answer);
    }

    /// Answers that no upstream server answered, or that there are too many questions. Unlike
    /// NXDOMAIN, this is not cached.
    pub fn server_failure(&self, answer: &mut Vec<u8>) {
        self.empty(Code::ServFail, answer);
    }

    /// The query for an upstream server: the same question and flags under another id. EDNS is
    /// hop-by-hop (RFC 6891 section 6.1.1): the record is this node's own, whether the client sent
    /// one or not, and without its options. Servers that do not know EDNS are asked without.
    #[must_use]
    pub fn upstream_query(&self, id: u16, edns: bool) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER + self.question.length + OPT_RECORD);
        message.extend(id.to_be_bytes());
        message.extend(self.forwarded_flags());
        message.extend([0, 1, 0, 0, 0, 0, 0, u8::from(edns)]);
        message.extend(self.question.bytes());
        if edns {
            message.extend(opt(MAX_PAYLOAD, 0, self.is_dnssec_ok()));
        }
        message
    }

    /// Identity of the answer in a cache: the question without its case, and all that an answer
    /// may depend on.
    #[must_use]
    pub fn cache_key(&self) -> CacheKey {
        let length = self.question.length;
        let mut bytes = [0; MAX_QUESTION + 2];
        bytes[..length].copy_from_slice(self.question.bytes());
        // Type and class are no letters; lengths of labels are none either.
        bytes[..length - 4].make_ascii_lowercase();
        let [high, low] = self.forwarded_flags();
        let dnssec_ok = if self.is_dnssec_ok() {
            KEY_DNSSEC_OK
        } else {
            0
        };
        bytes[length] = high;
        bytes[length + 1] = low | dnssec_ok;
        CacheKey {
            bytes,
            length: length + 2,
        }
    }

    /// Writes the answer for the client of an upstream answer to the same question, `age` seconds
    /// after it arrived: type, code and records stay as they are, except that the name is in the
    /// client's case.
    pub fn relay(&self, reply: &Relayed, age: u32, answer: &mut Vec<u8>) {
        let end = HEADER + self.question.length;
        if reply.question_len() != self.question.length {
            return self.server_failure(answer);
        }
        reply.write(age, answer);
        put_u16(answer, 0, self.id);
        answer[HEADER..end].copy_from_slice(self.question.bytes());
        let edns = self.edns.map_or(0, |_| OPT_RECORD);
        if answer.len() + edns > self.limit() {
            answer.truncate(end);
            answer[2] |= TC;
            answer[6..HEADER].fill(0);
        }
        self.put_edns(answer);
    }

    /// Header flags that are forwarded.
    fn forwarded_flags(&self) -> [u8; 2] {
        [self.flags[0] & RD, self.flags[1] & (AD | CD)]
    }

    fn is_dnssec_ok(&self) -> bool {
        self.edns.is_some_and(|edns| edns.dnssec_ok)
    }

    /// Begins an answer: header and question.
    fn begin(&self, code: Code, answer: &mut Vec<u8>) {
        answer.clear();
        answer.extend(self.id.to_be_bytes());
        answer.push(QR | self.flags[0] & RD);
        answer.push(RA | self.flags[1] & CD | code as u8);
        answer.extend([0, 1, 0, 0, 0, 0, 0, 0]);
        answer.extend(self.question.bytes());
    }

    fn empty(&self, code: Code, answer: &mut Vec<u8>) {
        self.begin(code, answer);
        self.put_edns(answer);
    }

    /// Adds this node's EDNS record if the client sent one.
    fn put_edns(&self, answer: &mut Vec<u8>) {
        let count = u16_at(answer, HEADER - 2).and_then(|count| count.checked_add(1));
        if let (Some(edns), Some(count)) = (self.edns, count) {
            put_u16(answer, HEADER - 2, count);
            answer.extend(opt(MAX_PAYLOAD, 0, edns.dnssec_ok));
        }
    }

    /// Answers that the version of EDNS is not supported (RFC 6891 section 6.1.3).
    fn bad_version(&self) -> Vec<u8> {
        let mut answer = Vec::new();
        self.begin(Code::NoError, &mut answer);
        put_u16(&mut answer, HEADER - 2, 1);
        answer.extend(opt(MAX_PAYLOAD, 1, false));
        answer
    }
}

/// The client's EDNS record with its version. `None` if the records of the query are malformed, or
/// if it has several EDNS records (RFC 6891 section 6.1.1).
fn client_edns(message: &[u8], question: usize) -> Option<Option<(ClientEdns, u8)>> {
    let mut found = None;
    for record in Records::after(message, HEADER + question)? {
        let record = record?;
        if record.kind != OPT || record.section != Section::Additional {
            continue;
        }
        if found.is_some() || !record.is_root {
            return None;
        }
        let [_, version, high, _] = u32_at(message, record.ttl_at)?.to_be_bytes();
        let edns = ClientEdns {
            payload: u16_at(message, record.class_at)?,
            dnssec_ok: high & 0x80 != 0,
        };
        found = Some((edns, version));
    }
    Some(found)
}

/// An answer that consists of a header, for requests that cannot be decoded.
fn bare(request: &[u8; HEADER], code: Code) -> Vec<u8> {
    let mut answer = vec![0; HEADER];
    answer[..2].copy_from_slice(&request[..2]);
    answer[2] = QR | request[2] & (wire::OPCODE | RD);
    answer[3] = RA | code as u8;
    answer
}

#[cfg(test)]
mod tests;
