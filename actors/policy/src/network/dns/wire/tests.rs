use hickory_proto::{op::ResponseCode, rr::RecordType};

use super::*;
use crate::network::dns::testing::{address, alias, authority, query, reply};

fn answer() -> Vec<u8> {
    let asked = query("www.example", RecordType::A);
    let records = vec![
        alias("www.example", 60, "a.example"),
        address("a.example", 30, 1),
    ];
    let mut message = reply(&asked, ResponseCode::NoError, records);
    message.authorities.push(authority(9, 7));
    message.to_vec().unwrap()
}

#[test]
fn records_are_found_with_their_fields() {
    let message = answer();
    let layout = Layout::parse(&message).unwrap();
    let found: Vec<_> = layout
        .records
        .iter()
        .map(|record| {
            let ttl = u32_at(&message, record.ttl_at).unwrap();
            (
                record.section,
                record.kind,
                ttl,
                record.soa_minimum(&message),
            )
        })
        .collect();
    let expected = [
        (Section::Answer, 5, 60, None),
        (Section::Answer, 1, 30, None),
        (Section::Authority, 6, 9, Some(7)),
    ];
    assert_eq!(found, expected);
    assert_eq!(layout.end, message.len());
}

#[test]
fn every_cut_message_is_malformed() {
    let message = answer();
    for length in 0..message.len() {
        assert!(Layout::parse(&message[..length]).is_none(), "{length}");
    }
}

#[test]
fn forward_pointers_are_malformed() {
    let message = answer();
    let at = HEADER + question(&message).unwrap().len();
    for target in [0_u16, 11, u16::try_from(at).unwrap(), 0x3fff] {
        let mut message = message.clone();
        put_u16(&mut message, at, 0xc000 | target);
        assert!(Layout::parse(&message).is_none(), "{target}");
    }
}

#[test]
fn doubtful_answers_are_dropped() {
    let query = query("www.Example", RecordType::A).to_vec().unwrap();
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut reply = query.clone();
        reply[2] |= QR;
        change(&mut reply);
        answers(&query, &reply)
    };
    assert!(changed(&|_| {}));
    assert!(changed(&|reply| reply[2] |= TC));
    assert!(!changed(&|reply| reply[0] ^= 1), "other id");
    assert!(!changed(&|reply| reply[1] ^= 1), "other id");
    assert!(!changed(&|reply| reply[2] &= !QR), "a query");
    assert!(!changed(&|reply| reply[2] |= 0x20), "another operation");
    assert!(!changed(&|reply| reply[13] = b'W'), "other case");
    assert!(!changed(&|reply| reply[5] = 0), "no question");
    assert!(
        !changed(&|reply| *reply.last_mut().unwrap() = 3),
        "other class"
    );
    assert!(!changed(&|reply| reply[7] = 1), "a missing record");
    assert!(!changed(&|reply| reply.truncate(5)), "half a header");
}

#[test]
fn failures_lead_to_the_next_server() {
    let mut reply = query("www.example", RecordType::A).to_vec().unwrap();
    for (code, flags, edns, expected) in [
        (0, 0, true, Verdict::Final),
        (1, 0, false, Verdict::Final),
        (1, 0, true, Verdict::NoEdns),
        (3, 0, true, Verdict::Final),
        (2, 0, true, Verdict::Failed),
        (4, 0, false, Verdict::Failed),
        (4, 0, true, Verdict::NoEdns),
        (5, 0, true, Verdict::Failed),
        (5, TC, true, Verdict::Failed),
        (0, TC, true, Verdict::Truncated),
        (9, 0, true, Verdict::Final),
    ] {
        (reply[2], reply[3]) = (QR | flags, RA | code);
        assert_eq!(verdict(&reply, edns), expected, "{code} {flags} {edns}");
    }
    assert_eq!(verdict(&reply[..3], true), Verdict::Failed);
}

#[test]
fn extended_codes_are_failures() {
    let mut reply = query("www.example", RecordType::A).to_vec().unwrap();
    reply[2] |= QR;
    reply[HEADER - 1] = 1;
    let plain = reply.len();
    for (code, extended, expected) in [
        (0, 0, Verdict::Final),
        (1, 0, Verdict::Final),
        (0, 1, Verdict::Failed),
        (7, 1, Verdict::Failed),
        (4, 0, Verdict::Failed),
    ] {
        reply.truncate(plain);
        reply[3] = code;
        reply.extend(opt(1232, extended, false));
        assert_eq!(verdict(&reply, true), expected, "{extended} {code}");
    }
}
