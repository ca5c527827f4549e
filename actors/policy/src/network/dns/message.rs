//! Queries of clients, and this node's own answers.

use std::net::Ipv4Addr;

use hickory_proto::{
    op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode},
    rr::{DNSClass, RData, Record, RecordType, rdata::A},
};

use super::wire::{
    self, AD, CD, HEADER, Layout, MAX_PAYLOAD, OPT, QR, RD, Section, TC, mark_relayed, opt,
    put_u16, question,
};

/// Time to live of the addresses of a service, in seconds.
pub const TTL: u32 = 5;
/// Bytes of an address record whose name is a pointer.
const ADDRESS_RECORD: usize = 16;
/// Length of an EDNS record without options.
const EDNS_RECORD: usize = 11;
/// Largest answer in a datagram to a client without EDNS (RFC 1035 section 4.2.1).
const PLAIN_PAYLOAD: u16 = 512;

/// Transport of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// One datagram.
    Udp,
    /// A message on a connection.
    Tcp,
}

/// A message of a client.
#[derive(Clone, Debug)]
pub enum Received {
    /// A query.
    Query(Box<Request>),
    /// An unsupported or malformed message; the answer says so.
    Rejected(Vec<u8>),
    /// No request at all.
    Ignored,
}

/// A query of a client.
#[derive(Clone, Debug)]
pub struct Request {
    metadata: Metadata,
    query: Query,
    /// The question as it was received.
    question: Vec<u8>,
    edns: Option<ClientEdns>,
    transport: Transport,
}

#[derive(Clone, Copy, Debug)]
struct ClientEdns {
    payload: u16,
    dnssec_ok: bool,
}

impl Received {
    /// Reads one message that arrived over `transport`.
    #[must_use]
    pub fn read(message: &[u8], transport: Transport) -> Self {
        let Some(header) = message.first_chunk::<HEADER>() else {
            return Self::Ignored;
        };
        if header[2] & QR != 0 {
            return Self::Ignored;
        }
        let rejected = |code| Self::Rejected(bare(header, code));
        if header[2] & 0x78 != 0 {
            return rejected(ResponseCode::NotImp);
        }
        let Some((question, decoded)) = question(message).zip(Message::from_vec(message).ok())
        else {
            return rejected(ResponseCode::FormErr);
        };
        let (1, Some(query)) = (decoded.queries.len(), decoded.queries.first()) else {
            return rejected(ResponseCode::FormErr);
        };
        let edns = decoded.edns.as_ref();
        let request = Request {
            metadata: decoded.metadata,
            query: query.clone(),
            question: question.to_vec(),
            edns: edns.map(|edns| ClientEdns {
                payload: edns.max_payload(),
                dnssec_ok: edns.flags().dnssec_ok,
            }),
            transport,
        };
        if edns.is_some_and(|edns| edns.version() > 0) {
            return Self::Rejected(request.bad_version());
        }
        Self::Query(Box::new(request))
    }
}

impl Request {
    /// Labels of the name, without the root.
    pub fn labels(&self) -> impl Iterator<Item = &[u8]> {
        self.query.name().iter()
    }

    /// Whether addresses are requested.
    #[must_use]
    pub fn asks_addresses(&self) -> bool {
        self.query.query_type() == RecordType::A
            && matches!(self.query.query_class(), DNSClass::IN | DNSClass::ANY)
    }

    /// Whether a whole zone is requested, which takes more than one answer.
    #[must_use]
    pub fn is_transfer(&self) -> bool {
        matches!(self.query.query_type(), RecordType::AXFR | RecordType::IXFR)
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

    /// Answers with addresses, as many as fit; the truncation bit is set if some do not. A client
    /// that ignores the bit has at least those.
    #[must_use]
    pub fn addresses(&self, addresses: &[Ipv4Addr]) -> Vec<u8> {
        let edns = self.edns.map_or(0, |_| EDNS_RECORD);
        let room = self
            .limit()
            .saturating_sub(HEADER + self.question.len() + edns);
        let fitting = addresses.len().min(room / ADDRESS_RECORD);
        let mut message = self.response(ResponseCode::NoError);
        message.metadata.authoritative = true;
        message.metadata.truncation = fitting < addresses.len();
        for address in addresses.iter().take(fitting) {
            let data = RData::A(A(*address));
            message.add_answer(Record::from_rdata(self.query.name().clone(), TTL, data));
        }
        self.encode(&message)
    }

    /// Answers that the name has no records of the requested type.
    #[must_use]
    pub fn no_data(&self) -> Vec<u8> {
        self.authoritative(ResponseCode::NoError)
    }

    /// Answers that the name does not exist.
    #[must_use]
    pub fn nx_domain(&self) -> Vec<u8> {
        self.authoritative(ResponseCode::NXDomain)
    }

    /// Answers that the name does not exist here, without authority: the engine's resolver, which
    /// has one server per network of a container, asks the next one only then.
    #[must_use]
    pub fn elsewhere(&self) -> Vec<u8> {
        self.encode(&self.response(ResponseCode::NXDomain))
    }

    /// Answers that the query is not answered here.
    #[must_use]
    pub fn refused(&self) -> Vec<u8> {
        self.encode(&self.response(ResponseCode::Refused))
    }

    /// Answers that no upstream server answered. Unlike NXDOMAIN, this is not cached.
    #[must_use]
    pub fn server_failure(&self) -> Vec<u8> {
        self.encode(&self.response(ResponseCode::ServFail))
    }

    /// The query for an upstream server: the same question and flags under another id. EDNS is
    /// hop-by-hop (RFC 6891 section 6.1.1): the record is this node's own, without the client's
    /// options.
    #[must_use]
    pub fn upstream_query(&self, id: u16) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER + self.question.len() + EDNS_RECORD);
        message.extend(id.to_be_bytes());
        message.extend(self.flags());
        message.extend([0, 1, 0, 0, 0, 0, 0, u8::from(self.edns.is_some())]);
        message.extend(&self.question);
        if let Some(edns) = self.edns {
            message.extend(opt(MAX_PAYLOAD, 0, edns.dnssec_ok));
        }
        message
    }

    /// Identity of the answer in a cache: the question without its case, and all that an answer
    /// may depend on.
    #[must_use]
    pub fn cache_key(&self) -> Vec<u8> {
        let mut key = self.question.to_ascii_lowercase();
        if let [.., a, b, c, d] = self.question[..] {
            // Type and class are no letters.
            let at = key.len() - 4;
            key[at..].copy_from_slice(&[a, b, c, d]);
        }
        let edns = self.edns.map_or(0, |edns| 1 + u8::from(edns.dnssec_ok));
        key.extend(self.flags());
        key.push(edns);
        key
    }

    /// Makes the answer for the client of an upstream answer to the same question: type, code and
    /// records stay as they are, except that the name is in the client's case.
    #[must_use]
    pub fn relay(&self, reply: &[u8]) -> Vec<u8> {
        let Some(layout) = Layout::parse(reply) else {
            return self.server_failure();
        };
        let mut message = reply[..layout.end].to_vec();
        let end = HEADER + self.question.len();
        let has_question = question(&message).is_some_and(|old| old.len() == self.question.len());
        if !has_question {
            return self.server_failure();
        }
        put_u16(&mut message, 0, self.metadata.id);
        message[HEADER..end].copy_from_slice(&self.question);
        mark_relayed(&mut message);
        self.put_edns(&mut message, &layout);
        if message.len() > self.limit() {
            message.truncate(end);
            message[2] |= TC;
            message[6..HEADER].fill(0);
            if let Some(edns) = self.edns {
                message.extend(opt(MAX_PAYLOAD, 0, edns.dnssec_ok));
                message[HEADER - 1] = 1;
            }
        }
        message
    }

    /// Replaces the payload size of the server's EDNS record by this node's, or adds a record if
    /// the client expects one.
    fn put_edns(&self, message: &mut Vec<u8>, layout: &Layout) {
        let mut records = layout.records.iter();
        let is_opt =
            |record: &&wire::RecordAt| record.kind == OPT && record.section == Section::Additional;
        match (self.edns, records.find(is_opt)) {
            (_, Some(record)) => put_u16(message, record.class_at, MAX_PAYLOAD),
            (Some(edns), None) => {
                let count = wire::u16_at(message, HEADER - 2).and_then(|n| n.checked_add(1));
                if let Some(count) = count {
                    put_u16(message, HEADER - 2, count);
                    message.extend(opt(MAX_PAYLOAD, 0, edns.dnssec_ok));
                }
            }
            (None, None) => {}
        }
    }

    /// Header flags that are forwarded.
    fn flags(&self) -> [u8; 2] {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        [
            bit(self.metadata.recursion_desired, RD),
            bit(self.metadata.authentic_data, AD) | bit(self.metadata.checking_disabled, CD),
        ]
    }

    fn response(&self, code: ResponseCode) -> Message {
        let mut metadata = Metadata::response_from_request(&self.metadata);
        metadata.recursion_available = true;
        metadata.response_code = code;
        let mut message = Message::new(metadata.id, MessageType::Response, OpCode::Query);
        message.metadata = metadata;
        message.add_query(self.query.clone());
        if let Some(edns) = self.edns {
            let mut own = Edns::new();
            own.set_max_payload(MAX_PAYLOAD)
                .set_dnssec_ok(edns.dnssec_ok);
            message.set_edns(own);
        }
        message
    }

    fn authoritative(&self, code: ResponseCode) -> Vec<u8> {
        let mut message = self.response(code);
        message.metadata.authoritative = true;
        self.encode(&message)
    }

    /// Answers that the version of EDNS is not supported (RFC 6891 section 6.1.3).
    fn bad_version(&self) -> Vec<u8> {
        let mut message = self.response(ResponseCode::NoError);
        message.edns = None;
        let mut bytes = self.encode(&message);
        put_u16(&mut bytes, HEADER - 2, 1);
        bytes.extend(opt(MAX_PAYLOAD, 1, false));
        bytes
    }

    fn encode(&self, message: &Message) -> Vec<u8> {
        message.to_vec().unwrap_or_else(|_| {
            let mut header = [0; HEADER];
            put_u16(&mut header, 0, self.metadata.id);
            bare(&header, ResponseCode::ServFail)
        })
    }
}

/// An answer that consists of a header, for requests that cannot be decoded.
fn bare(request: &[u8; HEADER], code: ResponseCode) -> Vec<u8> {
    let mut answer = vec![0; HEADER];
    answer[..2].copy_from_slice(&request[..2]);
    answer[2] = QR | request[2] & (0x78 | RD);
    answer[3] = wire::RA | code.low();
    answer
}

#[cfg(test)]
mod tests;
