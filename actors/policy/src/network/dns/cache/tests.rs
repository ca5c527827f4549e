use hickory_proto::{
    op::{Message, ResponseCode},
    rr::RecordType,
};
use proptest::prelude::*;

use super::*;
use crate::network::dns::testing::{address, alias, authority, edns, query, relayed, reply};

const SECOND: Duration = Duration::from_secs(1);

fn answer(change: impl FnOnce(&mut Message)) -> Relayed {
    let asked = query("www.example", RecordType::A);
    let mut message = reply(&asked, ResponseCode::NoError, Vec::new());
    change(&mut message);
    relayed(&message)
}

/// The answer for `key` as a client gets it.
fn cached(cache: &mut Cache, now: Instant, key: &[u8]) -> Option<Vec<u8>> {
    let (reply, age) = cache.get(now, key)?;
    let mut message = Vec::new();
    reply.write(age, &mut message);
    Some(message)
}

fn ttls(message: &[u8]) -> Vec<u32> {
    let message = Message::from_vec(message).unwrap();
    message.all_sections().map(|record| record.ttl).collect()
}

/// Seconds for which an answer is kept.
fn kept(message: &Relayed) -> Option<u64> {
    let (mut cache, now) = (Cache::new(8, 10_000), Instant::now());
    cache.insert(now, b"k", message);
    let kept = (0..10_000).take_while(|n| cache.get(now + SECOND * *n, b"k").is_some());
    Some(u64::try_from(kept.count()).unwrap()).filter(|kept| *kept > 0)
}

#[test]
fn times_to_live_count_down() {
    let message = answer(|message| {
        message.add_answers([
            alias("www.example", 60, "a.example"),
            address("a.example", 20, 1),
        ]);
        message.set_edns(edns(1232));
    });
    let (mut cache, now) = (Cache::new(8, 10_000), Instant::now());
    cache.insert(now, b"k", &message);
    assert_eq!(cached(&mut cache, now, b"k").unwrap(), message.message());
    let later = now + Duration::from_millis(19_999);
    let later = cached(&mut cache, later, b"k").unwrap();
    assert_eq!(ttls(&later), [41, 1]);
    assert!(cache.get(now + SECOND * 20, b"k").is_none());
    assert_eq!((cache.len(), cache.bytes()), (0, 0));
}

#[test]
fn answers_are_kept_as_long_as_allowed() {
    let negative = |ttl, minimum| {
        move |message: &mut Message| {
            message.metadata.response_code = ResponseCode::NXDomain;
            message.authorities.push(authority(ttl, minimum));
        }
    };
    assert_eq!(kept(&answer(negative(90, 30))), Some(30));
    assert_eq!(kept(&answer(negative(20, 300))), Some(20));
    assert_eq!(kept(&answer(negative(20, 0))), None);
    let no_data = |message: &mut Message| message.authorities.push(authority(9, 8));
    assert_eq!(kept(&answer(no_data)), Some(8));
    let alias_only = |message: &mut Message| message.answers.push(alias("www.example", 9, "a"));
    assert_eq!(kept(&answer(alias_only)), None);
    assert_eq!(kept(&answer(|_| {})), None, "no start of authority");
    for (ttl, expected) in [(0, None), (1, Some(1)), (1 << 31, None), (7200, Some(3600))] {
        let positive = |message: &mut Message| message.answers.push(address("www.example", ttl, 1));
        assert_eq!(kept(&answer(positive)), expected, "{ttl}");
    }
}

#[test]
fn failures_and_cut_answers_are_not_kept() {
    for code in [
        ResponseCode::ServFail,
        ResponseCode::Refused,
        ResponseCode::FormErr,
    ] {
        let failure = |message: &mut Message| {
            message.metadata.response_code = code;
            message.add_answer(address("www.example", 60, 1));
        };
        assert_eq!(kept(&answer(failure)), None);
    }
    let truncated = |message: &mut Message| {
        message.metadata.truncation = true;
        message.add_answer(address("www.example", 60, 1));
    };
    assert_eq!(kept(&answer(truncated)), None);
}

#[test]
fn cached_authority_lives_until_its_minimum() {
    let message = answer(|message| {
        message.metadata.response_code = ResponseCode::NXDomain;
        message.authorities.push(authority(3600, 30));
    });
    let (mut cache, now) = (Cache::new(8, 10_000), Instant::now());
    cache.insert(now, b"k", &message);
    let later = cached(&mut cache, now + SECOND * 10, b"k").unwrap();
    assert_eq!(ttls(&later), [20]);
}

#[test]
fn least_recently_used_answer_is_dropped() {
    let message = answer(|message| message.answers.push(address("www.example", 60, 1)));
    let (mut cache, now) = (Cache::new(2, 10_000), Instant::now());
    cache.insert(now, b"a", &message);
    cache.insert(now, b"b", &message);
    assert!(cache.get(now, b"a").is_some());
    cache.insert(now, b"c", &message);
    let left = [b"a", b"b", b"c"].map(|key| cache.get(now, key).is_some());
    assert_eq!(left, [true, false, true]);
}

proptest! {
    #[test]
    fn cache_stays_within_its_bounds(
        steps in prop::collection::vec((0..30_u8, 0..40_u32, 0..60_usize, any::<bool>()), 0..200),
    ) {
        let (mut cache, mut now) = (Cache::new(12, 6_000), Instant::now());
        for (key, ttl, records, read) in steps {
            now += Duration::from_millis(700);
            if read {
                if let Some(message) = cached(&mut cache, now, &[key]) {
                    prop_assert!(ttls(&message).iter().all(|ttl| (1..40).contains(ttl)));
                }
                continue;
            }
            let message = answer(|message| {
                let records = (0..records).map(|n| address("www.example", ttl, u8::try_from(n).unwrap()));
                message.add_answers(records);
            });
            cache.insert(now, &[key], &message);
            let sum: usize = cache.entries.iter().map(|(key, entry)| cost(key, entry)).sum();
            prop_assert_eq!(cache.bytes(), sum);
            prop_assert_eq!(cache.by_use.len(), cache.len());
            prop_assert!(cache.len() <= 12 && cache.bytes() <= 6_000);
        }
    }
}
