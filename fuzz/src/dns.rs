//! Fuzzes the queries of clients and the answers of upstream servers.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use hickory_proto::op::Message;
use jaco_policy::network::dns::{
    cache::Cache,
    message::{Request, Transport, Unreadable},
    relay::Relayed,
    scope::{Meaning, NameText, classify},
    wire::{HEADER, Verdict, answers, question, verdict},
};

/// Bytes before the query: transport, flags and counts of the answer, length of the query.
const CONTROL: usize = 6;

/// Input: six bytes of settings, a query, and the records of an upstream answer to it.
///
/// This node's own answers are well-formed, within the client's limit and to the same question. A
/// relayed answer has the records of the upstream one, and a cached answer has them with times to
/// live that are not longer.
pub fn dns(data: &[u8]) {
    let Some((control, rest)) = data.split_first_chunk::<CONTROL>() else {
        return;
    };
    let (query, records) = rest.split_at(usize::from(control[5]).min(rest.len()));
    let transport = match control[0] % 2 {
        0 => Transport::Udp,
        _ => Transport::Tcp,
    };
    let request = match Request::read(query, transport) {
        Ok(request) => request,
        Err(Unreadable::Rejected(answer)) => {
            assert_eq!(answer[..2], query[..2]);
            Message::from_vec(&answer).expect("a rejection is well-formed");
            return;
        }
        Err(Unreadable::Ignored) => return,
    };
    own_answers(&request, query);
    let name = NameText::of(request.labels());
    let declares = |deployment: &str, name: &str| deployment == "shop" && name != "web.com";
    match classify(&name, ["com", "shop"].into_iter(), declares) {
        Meaning::Service(name) | Meaning::ServiceOf { service: name, .. } => {
            assert!(name.is_ascii());
        }
        Meaning::Unknown | Meaning::External => {}
    }
    let edns = control[0] & 2 == 0;
    let sent = request.upstream_query(0x1234, edns);
    assert_eq!(question(&sent), question(query));
    let mut reply = sent[..HEADER + question(&sent).unwrap().len()].to_vec();
    reply[2] |= 0x80 | control[1] & 0x06;
    reply[3] = control[1];
    for (at, count) in [(7, control[2]), (9, control[3]), (11, control[4])] {
        reply[at] = count;
    }
    reply.extend(records);
    if answers(&sent, &reply) && verdict(&reply, edns) == Verdict::Final {
        let kept = Relayed::of(&reply).expect("an answer is well-formed");
        relayed(&request, &reply, &kept);
        cached(&request, &kept);
    }
}

/// Writes an answer.
type Answer<'a> = &'a dyn Fn(&mut Vec<u8>);

fn own_answers(request: &Request, query: &[u8]) {
    let addresses: Vec<_> = (0..60).map(|n| Ipv4Addr::new(10, 0, 0, n)).collect();
    let answers: [Answer<'_>; 5] = [
        &|answer| request.addresses(&addresses, answer),
        &|answer| request.no_data(answer),
        &|answer| request.nx_domain(answer),
        &|answer| request.refused(answer),
        &|answer| request.server_failure(answer),
    ];
    let mut answer = Vec::new();
    for write in answers {
        write(&mut answer);
        assert!(answer.len() <= request.limit());
        assert_eq!(answer[..2], query[..2]);
        assert_eq!(question(&answer), question(query));
        Message::from_vec(&answer).expect("an answer is well-formed");
    }
}

fn relayed(request: &Request, reply: &[u8], kept: &Relayed) {
    let mut relayed = Vec::new();
    request.relay(kept, 0, &mut relayed);
    assert!(relayed.len() <= request.limit());
    let whole = relayed[2] & 0x02 == reply[2] & 0x02;
    assert_eq!(relayed[3] & 0x0f, reply[3] & 0x0f);
    // A name in malformed data may point into the header, where the answers differ.
    let mut before = reply.to_vec();
    before[..4].copy_from_slice(&relayed[..4]);
    // The codec refuses some records that are relayed all the same.
    if let (true, Ok(before), Ok(after)) = (
        whole,
        Message::from_vec(&before),
        Message::from_vec(&relayed),
    ) {
        assert_eq!(before.answers, after.answers);
        assert_eq!(before.authorities, after.authorities);
        // Records behind the EDNS record are dropped.
        assert!(before.additionals.starts_with(&after.additionals));
    }
}

fn cached(request: &Request, reply: &Relayed) {
    let (mut cache, now) = (Cache::new(4, 4096), Instant::now());
    let key = request.cache_key();
    cache.insert(now, key.as_ref(), reply);
    assert!(cache.bytes() <= 4096);
    let later = cache.get(now + Duration::from_secs(3), key.as_ref());
    let ttls = |message: &[u8]| -> Vec<u32> {
        let message = Message::from_vec(message).ok();
        let records = message.iter().flat_map(|message| message.all_sections());
        records.map(|record| record.ttl).collect()
    };
    if let Some((later, age)) = later {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        request.relay(reply, 0, &mut before);
        request.relay(&later, age, &mut after);
        let after = ttls(&after);
        let shorter = ttls(&before).into_iter().zip(&after).all(|(a, b)| *b <= a);
        assert!(shorter && after.iter().all(|ttl| *ttl > 0));
    }
}
