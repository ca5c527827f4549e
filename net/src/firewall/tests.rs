mod packets;

use std::process::Command;

use proptest::prelude::*;

use super::*;
use crate::netns::Namespace;

const POOL: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 244, 0, 0), 16);
const MESH: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 99, 0, 0), 24);

/// Runs `work` in a new namespace.
fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    Namespace::create().unwrap().within(work).unwrap()
}

/// Runs a program in the namespace of this thread and returns its output.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn nft(line: &str) -> String {
    run("nft", &[line])
}

fn iptables(line: &str) -> String {
    run("iptables", &line.split(' ').collect::<Vec<_>>())
}

/// Block 10.244.n.0/24.
fn block(n: u8) -> (u32, u32) {
    let first = u32::from_be_bytes([10, 244, n, 0]);
    (first, first + 255)
}

fn set(name: &str, elements: &[(u32, u32)]) -> Set {
    Set {
        name: name.to_owned(),
        elements: Elements::Intervals(elements.to_vec()),
    }
}

fn intervals(set: &Set) -> &[(u32, u32)] {
    match &set.elements {
        Elements::Intervals(intervals) => intervals,
        other => panic!("{other:?}"),
    }
}

fn intervals_mut(table: &mut Table, set: usize) -> &mut Vec<(u32, u32)> {
    match &mut table.sets[set].elements {
        Elements::Intervals(intervals) => intervals,
        other => panic!("{other:?}"),
    }
}

fn chains_mut(table: &mut Table) -> &mut Vec<((u32, u32), std::sync::Arc<str>)> {
    match &mut table.sets[2].elements {
        Elements::Chains(chains) => chains,
        other => panic!("{other:?}"),
    }
}

fn chain(name: &str, hook: u32, rules: Vec<Rule>) -> Chain {
    Chain {
        name: name.to_owned(),
        base: Some(Base {
            kind: "filter".to_owned(),
            hook,
            priority: 0,
            accepts: true,
        }),
        rules,
    }
}

/// The table of the given sets, as JACO uses it.
fn table(sets: Vec<Set>) -> Table {
    let mut pool: Vec<_> = sets
        .iter()
        .flat_map(|set| intervals(set).to_vec())
        .collect();
    pool.sort_unstable();
    let (mut rules, mut sent) = (Vec::new(), Vec::new());
    if !pool.is_empty() {
        rules.push(Rule::DropOutside {
            from: "jaco_pool".to_owned(),
            to: "jaco_sources".to_owned(),
        });
        sent.push(Rule::DropSentOutside("jaco_pool".to_owned()));
    }
    rules.push(Rule::AcceptEstablished);
    let of_network = |set: &Set| Chain {
        base: None,
        ..chain(&set.name, 0, vec![Rule::AcceptTo(set.name.clone())])
    };
    let networks: Vec<Chain> = sets.iter().map(of_network).collect();
    let mut sets = sets;
    if !sets.is_empty() {
        rules.push(Rule::Select("jaco_networks".to_owned()));
        let chain_of = |set: &Set| {
            let spans = intervals(set).to_vec();
            let name: std::sync::Arc<str> = set.name.as_str().into();
            spans.into_iter().map(move |span| (span, name.clone()))
        };
        let mut chains: Vec<_> = sets.iter().flat_map(chain_of).collect();
        chains.sort_unstable();
        sets.push(Set {
            name: "jaco_networks".to_owned(),
            elements: Elements::Chains(chains),
        });
    }
    if !pool.is_empty() {
        sets.push(set("jaco_pool", &pool));
        rules.push(Rule::DropWithin("jaco_pool".to_owned()));
    }
    let net =
        |bytes: [u8; 4], hosts| (u32::from_be_bytes(bytes), u32::from_be_bytes(bytes) | hosts);
    sets.push(set(
        "jaco_sources",
        &[net([10, 99, 0, 0], 0xff), net([10, 244, 0, 0], 0xffff)],
    ));
    sets.push(Set {
        name: "jaco_attachments".to_owned(),
        elements: Elements::Interfaces(vec![(Ipv4Addr::new(10, 244, 2, 9), "jaco-v3".to_owned())]),
    });
    let mut prerouting = chain(
        "prerouting",
        0,
        vec![
            Rule::AcceptAttached("jaco_attachments".to_owned()),
            Rule::DropUnrouted("jaco_sources".to_owned()),
        ],
    );
    prerouting.base.as_mut().unwrap().priority = -300;
    let mut chains = vec![
        chain("forward", 2, rules),
        chain("input", 1, vec![]),
        chain("output", 3, sent),
        prerouting,
    ];
    chains.extend(networks);
    Table {
        flags: 0,
        sets,
        chains,
    }
}

fn example() -> Table {
    table(vec![
        set("dep_net_api__default", &[block(0), block(1), block(5)]),
        set("dep_net_web_front", &[block(2)]),
    ])
}

/// The table of [`example`] as nft shows it.
const LISTING: &str = "\
table inet jaco {
	set dep_net_api__default {
		type ipv4_addr
		flags interval
		elements = { 10.244.0.0/24, 10.244.1.0/24,
			     10.244.5.0/24 }
	}

	set dep_net_web_front {
		type ipv4_addr
		flags interval
		elements = { 10.244.2.0/24 }
	}

	map jaco_networks {
		type ipv4_addr : verdict
		flags interval
		elements = { 10.244.0.0/24 : jump dep_net_api__default, 10.244.1.0/24 : jump dep_net_api__default,
			     10.244.2.0/24 : jump dep_net_web_front, 10.244.5.0/24 : jump dep_net_api__default }
	}

	set jaco_pool {
		type ipv4_addr
		flags interval
		elements = { 10.244.0.0/24, 10.244.1.0/24,
			     10.244.2.0/24, 10.244.5.0/24 }
	}

	set jaco_sources {
		type ipv4_addr
		flags interval
		elements = { 10.99.0.0/24, 10.244.0.0/16 }
	}

	set jaco_attachments {
		type ipv4_addr . ifname
		elements = { 10.244.2.9 . \"jaco-v3\" }
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		oifname != \"jaco*\" ip saddr @jaco_pool ip daddr @jaco_sources counter packets 0 bytes 0 drop
		ct state established,related accept
		ip saddr vmap @jaco_networks
		ip saddr @jaco_pool ip daddr @jaco_pool drop
	}

	chain input {
		type filter hook input priority filter; policy accept;
	}

	chain output {
		type filter hook output priority filter; policy accept;
		oifname != \"jaco*\" oifname != \"lo\" ip daddr @jaco_pool counter packets 0 bytes 0 drop
	}

	chain prerouting {
		type filter hook prerouting priority raw; policy accept;
		ip saddr . iifname @jaco_attachments accept
		ip saddr @jaco_sources fib saddr . iif oif 0 counter packets 0 bytes 0 drop
	}

	chain dep_net_api__default {
		ip daddr @dep_net_api__default accept
	}

	chain dep_net_web_front {
		ip daddr @dep_net_web_front accept
	}
}
";

#[test]
fn written_table_is_shown_by_nft() {
    inside(|| {
        assert_eq!(read_table().unwrap(), None);
        replace_table(&example()).unwrap();
        assert_eq!(nft("list ruleset"), LISTING);
        assert_eq!(read_table().unwrap(), Some(example()));
        // Once more in place of itself.
        replace_table(&example()).unwrap();
        assert_eq!(nft("list ruleset"), LISTING);
    });
}

#[test]
fn table_written_by_nft_is_read_alike() {
    inside(|| {
        let path = std::env::temp_dir().join(format!("jaco-nft-{}", std::process::id()));
        std::fs::write(&path, LISTING).unwrap();
        run("nft", &["-f", path.to_str().unwrap()]);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_table().unwrap(), Some(example()));
    });
}

#[test]
fn rules_about_sources_are_read_alike() {
    inside(|| {
        let mut table = example();
        let sets = ["jaco_internal", "jaco_outbound"];
        table.sets.extend(sets.map(|name| set(name, &[block(1)])));
        let forward = table
            .chains
            .iter_mut()
            .find(|chain| chain.name == "forward");
        let [internal, outbound] = sets.map(str::to_owned);
        let rules = [Rule::AcceptFrom(outbound), Rule::DropFrom(internal)];
        forward.unwrap().rules.extend(rules);
        replace_table(&table).unwrap();
        assert_eq!(read_table().unwrap(), Some(table));
        let listed = nft("list ruleset");
        assert!(
            listed.contains("ip saddr @jaco_outbound accept"),
            "{listed}"
        );
        let dropped = "ip saddr @jaco_internal counter packets 0 bytes 0 drop";
        assert!(listed.contains(dropped), "{listed}");
    });
}

#[test]
fn every_change_of_the_table_is_read() {
    type Change<'a> = (&'a str, &'a dyn Fn(&mut Table));
    let rules = |change: &dyn Fn(&mut Vec<Rule>), table: &mut Table| {
        change(&mut table.chains[0].rules);
    };
    let table: &[Change<'_>] = &[
        ("add table inet jaco { flags dormant; }", &|t| t.flags = 1),
        ("flush chain inet jaco forward", &|t| {
            rules(&|r| r.clear(), t)
        }),
        ("insert rule inet jaco forward accept", &|t| {
            rules(&|r| r.insert(0, Rule::Foreign), t);
        }),
        (
            "insert rule inet jaco forward ip saddr @jaco_pool ip daddr @jaco_pool accept",
            &|t| rules(&|r| r.insert(0, Rule::Foreign), t),
        ),
        (
            "insert rule inet jaco forward ip saddr @jaco_pool ip daddr != @jaco_pool accept",
            &|t| rules(&|r| r.insert(0, Rule::Foreign), t),
        ),
        (
            "insert rule inet jaco forward ip saddr @jaco_pool ip daddr @jaco_pool counter drop",
            &|t| rules(&|r| r.insert(0, Rule::Foreign), t),
        ),
        (
            "insert rule inet jaco forward ct state established accept",
            &|t| {
                rules(&|r| r.insert(0, Rule::Foreign), t);
            },
        ),
        (
            "delete element inet jaco jaco_pool { 10.244.2.0/24 }",
            &|t| drop(intervals_mut(t, 3).drain(2..3)),
        ),
        (
            "add element inet jaco dep_net_web_front { 10.244.9.7-10.244.9.8 }",
            &|t| {
                let first = u32::from_be_bytes([10, 244, 9, 7]);
                intervals_mut(t, 1).push((first, first + 1));
            },
        ),
        (
            "add element inet jaco dep_net_web_front { 255.0.0.0/8 }",
            &|t| intervals_mut(t, 1).push((0xff00_0000, u32::MAX)),
        ),
        (
            "add element inet jaco jaco_attachments { 10.244.1.7 . \"br0\" }",
            &|t| {
                let Elements::Interfaces(list) = &mut t.sets[5].elements else {
                    panic!("no attachments");
                };
                list.insert(0, (Ipv4Addr::new(10, 244, 1, 7), "br0".to_owned()));
            },
        ),
        (
            "add rule inet jaco prerouting ip saddr @jaco_sources fib saddr . iif oif 0 counter drop",
            &|t| {
                t.chains[3]
                    .rules
                    .push(Rule::DropUnrouted("jaco_sources".to_owned()))
            },
        ),
        (
            "add rule inet jaco output oifname != \"jaco*\" ip daddr @jaco_pool counter drop",
            &|t| t.chains[2].rules.push(Rule::Foreign),
        ),
        (
            "add rule inet jaco forward oifname != \"jac*\" ip saddr @jaco_pool ip daddr @jaco_sources counter drop",
            &|t| t.chains[0].rules.push(Rule::Foreign),
        ),
        (
            "add rule inet jaco prerouting ip saddr @jaco_sources fib saddr oif 0 counter drop",
            &|t| t.chains[3].rules.push(Rule::Foreign),
        ),
        (
            "delete element inet jaco jaco_networks { 10.244.2.0/24 }",
            &|t| drop(chains_mut(t).remove(2)),
        ),
        (
            "add element inet jaco jaco_networks { 10.244.9.0/24 : jump dep_net_web_front }",
            &|t| chains_mut(t).push((block(9), "dep_net_web_front".into())),
        ),
        (
            "add element inet jaco jaco_networks { 10.244.9.0/24 : accept }",
            &|t| chains_mut(t).push((block(9), "".into())),
        ),
        (
            "add rule inet jaco forward ip daddr @jaco_pool accept",
            &|t| rules(&|r| r.push(Rule::AcceptTo("jaco_pool".into())), t),
        ),
        (
            "add rule inet jaco forward ip daddr vmap @jaco_networks",
            &|t| rules(&|r| r.push(Rule::Foreign), t),
        ),
        (
            "add map inet jaco x { type ipv4_addr : ipv4_addr; flags interval; }",
            &|t| {
                t.sets.push(Set {
                    elements: Elements::Other,
                    ..set("x", &[])
                });
            },
        ),
        ("add set inet jaco x { type inet_service; }", &|t| {
            t.sets.push(Set {
                elements: Elements::Other,
                ..set("x", &[])
            });
        }),
        ("add chain inet jaco x", &|t| {
            t.chains.push(Chain {
                base: None,
                ..chain("x", 0, vec![])
            });
        }),
        ("chain inet jaco input { policy drop; }", &|t| {
            t.chains[1].base.as_mut().unwrap().accepts = false;
        }),
    ];
    for (line, change) in table {
        let found = inside(|| {
            replace_table(&example()).unwrap();
            nft(line);
            read_table().unwrap().unwrap()
        });
        let mut expected = example();
        change(&mut expected);
        assert_eq!(found, expected, "{line}");
        let repaired = inside(|| {
            replace_table(&example()).unwrap();
            nft(line);
            replace_table(&example()).unwrap();
            read_table().unwrap()
        });
        assert_eq!(repaired, Some(example()), "{line}");
    }
}

#[test]
fn intervals_at_both_ends_are_kept() {
    inside(|| {
        let ends = table(vec![
            set("a", &[(0, 255)]),
            set("b", &[(0xffff_ff00, u32::MAX)]),
            set("c", &[(1007, 1007)]),
        ]);
        replace_table(&ends).unwrap();
        assert_eq!(read_table().unwrap(), Some(ends));
    });
}

#[test]
fn large_table_is_one_batch() {
    inside(|| {
        // 600 networks on 5 hosts: far more than the 128 KiB that one write of libmnl takes.
        let address = |n: u32| 0x0a00_0000 + n * 256;
        let sets = (0..600).map(|n| {
            let blocks: Vec<_> = (0..5)
                .map(|host| (address(n * 5 + host), address(n * 5 + host) + 255))
                .collect();
            set(&format!("dep_net_deployment_{n:04}_network"), &blocks)
        });
        let large = table(sets.collect());
        replace_table(&large).unwrap();
        assert_eq!(read_table().unwrap(), Some(large));
    });
}

#[test]
fn refused_batch_changes_nothing() {
    inside(|| {
        replace_table(&example()).unwrap();
        let mut overlapping = example();
        overlapping.sets[0].elements = Elements::Intervals(vec![(10, 20), (15, 30)]);
        let error = replace_table(&overlapping).unwrap_err();
        assert!(
            matches!(error, Error::Refused("commit a batch", _)),
            "{error:?}"
        );
        let mut foreign = example();
        foreign.chains[0].rules.push(Rule::Foreign);
        assert!(matches!(
            replace_table(&foreign),
            Err(Error::Unsupported(_))
        ));
        let mut unknown = example();
        unknown.chains[0]
            .rules
            .push(Rule::DropWithin("x".to_owned()));
        assert!(matches!(
            replace_table(&unknown),
            Err(Error::Unsupported(_))
        ));
        let mut named = example();
        named.sets[0].name = "x".repeat(300);
        assert!(matches!(replace_table(&named), Err(Error::Unsupported(_))));
        let mut leading = example();
        chains_mut(&mut leading)[0].1 = "x".repeat(300).into();
        assert!(matches!(
            replace_table(&leading),
            Err(Error::Unsupported(_))
        ));
        // A chain that does not exist.
        chains_mut(&mut leading)[0].1 = "x".into();
        assert!(matches!(
            replace_table(&leading),
            Err(Error::Refused("commit a batch", _))
        ));
        assert_eq!(nft("list ruleset"), LISTING);
    });
}

#[test]
fn tables_of_others_are_left_alone() {
    inside(|| {
        for line in [
            "add table ip jaco",
            "add chain ip jaco forward",
            "add table inet other",
            "add chain inet other forward { type filter hook forward priority 0; }",
            "add rule inet other forward drop",
        ] {
            nft(line);
        }
        assert_eq!(read_table().unwrap(), None);
        replace_table(&example()).unwrap();
        assert_eq!(read_table().unwrap(), Some(example()));
        assert_eq!(
            nft("list chain inet other forward").matches("drop").count(),
            1
        );
        nft("list chain ip jaco forward");
    });
}

fn pair(source: (Ipv4Addr, u8), returns: bool) -> PairRule {
    PairRule {
        source,
        destination: POOL,
        returns,
    }
}

#[test]
fn chains_of_iptables_are_edited() {
    inside(|| {
        assert_eq!(read_chain("raw", "PREROUTING").unwrap(), None);
        iptables("-t raw -A PREROUTING -i eth0 -j DROP");
        let rules = [pair(POOL, false), pair(MESH, false)];
        let edits = [Edit::InsertFirst(rules[1]), Edit::InsertFirst(rules[0])];
        edit_chain("raw", "PREROUTING", &edits).unwrap();
        let listing = "-P PREROUTING ACCEPT\n\
            -A PREROUTING -s 10.244.0.0/16 -d 10.244.0.0/16 -j ACCEPT\n\
            -A PREROUTING -s 10.99.0.0/24 -d 10.244.0.0/16 -j ACCEPT\n\
            -A PREROUTING -i eth0 -j DROP\n";
        assert_eq!(iptables("-t raw -S PREROUTING"), listing);
        let found = read_chain("raw", "PREROUTING").unwrap().unwrap();
        let read: Vec<_> = found.iter().map(|found| found.rule).collect();
        assert_eq!(read, [Some(rules[0]), Some(rules[1]), None]);
        // A stale handle changes nothing.
        let stale = [Edit::Delete(found[0].handle), Edit::Delete(1000)];
        assert!(edit_chain("raw", "PREROUTING", &stale).is_err());
        assert_eq!(iptables("-t raw -S PREROUTING"), listing);
        edit_chain("raw", "PREROUTING", &[Edit::Delete(found[0].handle)]).unwrap();
        assert!(!iptables("-t raw -S PREROUTING").contains("-s 10.244"));
        // iptables deletes a rule by its text, so it knows it as its own.
        iptables("-t raw -D PREROUTING -s 10.99.0.0/24 -d 10.244.0.0/16 -j ACCEPT");
    });
}

#[test]
fn rules_of_iptables_are_recognised() {
    let blocks = [
        (Ipv4Addr::new(10, 0, 0, 0), 8),
        (Ipv4Addr::new(10, 240, 0, 0), 12),
        (Ipv4Addr::new(10, 244, 16, 0), 20),
        (Ipv4Addr::new(10, 244, 0, 0), 24),
        (Ipv4Addr::new(10, 244, 7, 9), 32),
    ];
    inside(|| {
        for source in blocks {
            for returns in [true, false] {
                let verdict = if returns { "RETURN" } else { "ACCEPT" };
                let (address, prefix) = source;
                let rule = format!("-s {address}/{prefix} -d 10.244.0.0/16 -j {verdict}");
                iptables(&format!("-t nat -A POSTROUTING {rule}"));
                let pair = pair(source, returns);
                let found = read_chain("nat", "POSTROUTING").unwrap().unwrap();
                assert_eq!(found[0].rule, Some(pair), "{rule}");
                // Written by us, iptables cannot tell it from its own.
                let edits = [Edit::Delete(found[0].handle), Edit::InsertFirst(pair)];
                edit_chain("nat", "POSTROUTING", &edits).unwrap();
                iptables(&format!("-t nat -D POSTROUTING {rule}"));
            }
        }
        for rule in [
            "-s 10.244.0.0/16 -j ACCEPT",
            "-d 10.244.0.0/16 -j ACCEPT",
            "! -s 10.244.0.0/16 -d 10.244.0.0/16 -j ACCEPT",
            "-s 10.244.0.0/16 -d 10.244.0.0/16 -p tcp -j ACCEPT",
            "-s 10.244.0.0/16 -d 10.244.0.0/16 -o eth0 -j ACCEPT",
            "-s 10.244.0.0/16 -d 10.244.0.0/16 -j MASQUERADE",
        ] {
            iptables(&format!("-t nat -A POSTROUTING {rule}"));
            let found = read_chain("nat", "POSTROUTING").unwrap().unwrap();
            assert_eq!(found.last().unwrap().rule, None, "{rule}");
        }
    });
}

#[test]
fn changes_by_anyone_are_notified() {
    inside(|| {
        let changes = Changes::subscribe().unwrap();
        assert!(!changes.drain().unwrap());
        replace_table(&example()).unwrap();
        assert!(changes.drain().unwrap());
        assert!(!changes.drain().unwrap());
        nft("delete element inet jaco jaco_pool { 10.244.2.0/24 }");
        assert!(changes.drain().unwrap());
        // Reading is no change.
        read_table().unwrap();
        assert!(!changes.drain().unwrap());
    });
}

#[test]
fn unchanged_tables_are_read_once() {
    inside(|| {
        let read = |known| read_table_unless(known).unwrap();
        let absent = read(None).unwrap();
        assert_eq!(absent.table, None);
        assert_eq!(read(Some(absent.generation)), None);
        replace_table(&example()).unwrap();
        let first = read(Some(absent.generation)).unwrap();
        assert_eq!(first.table, Some(example()));
        assert_eq!(read(Some(first.generation)), None);
        for line in [
            "add table ip other",
            "delete element inet jaco jaco_pool { 10.244.2.0/24 }",
            "add element inet jaco jaco_pool { 10.244.2.0/24 }",
        ] {
            nft(line);
            let next = read(Some(first.generation)).unwrap();
            assert_ne!(next.generation, first.generation, "{line}");
            assert_eq!(read(Some(next.generation)), None, "{line}");
        }
        // A batch that is refused is no change.
        let last = read(None).unwrap();
        let mut overlapping = example();
        overlapping.sets[0].elements = Elements::Intervals(vec![(10, 20), (15, 30)]);
        replace_table(&overlapping).unwrap_err();
        let known = read(Some(last.generation));
        assert!(known.is_none_or(|reading| reading.table == last.table));
    });
}

#[test]
fn change_between_reading_and_replacement_shows() {
    inside(|| {
        for line in [
            "",
            "flush ruleset",
            "add table ip other",
            "delete table inet jaco",
        ] {
            let known = read_table_unless(None).unwrap().unwrap().generation;
            if !line.is_empty() {
                nft(line);
            }
            replace_table(&example()).unwrap();
            let only = is_only_change_since(known).unwrap();
            assert_eq!(only, line.is_empty(), "{line}");
        }
    });
}

#[test]
fn changes_elsewhere_are_not_notified() {
    let (here, there) = (Namespace::create().unwrap(), Namespace::create().unwrap());
    let changes = here.within(|| Changes::subscribe().unwrap()).unwrap();
    there.within(|| replace_table(&example()).unwrap()).unwrap();
    assert!(!changes.drain().unwrap());
    here.within(|| replace_table(&example()).unwrap()).unwrap();
    assert!(changes.drain().unwrap());
}

#[test]
fn tables_of_iptables_legacy_are_seen() {
    inside(|| {
        assert!(!is_legacy_table("filter"));
        run("iptables-legacy", &["-N", "DOCKER-USER"]);
        assert!(is_legacy_table("filter"));
        assert!(!is_legacy_table("raw"));
    });
}

proptest! {
    #[test]
    fn malformed_answers_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
        let _ = parse_flows(&bytes);
        let _ = parse_drops(&bytes);
        // A plausible header leads further into the parser.
        for kind in [0, 3, 6, 9, 12] {
            let body = message::request(kind, 0, message::INET, 1, &bytes);
            let _ = parse(&body);
            let mut named = message::Writer::default();
            named.put_text(1, TABLE);
            named.0.extend_from_slice(&bytes);
            let named = message::request(kind, 0, message::INET, 1, &named.0);
            let _ = parse(&named);
            let _ = parse_drops(&named);
        }
    }
}
