use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    rps: 20.0,
    burst: 100,
    connections: 200,
};

fn client(number: u32) -> Client {
    IpAddr::from(Ipv4Addr::from(number)).into()
}

/// A limiter, a route with `limits`, and the first moment.
fn limiter(limits: Limits) -> (Limiter, LimitedRoute, Instant) {
    let limiter = Limiter::default();
    let route = limiter.route("a.example", "/", limits);
    let start = limiter.0.epoch;
    (limiter, route, start)
}

#[test]
fn burst_is_admitted_at_once_then_the_rate() {
    let (limiter, route, start) = limiter(LIMITS);
    let admit = |millis| {
        let now = start + Duration::from_millis(millis);
        limiter.admit(&route, client(1), now).map(drop)
    };
    for request in 0..100 {
        assert!(admit(0).is_ok(), "{request}");
    }
    let rate = Refusal {
        reason: Reason::Rate,
        retry_after: 1,
    };
    assert_eq!(admit(0), Err(rate));
    assert_eq!(admit(49), Err(rate));
    assert_eq!(admit(50), Ok(()));
    assert_eq!(admit(51), Err(rate));
    // Two intervals later two requests, and after 5 s everything again.
    assert_eq!(admit(150), Ok(()));
    assert_eq!(admit(150), Ok(()));
    assert_eq!(admit(150), Err(rate));
    for request in 0..100 {
        assert!(admit(5_200).is_ok(), "{request}");
    }
    assert_eq!(admit(5_200), Err(rate));
}

#[test]
fn wait_is_in_whole_seconds() {
    let slow = Limits {
        rps: 0.1,
        burst: 1,
        ..LIMITS
    };
    let (limiter, route, start) = limiter(slow);
    let admit = |millis| {
        let now = start + Duration::from_millis(millis);
        limiter.admit(&route, client(1), now).map(drop)
    };
    assert_eq!(admit(0), Ok(()));
    let waits = [(0, 10), (1, 10), (1_000, 9), (9_001, 1), (9_999, 1)];
    for (millis, expected) in waits {
        let refusal = admit(millis).unwrap_err();
        assert_eq!(refusal.retry_after, expected, "{millis}");
    }
    assert_eq!(admit(10_000), Ok(()));
}

#[test]
fn requests_in_flight_are_limited_until_they_end() {
    let few = Limits {
        connections: 2,
        ..LIMITS
    };
    let (limiter, route, start) = limiter(few);
    let admit = || limiter.admit(&route, client(1), start);
    let (first, second) = (admit().unwrap(), admit().unwrap());
    let refusal = admit().unwrap_err();
    assert_eq!(refusal.reason, Reason::Connections);
    assert_eq!(refusal.retry_after, 1);
    // Others are not affected.
    drop(limiter.admit(&route, client(2), start).unwrap());
    let other = limiter.route("a.example", "/other", few);
    drop(limiter.admit(&other, client(1), start).unwrap());
    drop(first);
    let third = admit().unwrap();
    assert!(admit().is_err());
    drop((second, third));
}

#[test]
fn unchanged_route_keeps_its_counts() {
    let (limiter, route, _) = limiter(LIMITS);
    assert_eq!(limiter.route("a.example", "/", LIMITS), route);
    let changed = Limits {
        burst: 101,
        ..LIMITS
    };
    assert_ne!(limiter.route("a.example", "/", changed).id, route.id);
    assert_ne!(limiter.route("a.example", "", LIMITS).id, route.id);
    // Domain and path are hashed each by itself.
    assert_ne!(limiter.route("a.exampl", "e/", LIMITS).id, route.id);
}

#[test]
fn million_clients_take_bounded_memory_and_are_admitted() {
    let (limiter, route, start) = limiter(LIMITS);
    for number in 0..1_000_000 {
        let permit = limiter.admit(&route, client(number), start).unwrap();
        drop(permit);
    }
    assert!(limiter.clients() <= MAX_CLIENTS + SHARDS);
    assert!(limiter.untracked() >= 1_000_000 - (MAX_CLIENTS + SHARDS) as u64);
    // All are idle 50 ms later, and make room for others.
    let later = start + SWEEP_PAUSE;
    for number in 1_000_000..1_050_000 {
        drop(limiter.admit(&route, client(number), later).unwrap());
    }
    let tracked = limiter.untracked();
    drop(limiter.admit(&route, client(2_000_000), later).unwrap());
    assert_eq!(limiter.untracked(), tracked);
    assert!(limiter.clients() <= 50_001 + SHARDS * FIRST_SWEEP);
}

#[test]
fn client_with_requests_in_flight_is_never_forgotten() {
    let single = Limits {
        connections: 1,
        ..LIMITS
    };
    let (limiter, route, start) = limiter(single);
    let held = limiter.admit(&route, client(0), start).unwrap();
    for round in 1..20_u64 {
        let now = start + SWEEP_PAUSE * u32::try_from(round).unwrap();
        for number in 1..20_000 {
            drop(limiter.admit(&route, client(number), now).unwrap());
        }
        let refused = limiter.admit(&route, client(0), now);
        assert_eq!(refused.unwrap_err().reason, Reason::Connections);
    }
    drop(held);
}

#[test]
fn extreme_rates_are_limits_too() {
    for rps in [f64::MIN_POSITIVE, 1e-9, 1e6] {
        let limits = Limits {
            rps,
            burst: 2,
            connections: u32::MAX,
        };
        let (limiter, route, start) = limiter(limits);
        drop(limiter.admit(&route, client(1), start).unwrap());
        drop(limiter.admit(&route, client(1), start).unwrap());
        assert!(limiter.admit(&route, client(1), start).is_err(), "{rps}");
    }
}

#[test]
fn clients_are_addresses_or_networks_of_64_bits() {
    let of = |text: &str| Client::from(text.parse::<IpAddr>().unwrap());
    assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
    assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    let zero: IpAddr = Ipv6Addr::UNSPECIFIED.into();
    assert_ne!(Client::from(zero), of("0.0.0.0"));
}

proptest! {
    /// In any time, a client gets at most its burst and its rate, and at least the requests that
    /// keep to the rate.
    #[test]
    fn admitted_requests_follow_the_rate(
        rps in 1_u32..200,
        burst in 1_u32..400,
        pauses in prop::collection::vec(0_u64..200, 1..300),
    ) {
        let limits = Limits { rps: rps.into(), burst, connections: 10 };
        let (limiter, route, start) = limiter(limits);
        let mut now = start;
        let mut admitted: Vec<Instant> = Vec::new();
        for pause in pauses {
            now += Duration::from_millis(pause);
            let permit = limiter.admit(&route, client(7), now);
            if permit.is_ok() {
                admitted.push(now);
            } else if let Some(last) = admitted.last() {
                let interval = Duration::from_secs_f64(1.0 / f64::from(rps));
                prop_assert!(now - *last < interval, "a request that kept to the rate was refused");
            }
        }
        let burst = f64::from(burst);
        for (index, from) in admitted.iter().enumerate() {
            for (count, to) in (1_u32..).zip(&admitted[index..]) {
                let most = burst + (*to - *from).as_secs_f64() * f64::from(rps) + 1e-3;
                prop_assert!(f64::from(count) <= most, "{count} requests in {:?}", *to - *from);
            }
        }
    }
}
