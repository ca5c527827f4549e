use std::time::Duration;

use super::*;
use crate::network::{
    firewall::ruleset::HostInputs,
    scopes::scopes,
    testing::{self, state},
};

const MS: Duration = Duration::from_millis(1);

fn pool() -> Cidr {
    block("10.244.0.0/16")
}

fn block(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// State with a network of `n2` for each block.
fn rows(blocks: &[&str]) -> State {
    let rows = blocks.iter().map(|block| ("web", *block, "n2", *block));
    state(&rows.collect::<Vec<_>>())
}

/// State in which this host has the first block in this network, and another network the second.
fn held_by(network: &str) -> State {
    state(&[
        ("web", network, "n1", "10.244.1.0/24"),
        ("web", "other", "n1", "10.244.2.0/24"),
    ])
}

fn shown(retired: &Retired, now: Instant, state: &State) -> Vec<String> {
    let blocks = retired.blocks(now, pool(), state).into_iter();
    blocks.map(|block| block.to_string()).collect()
}

fn networks(begun: Instant, blocks: &[(&str, &str)]) -> Arc<LocalNetworks> {
    let blocks = blocks.iter();
    let blocks = blocks.map(|&(network, text)| (Some(NetworkId::new("web", network)), block(text)));
    Arc::new(LocalNetworks {
        begun,
        blocks: blocks.collect(),
        bridges: BTreeMap::new(),
    })
}

#[test]
fn freed_block_is_retired_for_five_minutes() {
    let (mut retired, start) = (Retired::new("n1"), Instant::now());
    let both = rows(&["10.244.1.0/24", "10.244.2.0/24"]);
    let second = rows(&["10.244.2.0/24"]);
    retired.handle_rows(start, &both, &second);
    assert_eq!(shown(&retired, start, &second), ["10.244.1.0/24"]);
    let later = start + QUARANTINE;
    let before = later.checked_sub(MS).unwrap();
    assert_eq!(shown(&retired, before, &second), ["10.244.1.0/24"]);
    assert_eq!(shown(&retired, later, &second), [""; 0]);
}

#[test]
fn allocated_block_elsewhere_is_retired_no_more() {
    let (mut retired, now) = (Retired::new("n1"), Instant::now());
    let old = rows(&["10.244.1.0/28", "10.244.2.0/24"]);
    let new = rows(&["10.244.1.0/24"]);
    let none = State::default();
    retired.handle_rows(now, &old, &none);
    assert_eq!(shown(&retired, now, &none).len(), 2);
    retired.handle_rows(now, &none, &new);
    assert_eq!(shown(&retired, now, &new), ["10.244.2.0/24"]);
    // A part of a block frees the rest of it for nothing.
    let part = rows(&["10.244.1.0/28"]);
    retired.handle_rows(now, &new, &part);
    assert_eq!(
        shown(&retired, now, &part),
        ["10.244.1.0/24", "10.244.2.0/24"]
    );
}

#[test]
fn lost_block_is_retired_until_its_network_goes() {
    let (mut retired, start) = (Retired::new("n1"), Instant::now());
    let (old, new) = (held_by("a"), held_by("b"));
    retired.handle_rows(start, &old, &new);
    let lost = ["10.244.1.0/24"];
    assert_eq!(shown(&retired, start + QUARANTINE * 9, &new), lost);
    assert_eq!(shown(&retired, start, &old), [""; 0], "given back");
    // A container may still start, so a network may still be made.
    retired.handle_local(networks(start + MS, &[]));
    assert_eq!(shown(&retired, start, &new), lost);
    retired.handle_enforced(start + MS * 3, &[block("10.244.1.0/24")]);
    retired.handle_local(networks(start + MS * 2, &[]));
    assert_eq!(shown(&retired, start, &new), lost);
    retired.handle_local(networks(start + MS * 3, &[("a", "10.244.1.0/24")]));
    assert_eq!(shown(&retired, start, &new), lost);
    retired.handle_local(networks(start + MS * 4, &[("b", "10.244.1.0/24")]));
    assert_eq!(shown(&retired, start, &new), [""; 0]);
}

#[test]
fn engine_networks_without_a_row_are_retired() {
    let (mut retired, now) = (Retired::new("n1"), Instant::now());
    let state = held_by("a");
    let found = [
        ("a", "10.244.1.0/24"),
        ("gone", "10.244.7.0/24"),
        ("other", "10.244.9.0/24"),
        ("outside", "192.168.0.0/24"),
    ];
    retired.handle_local(networks(now, &found));
    assert_eq!(
        shown(&retired, now, &state),
        ["10.244.7.0/24", "10.244.9.0/24"]
    );
    let elsewhere = state_of_other_host();
    let all = ["10.244.1.0/24", "10.244.7.0/24", "10.244.9.0/24"];
    assert_eq!(shown(&retired, now, &elsewhere), all);
}

/// State in which another host has the block of the same network.
fn state_of_other_host() -> State {
    state(&[("web", "a", "n2", "10.244.1.0/24")])
}

#[test]
fn network_of_another_cluster_is_retired() {
    let (mut retired, now) = (Retired::new("n1"), Instant::now());
    retired.handle_local(Arc::new(LocalNetworks {
        begun: now,
        blocks: vec![(None, block("10.244.1.0/24"))],
        bridges: BTreeMap::new(),
    }));
    assert_eq!(shown(&retired, now, &held_by("a")), ["10.244.1.0/24"]);
}

#[test]
fn table_with_other_blocks_is_adopted() {
    let (mut retired, now) = (Retired::new("n1"), Instant::now());
    let table = Ruleset::of_state(&rows(&[
        "10.244.1.0/24",
        "10.244.2.0/24",
        "10.244.3.0/24",
        "10.0.0.0/20",
    ]));
    let state = rows(&["10.244.2.0/24"]);
    let kept = scopes(&state);
    retired.adopt(now, &table, (pool(), &state, &kept), Some(now));
    let gone = ["10.244.1.0/24", "10.244.3.0/24"];
    assert_eq!(shown(&retired, now, &state), gone);
    // The containers are gone, and no leader gives the block to others for some minutes.
    retired.handle_local(networks(now, &[]));
    assert_eq!(shown(&retired, now, &state), gone);
    assert_eq!(shown(&retired, now + QUARANTINE, &state), [""; 0]);
}

#[test]
fn block_of_another_network_is_adopted() {
    let now = Instant::now();
    let state = held_by("b");
    let current = scopes(&state);
    // Loaded for the former network, or after the loss and before the restart.
    let former = Ruleset::of_state(&held_by("a"));
    let only = scopes(&testing::state(&[("web", "other", "n1", "10.244.2.0/24")]));
    let inputs = HostInputs {
        retired: vec![block("10.244.1.0/24")],
        ..HostInputs::default()
    };
    let retiring = Ruleset::of_scopes(&only, &inputs);
    for table in [former, retiring] {
        let mut retired = Retired::new("n1");
        retired.adopt(now, &table, (pool(), &state, &current), Some(now));
        let later = now + QUARANTINE * 2;
        assert_eq!(shown(&retired, later, &state), ["10.244.1.0/24"]);
        retired.handle_local(networks(now, &[("a", "10.244.1.0/24")]));
        assert_eq!(shown(&retired, later, &state), ["10.244.1.0/24"]);
        retired.handle_local(networks(now, &[]));
        assert_eq!(shown(&retired, later, &state), [""; 0]);
    }
    // The engine was asked before the table was read.
    let mut retired = Retired::new("n1");
    retired.handle_local(networks(now, &[]));
    let table = Ruleset::of_state(&held_by("a"));
    retired.adopt(now, &table, (pool(), &state, &current), Some(now));
    assert_eq!(shown(&retired, now, &state), [""; 0]);
}
