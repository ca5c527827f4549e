use hickory_proto::{
    op::{Message, OpCode, Query, ResponseCode},
    rr::{Record, RecordData as _, RecordType, rdata::TXT},
};
use proptest::prelude::*;

use super::*;
use crate::network::dns::{
    testing::{address, edns, name, query, relayed, reply, request, written},
    wire::answers,
};

fn decoded(bytes: &[u8]) -> Message {
    Message::from_vec(bytes).unwrap()
}

fn many(count: usize) -> Vec<Ipv4Addr> {
    let numbers = 0..u32::try_from(count).unwrap();
    numbers.map(|n| Ipv4Addr::from(0x0af4_0000 + n)).collect()
}

#[test]
fn service_answer_has_addresses_and_flags() {
    let mut asked = query("WeB.jaco.internal", RecordType::A);
    asked.set_edns(edns(4096));
    let request = request(&asked, Transport::Udp);
    let answer = decoded(&written(|answer| request.addresses(&many(2), answer)));
    assert_eq!(answer.metadata.id, asked.metadata.id);
    assert!(answer.metadata.authoritative && answer.metadata.recursion_available);
    assert!(answer.metadata.recursion_desired && !answer.metadata.truncation);
    // Names compare without case, so the text is compared.
    assert_eq!(answer.queries[0].name().to_string(), "WeB.jaco.internal.");
    assert_eq!(answer.answers.len(), 2);
    assert!(answer.answers.iter().all(|record| record.ttl == TTL));
    assert_eq!(answer.edns.unwrap().max_payload(), MAX_PAYLOAD);
}

#[test]
fn answers_without_records_keep_their_code() {
    let asked = query("web", RecordType::AAAA);
    let asked = request(&asked, Transport::Udp);
    for (bytes, code, authoritative) in [
        (written(|to| asked.no_data(to)), ResponseCode::NoError, true),
        (
            written(|to| asked.nx_domain(to)),
            ResponseCode::NXDomain,
            true,
        ),
        (
            written(|to| asked.refused(to)),
            ResponseCode::Refused,
            false,
        ),
        (
            written(|to| asked.server_failure(to)),
            ResponseCode::ServFail,
            false,
        ),
    ] {
        let answer = decoded(&bytes);
        assert_eq!(answer.metadata.response_code, code);
        assert_eq!(answer.metadata.authoritative, authoritative);
        assert!(answer.answers.is_empty() && answer.edns.is_none());
    }
}

#[test]
fn large_answers_are_truncated_to_the_payload() {
    for (payload, transport, limit, complete) in [
        (None, Transport::Udp, 512, false),
        (Some(100), Transport::Udp, 512, false),
        (Some(900), Transport::Udp, 900, false),
        (Some(4096), Transport::Udp, 1232, false),
        (None, Transport::Tcp, 65535, true),
    ] {
        let mut asked = query("web", RecordType::A);
        if let Some(payload) = payload {
            asked.set_edns(edns(payload));
        }
        let asked = request(&asked, transport);
        let bytes = written(|answer| asked.addresses(&many(200), answer));
        assert!(bytes.len() <= limit, "{payload:?}: {}", bytes.len());
        assert!(complete || bytes.len() + ADDRESS_RECORD > limit);
        let answer = decoded(&bytes);
        assert_eq!(answer.metadata.truncation, !complete);
        assert_eq!(answer.answers.len() == 200, complete);

        let records = (0..200).map(|n| address("web", 60, n)).collect();
        let upstream = reply(&query("web", RecordType::A), ResponseCode::NoError, records);
        let bytes = written(|answer| asked.relay(&relayed(&upstream), 0, answer));
        assert!(bytes.len() <= limit);
        let relayed = decoded(&bytes);
        assert_eq!(relayed.metadata.truncation, !complete);
        assert_eq!(relayed.answers.len(), if complete { 200 } else { 0 });
        assert_eq!(relayed.edns.is_some(), payload.is_some());
    }
}

#[test]
fn unsupported_messages_are_rejected() {
    let rejected =
        |message: &Message| match Request::read(&message.to_vec().unwrap(), Transport::Udp) {
            Err(Unreadable::Rejected(bytes)) => decoded(&bytes),
            other @ (Ok(_) | Err(Unreadable::Ignored)) => panic!("{other:?}"),
        };
    let read = |message: &Message| rejected(message).metadata.response_code;
    let mut status = query("web", RecordType::A);
    status.metadata.op_code = OpCode::Notify;
    assert_eq!(read(&status), ResponseCode::NotImp);
    let mut none = query("web", RecordType::A);
    none.queries.clear();
    assert_eq!(read(&none), ResponseCode::FormErr);
    let mut two = query("web", RecordType::A);
    two.add_query(Query::query(name("db"), RecordType::A));
    assert_eq!(read(&two), ResponseCode::FormErr);
    let mut version = query("web", RecordType::A);
    version
        .set_edns(edns(1232))
        .edns
        .as_mut()
        .unwrap()
        .set_version(1);
    assert_eq!(rejected(&version).edns.unwrap().rcode_high(), 1);
    let mut edns_twice = version.to_vec().unwrap();
    edns_twice[HEADER - 1] = 2;
    edns_twice.extend(opt(512, 0, false));
    let Err(Unreadable::Rejected(answer)) = Request::read(&edns_twice, Transport::Udp) else {
        panic!("accepted")
    };
    assert_eq!(
        decoded(&answer).metadata.response_code,
        ResponseCode::FormErr
    );
    for ignored in [
        &[0; 11][..],
        &query("a", RecordType::A).into_response().to_vec().unwrap(),
    ] {
        let read = Request::read(ignored, Transport::Udp);
        assert!(matches!(read, Err(Unreadable::Ignored)), "{read:?}");
    }
}

#[test]
fn relayed_answer_differs_in_hop_fields_only() {
    let mut asked = query("wWw.Example", RecordType::A);
    asked.set_edns(edns(512));
    let asked = request(&asked, Transport::Udp);
    let sent = asked.upstream_query(7, true);
    let mut upstream = reply(
        &decoded(&sent),
        ResponseCode::NXDomain,
        vec![address("wWw.Example", 1_234_567, 9)],
    );
    upstream.metadata.authoritative = true;
    upstream.metadata.recursion_available = false;
    upstream.add_additional(Record::from_rdata(
        name("x.example"),
        77,
        TXT::new(vec!["text".to_owned()]).into_rdata(),
    ));
    let mut bytes = upstream.to_vec().unwrap();
    assert!(answers(&sent, &bytes));
    bytes.extend(b"garbage");
    let kept = Relayed::of(&bytes).unwrap();
    let relayed = decoded(&written(|answer| asked.relay(&kept, 0, answer)));
    assert_eq!(relayed.metadata.id, 0x1234);
    assert!(!relayed.metadata.authoritative && relayed.metadata.recursion_available);
    assert_eq!(relayed.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(relayed.answers, upstream.answers);
    assert_eq!(relayed.additionals, upstream.additionals);
    assert_eq!(relayed.edns.unwrap().max_payload(), MAX_PAYLOAD);
}

#[test]
fn records_of_unknown_types_are_relayed_unchanged() {
    let asked = request(
        &query("a.example", RecordType::Unknown(65_280)),
        Transport::Udp,
    );
    let mut bytes = asked.upstream_query(1, false);
    bytes[2] |= QR;
    bytes[7] = 1;
    let record = [
        &[0xc0, 12, 0xff, 0, 0, 1, 0, 0, 0, 60, 0, 3][..],
        b"\xff\xc0\x00",
    ]
    .concat();
    bytes.extend(&record);
    let kept = Relayed::of(&bytes).unwrap();
    let relayed = written(|answer| asked.relay(&kept, 0, answer));
    assert!(relayed.ends_with(&record));
}

#[test]
fn only_upstream_fields_are_forwarded() {
    let mut asked = query("a.example", RecordType::MX);
    asked.metadata.checking_disabled = true;
    let mut client = edns(4096);
    client.set_dnssec_ok(true);
    client
        .options_mut()
        .insert(hickory_proto::rr::rdata::opt::EdnsOption::Unknown(
            10,
            vec![1; 8],
        ));
    asked.set_edns(client);
    let asked_twice = [
        request(&asked, Transport::Udp),
        request(&query("a.example", RecordType::MX), Transport::Udp),
    ];
    let without = decoded(&asked_twice[1].upstream_query(1, false));
    assert!(without.edns.is_none());
    let plain = decoded(&asked_twice[1].upstream_query(1, true));
    assert!(
        !plain.edns.unwrap().flags().dnssec_ok,
        "servers get a record in any case"
    );
    let sent = decoded(&asked_twice[0].upstream_query(99, true));
    assert_eq!(sent.metadata.id, 99);
    assert!(sent.metadata.recursion_desired && sent.metadata.checking_disabled);
    assert_eq!(sent.queries, asked.queries);
    let sent = sent.edns.unwrap();
    assert!(sent.flags().dnssec_ok && sent.options().as_ref().is_empty());
    assert_eq!(sent.max_payload(), MAX_PAYLOAD);
}

#[test]
fn cache_keys_ignore_case_only() {
    let key = |text: &str, kind, change: &dyn Fn(&mut Message)| {
        let mut message = query(text, kind);
        change(&mut message);
        request(&message, Transport::Udp)
            .cache_key()
            .as_ref()
            .to_vec()
    };
    let same = |_: &mut Message| {};
    let base = key("www.example", RecordType::A, &same);
    assert_eq!(key("WWW.example", RecordType::A, &same), base);
    // Type 97 is 65 with another case.
    assert_ne!(
        key("www.example", RecordType::Unknown(97), &same),
        key("www.example", RecordType::HTTPS, &same)
    );
    let others = [
        key("ww.example", RecordType::A, &same),
        key("www.example", RecordType::AAAA, &same),
        key("www.example", RecordType::A, &|m| {
            m.metadata.checking_disabled = true
        }),
        key("www.example", RecordType::A, &|m| {
            m.metadata.recursion_desired = false
        }),
        key("www.example", RecordType::A, &|m| {
            m.set_edns(edns(512))
                .edns
                .as_mut()
                .unwrap()
                .set_dnssec_ok(true);
        }),
    ];
    assert!(others.iter().all(|other| *other != base));
    // The answer without the server's record is the same for clients with and without EDNS.
    let with_edns = key("www.example", RecordType::A, &|m| m.edns = Some(edns(512)));
    assert_eq!(with_edns, base);
}

proptest! {
    #[test]
    fn malformed_messages_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), cut in 0..100_usize) {
        let mut asked = query("www.example", RecordType::A);
        asked.set_edns(edns(1232));
        let whole = asked.to_vec().unwrap();
        let mut mixed = whole[..cut.min(whole.len())].to_vec();
        mixed.extend(&bytes);
        for message in [&bytes, &mixed] {
            for transport in [Transport::Udp, Transport::Tcp] {
                if let Ok(request) = Request::read(message, transport) {
                    decoded(&written(|answer| request.addresses(&many(3), answer)));
                    decoded(&written(|answer| request.nx_domain(answer)));
                    if let Some(reply) = Relayed::of(&mixed) {
                        let relayed = written(|answer| request.relay(&reply, 1, answer));
                        prop_assert!(relayed.len() <= request.limit());
                    }
                }
            }
        }
    }
}
