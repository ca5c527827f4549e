//! Messages for tests, made by an independent codec.

use std::net::Ipv4Addr;

use hickory_proto::{
    op::{Edns, Message, MessageType, OpCode, Query, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, CNAME, SOA},
    },
};

use super::{
    message::{Request, Transport},
    relay::Relayed,
};

pub(super) fn name(text: &str) -> Name {
    let mut name = Name::from_ascii(text).unwrap(); // keeps the case
    name.set_fqdn(true);
    name
}

pub(super) fn query(text: &str, kind: RecordType) -> Message {
    let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name(text), kind));
    message
}

pub(super) fn edns(payload: u16) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(payload);
    edns
}

pub(super) fn request(message: &Message, transport: Transport) -> Request {
    Request::read(&message.to_vec().unwrap(), transport).unwrap()
}

/// The message that `write` makes.
pub(super) fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut message = vec![1, 2, 3]; // of an earlier answer
    write(&mut message);
    message
}

pub(super) fn relayed(message: &Message) -> Relayed {
    Relayed::of(&message.to_vec().unwrap()).unwrap()
}

/// An answer of an upstream server to `query`.
pub(super) fn reply(query: &Message, code: ResponseCode, answers: Vec<Record>) -> Message {
    let mut message = query.clone().into_response();
    message.metadata.response_code = code;
    message.metadata.recursion_available = true;
    message.add_answers(answers);
    message
}

pub(super) fn address(text: &str, ttl: u32, last: u8) -> Record {
    let address = Ipv4Addr::new(192, 0, 2, last);
    Record::from_rdata(name(text), ttl, RData::A(A(address)))
}

pub(super) fn alias(text: &str, ttl: u32, target: &str) -> Record {
    Record::from_rdata(name(text), ttl, RData::CNAME(CNAME(name(target))))
}

pub(super) fn authority(ttl: u32, minimum: u32) -> Record {
    let soa = SOA::new(
        name("ns.example"),
        name("admin.example"),
        1,
        2,
        3,
        4,
        minimum,
    );
    Record::from_rdata(name("example"), ttl, RData::SOA(soa))
}
