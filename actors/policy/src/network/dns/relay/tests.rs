use hickory_proto::{
    op::{Message, ResponseCode},
    rr::RecordType,
};

use super::*;
use crate::network::dns::testing::{address, edns, query, relayed, reply, written};

#[test]
fn edns_record_of_the_server_is_not_kept() {
    let asked = query("www.example", RecordType::A);
    let mut answer = reply(
        &asked,
        ResponseCode::NoError,
        vec![address("www.example", 60, 1)],
    );
    answer.add_additional(address("ns.example", 60, 2));
    let plain = answer.to_vec().unwrap();
    answer.set_edns(edns(4096));
    let bytes = written(|to| relayed(&answer).write(0, to));
    assert_eq!(bytes, plain);
}

#[test]
fn records_behind_the_edns_record_are_dropped() {
    let asked = query("www.example", RecordType::A);
    let records = vec![address("www.example", 60, 1)];
    let mut answer = reply(&asked, ResponseCode::NoError, records);
    let plain = answer.to_vec().unwrap();
    answer.set_edns(edns(4096));
    let mut bytes = answer.to_vec().unwrap();
    bytes.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 9]);
    bytes[HEADER - 1] = 2;
    assert_eq!(Message::from_vec(&bytes).unwrap().additionals.len(), 1);
    let kept = Relayed::of(&bytes).unwrap();
    assert_eq!(written(|to| kept.write(0, to)), plain);
}

#[test]
fn times_to_live_never_become_negative() {
    let asked = query("www.example", RecordType::A);
    let records = [90, 7].map(|ttl| address("www.example", ttl, 1)).into();
    let answer = relayed(&reply(&asked, ResponseCode::NoError, records));
    let later = Message::from_vec(&written(|to| answer.write(20, to))).unwrap();
    let ttls: Vec<_> = later.answers.iter().map(|record| record.ttl).collect();
    assert_eq!(ttls, [70, 0]);
}

#[test]
fn malformed_answers_are_not_relayed() {
    assert!(Relayed::of(b"garbage").is_none());
}
