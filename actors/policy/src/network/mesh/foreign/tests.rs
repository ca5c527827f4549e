use super::*;

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// The pool and the mesh.
fn networks() -> BTreeSet<Cidr> {
    ["10.244.0.0/16", "10.99.0.0/24"].map(cidr).into()
}

fn route(to: &str, interface: &str, table: u32, metric: u32) -> SendingRoute {
    SendingRoute {
        table,
        to: cidr(to),
        metric,
        interfaces: vec![interface.to_owned()],
    }
}

/// A rule for all packets.
fn rule(priority: u32, table: u32) -> RoutingRule {
    RoutingRule {
        priority,
        table,
        ..RoutingRule::default()
    }
}

/// The rules of a new host, and `more`.
fn rules(more: &[RoutingRule]) -> Vec<RoutingRule> {
    let present = [
        rule(0, LOCAL_TABLE),
        rule(32_766, MAIN_TABLE),
        rule(32_767, 253),
    ];
    [&present, more].concat()
}

fn found(rules: &[RoutingRule], route: &SendingRoute) -> bool {
    let found = foreign_routes(&networks(), rules, std::slice::from_ref(route));
    assert!(found.len() <= 1);
    found.iter().all(|found| found.to == route.to) && !found.is_empty()
}

#[test]
fn routes_of_the_main_table_are_judged() {
    for (to, interface, metric, foreign) in [
        // Of the same destinations as a blackhole, or of a part of them.
        ("10.244.0.0/16", "flannel.1", 0, true),
        ("10.244.0.0/16", "eth1", BLACKHOLE_METRIC - 1, true),
        ("10.244.0.0/16", "eth1", BLACKHOLE_METRIC, false),
        ("10.244.0.0/16", "eth1", BLACKHOLE_METRIC + 1, false),
        ("10.244.7.0/24", "flannel.1", 0, true),
        ("10.244.7.9/32", "eth1", 50_000, true),
        ("10.99.0.8/32", "wg0", 0, true),
        // The blackhole is more specific.
        ("0.0.0.0/0", "eth0", 0, false),
        ("10.0.0.0/8", "eth0", 0, false),
        ("10.240.0.0/12", "eth0", 0, false),
        // Elsewhere.
        ("10.245.0.0/24", "eth0", 0, false),
        ("10.99.1.0/24", "eth0", 0, false),
        // Those of this node.
        ("10.244.7.0/24", "jaco0", 0, false),
        ("10.244.7.0/24", "jaco-ca84-9ecc", 0, false),
        ("10.244.7.0/24", "lo", 0, false),
    ] {
        let route = route(to, interface, MAIN_TABLE, metric);
        assert_eq!(found(&rules(&[]), &route), foreign, "{route:?}");
    }
}

#[test]
fn tables_before_the_main_one_are_judged() {
    let table = 100;
    let before = rule(5000, table);
    let all: &[(RoutingRule, bool)] = &[
        (before.clone(), true),
        (rule(32_767, table), false),
        (rule(5000, table + 1), false),
        (
            RoutingRule {
                marked: true,
                ..before.clone()
            },
            false,
        ),
        (
            RoutingRule {
                marked: true,
                inverted: true,
                ..before.clone()
            },
            true,
        ),
        (
            RoutingRule {
                partial: true,
                ..before.clone()
            },
            true,
        ),
        (
            RoutingRule {
                from: Some(cidr("192.0.2.7/32")),
                ..before.clone()
            },
            false,
        ),
        (
            RoutingRule {
                from: Some(cidr("10.244.1.0/24")),
                ..before.clone()
            },
            true,
        ),
        (
            RoutingRule {
                to: Some(cidr("192.0.2.0/24")),
                ..before.clone()
            },
            false,
        ),
        (
            RoutingRule {
                to: Some(cidr("10.244.1.0/24")),
                ..before.clone()
            },
            true,
        ),
        (
            RoutingRule {
                interface: Some("eth0".to_owned()),
                ..before.clone()
            },
            false,
        ),
        (
            RoutingRule {
                interface: Some("jaco-ca84-9ecc".to_owned()),
                ..before.clone()
            },
            true,
        ),
        (
            RoutingRule {
                interface: Some("lo".to_owned()),
                ..before.clone()
            },
            true,
        ),
        (
            RoutingRule {
                suppressed: Some(0),
                ..before
            },
            false,
        ),
    ];
    let default = route("0.0.0.0/0", "wg0", table, 0);
    for (added, foreign) in all {
        let rules = rules(std::slice::from_ref(added));
        assert_eq!(found(&rules, &default), *foreign, "{added:?}");
        let elsewhere = route("192.0.2.0/24", "wg0", table, 0);
        assert!(!found(&rules, &elsewhere), "{added:?}");
    }
}

#[test]
fn main_table_asked_early_keeps_its_packets() {
    // As wg-quick(8) sets a tunnel for everything up.
    let tunnel = RoutingRule {
        marked: true,
        inverted: true,
        ..rule(32_765, 51_820)
    };
    let early = RoutingRule {
        suppressed: Some(0),
        ..rule(32_764, MAIN_TABLE)
    };
    let default = route("0.0.0.0/0", "wg0", 51_820, 0);
    let both = rules(&[tunnel.clone(), early.clone()]);
    assert!(!found(&both, &default));
    assert!(found(&rules(std::slice::from_ref(&tunnel)), &default));
    let wide = RoutingRule {
        suppressed: Some(24),
        ..early
    };
    assert!(found(&rules(&[tunnel, wide]), &default));
    // The main table is asked by no rule for all packets.
    let selective = RoutingRule {
        from: Some(cidr("192.0.2.0/24")),
        ..rule(32_766, MAIN_TABLE)
    };
    assert!(found(&[selective, rule(40_000, 51_820)], &default));
}

#[test]
fn route_by_several_interfaces_is_foreign_by_one() {
    let mut spread = route("10.244.7.0/24", "jaco0", MAIN_TABLE, 0);
    assert!(!found(&rules(&[]), &spread));
    spread.interfaces.push("eth1".to_owned());
    assert!(found(&rules(&[]), &spread));
    spread.interfaces.clear();
    assert!(found(&rules(&[]), &spread));
}

#[test]
fn foreign_route_is_shown_as_ip_shows_it() {
    let found = |route: SendingRoute| {
        let found = foreign_routes(&networks(), &rules(&[rule(7, 100)]), &[route]);
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let main = route("10.244.7.0/24", "flannel.1", MAIN_TABLE, 0);
    assert_eq!(found(main), ["10.244.7.0/24 dev flannel.1"]);
    let other = route("0.0.0.0/0", "wg0", 100, 0);
    assert_eq!(found(other), ["0.0.0.0/0 dev wg0 table 100"]);
}
