use std::{
    sync::Arc,
    time::{Duration, Instant},
};

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

fn remove(state: &mut State, key: &SubnetKey) {
    let SubnetKey {
        deployment,
        network,
        host,
    } = key.clone();
    state.subnets.remove(&(deployment, network, host));
}

fn allocate(state: &State, pool: Pool) -> Option<String> {
    match decide(state, &key("new", "n"), pool, &[], std::iter::empty()) {
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
    let decision = decide(
        &state,
        &key("a", "n1"),
        Pool::default(),
        &[],
        std::iter::empty(),
    );
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
fn freed_block_is_quarantined_for_five_minutes() {
    let start = Instant::now();
    let mut quarantine = Quarantine::default();
    let mut state = State::default();
    put(&mut state, &key("a", "n1"), "10.244.0.0/24");
    quarantine.handle_state(start, &state);
    remove(&mut state, &key("a", "n1"));
    let freed = start + Duration::from_secs(60);
    quarantine.handle_state(freed, &state);
    let decide_at = |quarantine: &Quarantine, now| {
        decide(
            &state,
            &key("b", "n1"),
            Pool::default(),
            &[],
            quarantine.blocks(now),
        )
    };
    let second = Decision::Allocate("10.244.1.0/24".parse().unwrap());
    let first = Decision::Allocate("10.244.0.0/24".parse().unwrap());
    assert_eq!(decide_at(&quarantine, freed), second);
    // Later states neither renew nor end the quarantine.
    quarantine.handle_state(freed + QUARANTINE / 2, &state);
    let almost = freed + QUARANTINE - Duration::from_millis(1);
    assert_eq!(decide_at(&quarantine, almost), second);
    assert_eq!(decide_at(&quarantine, freed + QUARANTINE), first);
}

#[test]
fn first_state_frees_nothing() {
    let now = Instant::now();
    let mut quarantine = Quarantine::default();
    let mut state = State::default();
    put(&mut state, &key("a", "n1"), "10.244.0.0/24");
    quarantine.handle_state(now, &state);
    assert_eq!(quarantine.blocks(now).count(), 0);
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
}
