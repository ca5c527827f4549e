use proptest::prelude::*;

use super::*;
use crate::network::{
    names::NetworkId,
    scopes::allowed,
    testing::{make_internal, state},
};

#[test]
fn ruleset_without_blocks_drops_nothing() {
    let ruleset = Ruleset::of_state(&State::default());
    assert_eq!(ruleset.scope_sets().count(), 0);
    let rules: Vec<_> = ruleset.chains.iter().map(|c| c.rules.len()).collect();
    assert_eq!(rules, [1, 0, 0, 2]);
}

#[test]
fn ruleset_lists_sets_and_rules_in_order() {
    let state = state(&[
        ("web", "front", "n1", "10.244.1.0/24"),
        ("api", "_default", "n2", "10.244.2.0/24"),
    ]);
    let ruleset = Ruleset::of_state(&state);
    let sets: Vec<_> = ruleset.sets.iter().map(|set| &*set.name).collect();
    assert_eq!(
        sets,
        [
            "dep_net_api__default",
            "dep_net_web_front",
            NETWORK_MAP,
            POOL_SET,
            SOURCE_SET,
            ATTACHMENT_SET
        ]
    );
    let spans = |set: &Set| -> Vec<_> { set.spans().iter().map(Span::to_string).collect() };
    assert_eq!(spans(&ruleset.sets[3]), ["10.244.1.0/24", "10.244.2.0/24"]);
    assert_eq!(spans(&ruleset.sets[4]), ["10.99.0.0/24", "10.244.0.0/16"]);
    assert_eq!(
        ruleset.chains[0].rules,
        [
            Rule::DropOutside {
                from: POOL_SET.to_owned(),
                to: SOURCE_SET.to_owned(),
            },
            Rule::AcceptEstablished,
            Rule::Select(NETWORK_MAP.to_owned()),
            Rule::DropWithin(POOL_SET.to_owned()),
        ]
    );
    let Elements::Selections(selections) = &ruleset.sets[2].elements else {
        panic!("{:?}", ruleset.sets[2]);
    };
    let selections: Vec<_> = selections.iter().map(ToString::to_string).collect();
    assert_eq!(
        selections,
        [
            "10.244.1.0/24:dep_net_web_front",
            "10.244.2.0/24:dep_net_api__default"
        ]
    );
    let [.., api, web] = &ruleset.chains[..] else {
        panic!("{:?}", ruleset.chains);
    };
    for (chain, name) in [(api, "dep_net_api__default"), (web, "dep_net_web_front")] {
        assert_eq!((chain.name.as_str(), &chain.base), (name, &None));
        assert_eq!(chain.rules, [Rule::AcceptTo(name.to_owned())]);
    }
    assert_eq!(
        ruleset.chains[2].rules,
        [Rule::DropSentOutside(POOL_SET.to_owned())]
    );
    assert_eq!(
        ruleset.chains[3].rules,
        [
            Rule::AcceptAttached(ATTACHMENT_SET.to_owned()),
            Rule::DropUnrouted(SOURCE_SET.to_owned()),
        ]
    );
}

#[test]
fn source_must_come_by_its_own_interface() {
    let state = state(&[("web", "a", "n1", "192.168.7.0/24")]);
    let attachment = Attachment {
        address: [10, 244, 1, 2].into(),
        interface: "br1".to_owned(),
    };
    let inputs = HostInputs {
        attachments: vec![attachment],
        ..HostInputs::default()
    };
    let ruleset = Ruleset::of_scopes(&scopes(&state), &inputs);
    for (from, interface, routed, admitted) in [
        ([10, 244, 1, 3], "br0", true, true),
        ([10, 244, 1, 3], "br0", false, false),
        ([10, 244, 200, 3], "br0", false, false),
        ([10, 99, 0, 7], "br0", false, false),
        ([10, 99, 0, 7], "jaco0", true, true),
        ([192, 168, 7, 2], "br0", false, false),
        ([10, 244, 1, 2], "br1", false, true),
        ([10, 244, 1, 2], "br2", false, false),
        ([192, 0, 2, 1], "br0", false, true),
    ] {
        let found = ruleset.admits_source(from.into(), interface, routed);
        assert_eq!(found, admitted, "{from:?} by {interface}, {routed}");
    }
}

#[test]
fn spans_are_shown_as_blocks_where_possible() {
    for (first, last, text) in [
        (0x0af4_0100, 0x0af4_01ff, "10.244.1.0/24"),
        (0x0af4_0100, 0x0af4_0100, "10.244.1.0/32"),
        (0, u32::MAX, "0.0.0.0/0"),
        (0x0af4_0100, 0x0af4_0101, "10.244.1.0/31"),
        (0x0af4_0101, 0x0af4_0102, "10.244.1.1-10.244.1.2"),
        (0x0af4_0100, 0x0af4_0201, "10.244.1.0-10.244.2.1"),
    ] {
        assert_eq!(Span { first, last }.to_string(), text);
    }
    for block in ["0.0.0.0/0", "10.244.1.16/28", "10.1.2.3/32"] {
        let cidr: Cidr = block.parse().unwrap();
        assert_eq!(Span::from(cidr).to_string(), block);
    }
}

#[test]
fn spans_consist_of_aligned_blocks() {
    for (first, last, blocks) in [
        (
            0x0af4_0100,
            0x0af4_02ff,
            &["10.244.1.0/24", "10.244.2.0/24"][..],
        ),
        (
            0x0af4_0001,
            0x0af4_0003,
            &["10.244.0.1/32", "10.244.0.2/31"],
        ),
        (0, u32::MAX, &["10.244.0.0/16"]),
        (0x0af3_0000, 0x0af4_000f, &["10.244.0.0/28"]),
        (0x0af5_0000, 0x0af5_000f, &[]),
        (0x0af4_0002, 0x0af4_0001, &[]),
    ] {
        let found = Span { first, last }.blocks_within(pool());
        let found: Vec<_> = found.map(|block| block.to_string()).collect();
        assert_eq!(found, blocks);
    }
    let all = Cidr::aligned(0, 0);
    let span = Span {
        first: 0,
        last: u32::MAX,
    };
    assert_eq!(span.blocks_within(all).collect::<Vec<_>>(), [all]);
}

#[test]
fn ruleset_of_any_blocks_is_consistent() {
    let rows = [
        ("web", "a", "n1", "10.244.1.0/24"),
        ("api", "b", "n1", "10.244.2.0/24"),
    ];
    let whole = retiring(&state(&rows), &["10.244.3.0/24".parse().unwrap()]);
    assert!(whole.is_consistent());
    assert!(Ruleset::of_state(&State::default()).is_consistent());
    let mut shuffled = whole.clone();
    shuffled.sets.reverse();
    shuffled.chains.reverse();
    assert!(shuffled.is_consistent());
    let changes: &[fn(&mut Ruleset)] = &[
        |table| drop(table.chains[0].rules.pop()),
        |table| drop(table.chains[0].rules.remove(1)),
        |table| table.chains[0].rules.swap(0, 3),
        |table| table.chains[2].rules.push(Rule::Foreign),
        |table| drop(table.chains.pop()),
        |table| {
            let other = table.sets[1].elements.clone();
            table.sets[0].elements = other;
        },
        |table| table.sets[3].spans_mut().unwrap().clear(),
        |table| drop(table.sets.remove(2)),
        |table| {
            if let Elements::Selections(selections) = &mut table.sets[2].elements {
                selections.pop();
            }
        },
        |table| table.chains[4].rules.clear(),
        |table| table.sets[0].elements = Elements::Foreign,
        |table| drop(table.sets.pop()),
        |table| drop(table.sets.remove(4)),
        |table| drop(table.chains[3].rules.pop()),
        |table| drop(table.chains[2].rules.pop()),
        |table| drop(table.chains[0].rules.remove(0)),
        |table| table.chains[0].rules.swap(0, 1),
        |table| table.flags = 1,
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut changed = whole.clone();
        change(&mut changed);
        assert!(!changed.is_consistent(), "{index}");
    }
}

#[test]
fn retired_block_reaches_no_other_block() {
    let state = state(&[("web", "a", "n1", "10.244.1.0/24")]);
    let retired = ["10.244.2.0/24", "10.244.3.0/24"].map(|block| block.parse().unwrap());
    let ruleset = retiring(&state, &retired);
    let (web, gone, other) = (
        [10, 244, 1, 2].into(),
        [10, 244, 2, 2].into(),
        [10, 244, 3, 2].into(),
    );
    for (from, to) in [(web, gone), (gone, web), (gone, other), (gone, gone)] {
        assert_eq!(
            ruleset.verdict(from, to, false),
            Verdict::Drop,
            "{from} {to}"
        );
        assert!(!allowed(&state, pool(), from, to), "{from} {to}");
    }
    let outside = [192, 0, 2, 1].into();
    assert_eq!(ruleset.verdict(gone, outside, false), Verdict::Accept);
    assert!(allowed(&state, pool(), gone, outside));
    assert_eq!(ruleset.scope_sets().count(), 1);
}

#[test]
fn address_of_two_networks_reaches_neither() {
    let state = state(&[
        ("web", "a", "n1", "10.244.1.0/24"),
        ("web", "a", "n2", "10.244.3.0/24"),
        ("web", "b", "n1", "10.244.1.64/26"),
        ("web", "b", "n2", "10.244.2.0/24"),
    ]);
    let ruleset = Ruleset::of_state(&state);
    assert!(ruleset.is_consistent());
    let (shared, a, b) = ([10, 244, 1, 70], [10, 244, 1, 7], [10, 244, 2, 7]);
    for (from, to, passes) in [
        (a, [10, 244, 3, 7], true),
        (a, [10, 244, 1, 200], true),
        (shared, a, false),
        (a, shared, false),
        (shared, b, false),
        (b, shared, false),
        (a, b, false),
    ] {
        let verdict = ruleset.verdict(from.into(), to.into(), false);
        assert_eq!(verdict == Verdict::Accept, passes, "{from:?} to {to:?}");
    }
}

/// The allocation of blocks rules it out.
#[test]
fn block_of_two_hosts_is_one_network() {
    let state = state(&[
        ("web", "a", "n1", "10.244.1.0/24"),
        ("web", "a", "n2", "10.244.1.0/24"),
    ]);
    let (from, to) = ([10, 244, 1, 2].into(), [10, 244, 1, 3].into());
    let verdict = Ruleset::of_state(&state).verdict(from, to, false);
    assert_eq!(verdict, Verdict::Accept);
    assert!(allowed(&state, pool(), from, to));
}

#[test]
fn packets_to_containers_leave_by_own_interfaces() {
    let state = state(&[("web", "a", "n1", "10.244.1.0/24")]);
    let ruleset = Ruleset::of_state(&state);
    let own = [10, 244, 1, 2].into();
    for (from, to, dropped) in [
        (own, [10, 244, 1, 3], true),
        // A block that this host does not know yet.
        (own, [10, 244, 9, 2], true),
        (own, [10, 99, 0, 7], true),
        (own, [192, 0, 2, 1], false),
        ([192, 0, 2, 1].into(), [10, 244, 1, 3], false),
    ] {
        let found = ruleset.drops_outside(from, to.into());
        assert_eq!(found, dropped, "{from} to {to:?}");
    }
    assert!(!Ruleset::default().drops_outside(own, own));
}

#[test]
fn established_traffic_passes_between_networks() {
    let state = state(&[
        ("web", "a", "n1", "10.244.1.0/24"),
        ("web", "b", "n1", "10.244.2.0/24"),
    ]);
    let ruleset = Ruleset::of_state(&state);
    let (a, b) = ([10, 244, 1, 2].into(), [10, 244, 2, 2].into());
    assert_eq!(ruleset.verdict(a, b, false), Verdict::Drop);
    assert_eq!(ruleset.verdict(a, b, true), Verdict::Accept);
    let host = [10, 99, 0, 7].into();
    assert_eq!(ruleset.verdict(host, b, false), Verdict::Accept);
}

#[test]
fn internal_networks_lead_nowhere() {
    let mut state = state(&[
        ("shop", "back", "n1", "10.244.1.0/24"),
        ("shop", "back", "n2", "10.244.2.0/24"),
        ("shop", "front", "n1", "10.244.3.0/24"),
    ]);
    make_internal(&mut state, "shop", "back");
    let ip = |text: &str| text.parse::<Ipv4Addr>().unwrap();
    let both = ip("10.244.1.9");
    let inputs = HostInputs {
        outbound: vec![both],
        ..HostInputs::default()
    };
    let ruleset = Ruleset::of_scopes(&scopes(&state), &inputs);
    assert!(ruleset.is_consistent());
    let last = &ruleset.chains[0].rules[ruleset.chains[0].rules.len() - 2..];
    let expected = [
        Rule::AcceptFrom(OUTBOUND_SET.to_owned()),
        Rule::DropFrom(INTERNAL_SET.to_owned()),
    ];
    assert_eq!(last, expected);
    for (from, to, passes) in [
        ("10.244.1.2", "10.244.2.2", true),
        ("10.244.1.2", "10.244.3.2", false),
        ("10.244.1.2", "192.0.2.1", false),
        ("10.244.2.2", "10.99.0.7", false), // another host in the mesh
        ("10.244.1.9", "192.0.2.1", true),
        ("10.244.1.9", "10.244.3.2", false),
        ("10.244.3.2", "192.0.2.1", true),
        ("192.0.2.1", "10.244.1.2", true), // such as a request of the ingress
    ] {
        let (from, to) = (ip(from), ip(to));
        let verdict = ruleset.verdict(from, to, false);
        assert_eq!(verdict == Verdict::Accept, passes, "{from} to {to}");
        assert_eq!(ruleset.forbids(from, to), !passes, "{from} to {to}");
        assert_eq!(ruleset.verdict(from, to, true), Verdict::Accept);
    }
    let mut damaged = ruleset.clone();
    damaged.chains[0].rules.pop();
    assert!(!damaged.is_consistent());
}

fn retiring(state: &State, retired: &[Cidr]) -> Ruleset {
    let inputs = HostInputs {
        retired: retired.to_vec(),
        ..HostInputs::default()
    };
    Ruleset::of_scopes(&scopes(state), &inputs)
}

/// Pool of the blocks in these tests.
fn pool() -> Cidr {
    Cidr::aligned(0x0af4_0000, 16)
}

fn block() -> impl Strategy<Value = String> {
    (0_u8..6, 0_u8..=255, 24_u8..=28).prop_map(|(third, last, prefix)| {
        let last = last & u8::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        format!("10.244.{third}.{last}/{prefix}")
    })
}

fn row() -> impl Strategy<Value = (usize, usize, usize, String)> {
    (0..4_usize, 0..4_usize, 0..3_usize, block())
}

fn address() -> impl Strategy<Value = Ipv4Addr> {
    (9_u8..11, 243_u8..245, 0_u8..7, any::<u8>()).prop_map(|(a, b, c, d)| [a, b, c, d].into())
}

proptest! {
    #[test]
    fn ruleset_agrees_with_reachability(
        rows in prop::collection::vec(row(), 0..12),
        retired in prop::collection::vec(block(), 0..4),
        pairs in prop::collection::vec((address(), address()), 1..40),
        internal in prop::collection::vec((0..4_usize, 0..4_usize), 0..3),
    ) {
        // Names that become equal when characters are replaced.
        let (deployments, networks) = (["a", "a_b", "a-b", "a.b"], ["c", "b_c", "b-c", "default"]);
        let hosts = ["n1", "n2", "n3"];
        let rows: Vec<_> = rows
            .iter()
            .map(|(d, n, h, block)| (deployments[*d], networks[*n], hosts[*h], &**block))
            .collect();
        let mut state = state(&rows);
        for (d, n) in internal {
            let network = NetworkId::new(deployments[d], networks[n]);
            make_internal(&mut state, network.deployment(), network.network());
        }
        let retired: Vec<Cidr> = retired.iter().map(|block| block.parse().unwrap()).collect();
        let ruleset = retiring(&state, &retired);
        let whole = retiring(&state, &[pool()]);
        let mut names: Vec<_> = ruleset.sets.iter().map(|set| &set.name).collect();
        names.sort_unstable();
        names.dedup();
        prop_assert_eq!(names.len(), ruleset.sets.len());
        let known = |address: Ipv4Addr| {
            let rows = state.subnets.values().map(|row| row.cidr.parse::<Cidr>().unwrap());
            let address = Cidr::aligned(address.into(), 32);
            rows.chain(retired.iter().copied()).any(|block| block.overlaps(address))
        };
        for (from, to) in pairs {
            let expected = allowed(&state, pool(), from, to);
            // Every block that is no row's is retired.
            let passes = whole.verdict(from, to, false) == Verdict::Accept;
            prop_assert_eq!(passes, expected, "{} to {}", from, to);
            // A block that is neither a row's nor retired is not known.
            let passes = ruleset.verdict(from, to, false) == Verdict::Accept;
            prop_assert_eq!(ruleset.forbids(from, to), !passes);
            let confined = ruleset.holds(INTERNAL_SET, from);
            let unknown = !known(from) || !known(to);
            prop_assert_eq!(passes, expected || unknown && !confined, "{} to {}", from, to);
        }
    }
}
