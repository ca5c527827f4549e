use std::sync::Arc;

use jaco_proto::v1::command::Payload;
use jaco_state::{command, fsm};
use proptest::prelude::*;

use super::*;

fn key(deployment: &str, host: &str) -> SubnetKey {
    SubnetKey {
        deployment: deployment.into(),
        network: "_default".into(),
        host: host.into(),
    }
}

fn pool(range: &str, block: u8) -> Pool {
    Pool::new(range.parse().unwrap(), block).unwrap()
}

fn put(state: &mut State, key: &SubnetKey, cidr: &str) {
    let SubnetKey {
        deployment,
        network,
        host,
    } = key.clone();
    let row = v1::Subnet {
        cidr: cidr.into(),
        ..Default::default()
    };
    state
        .subnets
        .insert((deployment, network, host), Arc::new(row));
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

fn allocate(state: &State, pool: Pool) -> Option<String> {
    match decide(&at(0), state, &key("new", "n"), pool, &[]) {
        Decision::Allocate(cidr) => Some(cidr.to_string()),
        Decision::Exhausted => None,
        Decision::Existing(cidr) => panic!("{cidr} has no row"),
    }
}

#[test]
fn pool_and_block_sizes_are_bounded() {
    let range = |text: &str| text.parse::<Cidr>().unwrap();
    assert_eq!(
        Pool::new(range("8.0.0.0/7"), 24),
        Err(InvalidPool::Range(7))
    );
    assert_eq!(
        Pool::new(range("10.0.0.0/21"), 24),
        Err(InvalidPool::Range(21))
    );
    assert_eq!(
        Pool::new(range("10.0.0.0/16"), 23),
        Err(InvalidPool::Block(23))
    );
    assert_eq!(
        Pool::new(range("10.0.0.0/16"), 29),
        Err(InvalidPool::Block(29))
    );
    assert_eq!(Pool::new(range("10.244.0.0/16"), 24), Ok(Pool::default()));
    assert_eq!(Pool::default().blocks(), 256);
    assert_eq!(pool("10.0.0.0/8", 28).blocks(), 1 << 20);
}

#[test]
fn row_keeps_its_block() {
    let mut state = State::default();
    put(&mut state, &key("a", "n1"), "10.244.7.0/24");
    let decision = decide(&at(0), &state, &key("a", "n1"), Pool::default(), &[]);
    assert_eq!(
        decision,
        Decision::Existing("10.244.7.0/24".parse().unwrap())
    );
}

#[test]
fn lowest_block_without_overlap_is_chosen() {
    let mut state = State::default();
    assert_eq!(
        allocate(&state, Pool::default()).as_deref(),
        Some("10.244.0.0/24")
    );
    put(&mut state, &key("a", "n1"), "10.244.0.0/24");
    put(&mut state, &key("a", "n2"), "10.244.1.16/28");
    put(&mut state, &key("b", "n1"), "10.244.3.0/24");
    put(&mut state, &key("c", "n1"), "192.168.0.0/24");
    put(&mut state, &key("d", "n1"), "no block at all");
    assert_eq!(
        allocate(&state, Pool::default()).as_deref(),
        Some("10.244.2.0/24")
    );
    put(&mut state, &key("b", "n2"), "10.244.2.0/23");
    assert_eq!(
        allocate(&state, Pool::default()).as_deref(),
        Some("10.244.4.0/24")
    );
    put(&mut state, &key("b", "n3"), "10.0.0.0/8");
    assert_eq!(allocate(&state, Pool::default()), None);
}

#[test]
fn mesh_network_is_never_allocated() {
    let wide = pool("10.99.0.0/16", 26);
    assert_eq!(
        allocate(&State::default(), wide).as_deref(),
        Some("10.99.1.0/26")
    );
}

#[test]
fn pool_is_read_from_the_state() {
    let stored = |range: &str, block| {
        let meta = v1::ClusterMeta {
            ipam_pool: range.to_owned(),
            ipam_block: block,
            ..Default::default()
        };
        Pool::of_cluster(&State {
            cluster: Some(Arc::new(meta)),
            ..State::default()
        })
    };
    assert_eq!(stored("10.128.0.0/12", 26), Some(pool("10.128.0.0/12", 26)));
    for (range, block) in [
        ("", 0),
        ("10.128.0.0/12", 0),
        ("10.128.0.0/7", 24),
        ("x", 24),
    ] {
        assert_eq!(stored(range, block), None, "{range} {block}");
    }
    assert_eq!(Pool::of_cluster(&State::default()), None);
    assert_eq!(
        Pool::default().to_string(),
        "10.244.0.0/16 in blocks of /24"
    );
}

#[test]
fn unparsable_row_is_replaced() {
    let mut state = State::default();
    put(&mut state, &key("new", "n"), "garbage");
    assert_eq!(
        allocate(&state, Pool::default()).as_deref(),
        Some("10.244.0.0/24")
    );
}

#[test]
fn small_blocks_fill_exactly_the_pool() {
    let pool = pool("10.9.240.0/20", 28);
    let mut state = State::default();
    for at in 0..256 {
        let cidr = allocate(&state, pool).unwrap();
        assert_eq!(cidr, format!("10.9.{}.{}/28", 240 + at / 16, at % 16 * 16));
        put(&mut state, &key("a", &format!("n{at}")), &cidr);
    }
    assert_eq!(allocate(&state, pool), None);
    assert!((utilisation(&state, pool) - 1.0).abs() < f64::EPSILON);
}

#[test]
fn utilisation_counts_overlapped_blocks_once() {
    let mut state = State::default();
    assert!(utilisation(&state, Pool::default()) < f64::EPSILON);
    put(&mut state, &key("a", "n1"), "10.244.0.0/28");
    put(&mut state, &key("a", "n2"), "10.244.0.16/28");
    put(&mut state, &key("a", "n3"), "10.244.2.0/23");
    put(&mut state, &key("a", "n4"), "10.99.0.0/24");
    assert!((utilisation(&state, Pool::default()) - 3.0 / 256.0).abs() < f64::EPSILON);
}

#[test]
fn block_in_quarantine_is_not_chosen() {
    let mut state = State::default();
    let freed = v1::FreedSubnet {
        cidr: "10.244.0.0/24".into(),
        freed_at: Some(at(60)),
        ..Default::default()
    };
    state
        .freed_subnets
        .insert(freed.cidr.clone(), Arc::new(freed));
    let ends = 60 + QUARANTINE.as_secs().cast_signed();
    for (now, chosen) in [
        (0, "10.244.1.0/24"),
        (60, "10.244.1.0/24"),
        (ends - 1, "10.244.1.0/24"),
        (ends, "10.244.0.0/24"),
    ] {
        let decision = decide(&at(now), &state, &key("b", "n1"), Pool::default(), &[]);
        assert_eq!(decision, Decision::Allocate(chosen.parse().unwrap()));
    }
    // A row is its own answer: the block of another network was freed, not this one.
    put(&mut state, &key("b", "n1"), "10.244.9.0/24");
    let decision = decide(&at(0), &state, &key("b", "n1"), Pool::default(), &[]);
    assert_eq!(
        decision,
        Decision::Existing("10.244.9.0/24".parse().unwrap())
    );
}

proptest! {
    #[test]
    fn choice_matches_linear_search(
        rows in proptest::collection::vec((0_u32..1 << 12, 20..=32_u8), 0..40),
        block in 24..=28_u8,
    ) {
        let pool = pool("10.9.240.0/20", block);
        let mut state = State::default();
        for (at, (offset, prefix)) in rows.iter().enumerate() {
            let base = u32::from_be_bytes([10, 9, 240, 0]) + offset;
            let host_bits = u32::from(32 - prefix);
            let base = base >> host_bits.min(31) << host_bits.min(31);
            let row = Cidr::aligned(base, *prefix);
            put(&mut state, &key("a", &format!("n{at}")), &row.to_string());
        }
        let size = 1_u32 << (32 - block);
        let plain = (0..(1 << 12) / size)
            .map(|at| Cidr::aligned(u32::from_be_bytes([10, 9, 240, 0]) + at * size, block))
            .find(|free| {
                let mut rows = state.subnets.values();
                !rows.any(|row| row.cidr.parse::<Cidr>().unwrap().overlaps(*free))
            });
        prop_assert_eq!(allocate(&state, pool), plain.map(|cidr| cidr.to_string()));
    }

    /// Whichever leader decides, with nothing but the state to go by.
    #[test]
    fn state_machine_accepts_every_choice(
        steps in proptest::collection::vec((0..12_usize, any::<bool>(), 0..120_i64), 1..80)
    ) {
        let pool = pool("10.9.240.0/20", 24);
        let mut state = State::default();
        let mut now = 0;
        for (index, (owner, frees, wait)) in (1..).zip(steps) {
            now += wait;
            let key = key(&format!("app-{owner}"), "n1");
            let payload = match decide(&at(now), &state, &key, pool, &[]) {
                _ if frees => Payload::SubnetFree(v1::SubnetFree {
                    deployment: key.deployment.clone(),
                    ..Default::default()
                }),
                Decision::Allocate(cidr) => Payload::SubnetAllocate(allocation(&key, cidr)),
                Decision::Exhausted => {
                    let withheld = state.quarantined(&at(now)).count();
                    prop_assert_eq!(withheld + state.subnets.len(), 16);
                    continue;
                }
                Decision::Existing(_) => continue,
            };
            let command = command("test", at(now), payload);
            let applied = fsm::apply_in_place(&mut state, index, &command).unwrap();
            prop_assert_eq!(applied.result, Ok(()));
        }
    }
}
