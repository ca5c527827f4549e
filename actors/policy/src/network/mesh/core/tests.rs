use super::*;
use crate::network::{
    firewall::ruleset::HostInputs,
    mesh::{
        foreign::MAIN_TABLE,
        plan::DeviceRoute,
        repair::summary,
        testing::{allocate, node, state},
    },
};

/// A core with the time, and the outcome of every pass.
struct Lab {
    core: Core,
    now: Instant,
    /// Summaries of the audited repairs.
    audits: Vec<String>,
}

impl Lab {
    fn new(nodes: &[jaco_proto::v1::Node]) -> Self {
        let now = Instant::now();
        let mut core = Core::new(now, "node-1", 51820);
        core.handle_state(now, &state(nodes));
        Self {
            core,
            now,
            audits: Vec::new(),
        }
    }

    /// Passes the deadlines up to `after` from now and returns the next action.
    fn after(&mut self, after: Duration) -> Option<Action> {
        self.now += after;
        self.core.handle_timeout(self.now);
        assert!(self.core.poll_timeout() > self.now);
        match self.core.poll_action() {
            Some(Action::Audit(repairs)) => {
                self.audits.push(summary(&repairs));
                self.core.poll_action()
            }
            action => action,
        }
    }

    fn see(&mut self, resolved: &[(&str, [u8; 4])]) -> Option<Action> {
        let resolved = resolved.iter();
        let seen = Seen {
            observed: Observed::default(),
            resolved: resolved
                .map(|(name, ip)| (name.to_string(), (*ip).into()))
                .collect(),
        };
        self.core.handle_seen(self.now, Ok(seen));
        self.core.poll_action()
    }

    /// Runs a whole pass, which must be due.
    fn pass(&mut self) {
        assert!(matches!(
            self.after(Duration::ZERO),
            Some(Action::Look { .. })
        ));
        assert!(matches!(self.see(&[]), Some(Action::Apply(_))));
        self.core.handle_applied(self.now, Ok(()));
    }
}

fn steps(action: Option<Action>) -> Vec<Step> {
    match action {
        Some(Action::Apply(steps)) => steps,
        other => panic!("{other:?}"),
    }
}

fn peers(action: Option<Action>) -> Vec<String> {
    let peers = steps(action).into_iter().find_map(|step| match step {
        Step::SetPeers(peers) => Some(peers),
        _ => None,
    });
    let peers = peers.unwrap_or_default().into_iter();
    peers
        .map(|peer| format!("{} {}", peer.hostname, peer.endpoint))
        .collect()
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn first_pass_runs_at_once() {
    let mut lab = Lab::new(&[node("node-1", 1)]);
    assert!(matches!(lab.core.status(), MeshStatus::Unprotected(_)));
    lab.pass();
    assert_eq!(*lab.core.status(), MeshStatus::Up);
    assert_eq!(lab.after(TICK - MS), None);
    assert!(matches!(lab.after(MS), Some(Action::Look { .. })));
}

#[test]
fn node_outside_the_cluster_sets_nothing_up() {
    let mut lab = Lab::new(&[node("node-2", 1)]);
    assert_eq!(lab.after(TICK * 2), None);
    assert!(matches!(lab.core.status(), MeshStatus::Unprotected(_)));
    lab.core.handle_state(lab.now, &state(&[node("node-1", 1)]));
    assert!(matches!(
        lab.after(Duration::ZERO),
        Some(Action::Look { .. })
    ));
}

#[test]
fn burst_of_changes_causes_one_pass() {
    let mut lab = Lab::new(&[node("node-1", 1)]);
    lab.pass();
    for _ in 0..9 {
        lab.core.handle_change(lab.now);
        assert_eq!(lab.after(MS * 100), None);
    }
    lab.core.handle_change(lab.now);
    assert!(
        matches!(lab.after(MS * 100), Some(Action::Look { .. })),
        "1 s after the first"
    );
    lab.core.handle_seen(lab.now, Ok(Seen::default()));
    lab.core.poll_action().unwrap();
    lab.core.handle_applied(lab.now, Ok(()));
    lab.core.handle_change(lab.now);
    assert!(matches!(lab.after(DEBOUNCE), Some(Action::Look { .. })));
}

#[test]
fn changes_during_a_pass_cause_another() {
    let mut lab = Lab::new(&[node("node-1", 1)]);
    assert!(matches!(
        lab.after(Duration::ZERO),
        Some(Action::Look { .. })
    ));
    lab.core.handle_change(lab.now);
    assert_eq!(lab.after(DEBOUNCE), None);
    assert!(matches!(lab.see(&[]), Some(Action::Apply(_))));
    assert_eq!(lab.after(DEBOUNCE), None);
    lab.core.handle_applied(lab.now, Ok(()));
    assert!(matches!(lab.core.poll_action(), Some(Action::Look { .. })));
}

#[test]
fn unrelated_change_of_the_state_causes_no_pass() {
    let nodes = [node("node-1", 1), node("node-2", 2)];
    let mut lab = Lab::new(&nodes);
    lab.pass();
    let mut pressed = nodes.clone();
    pressed[1].cpu_pressure = 0.5;
    lab.core.handle_state(lab.now, &state(&pressed));
    assert_eq!(lab.after(DEBOUNCE), None);
    let mut changed = state(&nodes);
    allocate(&mut changed, "node-2", "10.244.1.0/24");
    lab.core.handle_state(lab.now, &changed);
    assert!(matches!(lab.after(DEBOUNCE), Some(Action::Look { .. })));
}

#[test]
fn failed_pass_is_repeated_with_growing_delay() {
    let mut lab = Lab::new(&[node("node-1", 1)]);
    assert!(lab.after(Duration::ZERO).is_some());
    let mut delays = Vec::new();
    for at in 0..7 {
        match at % 2 {
            0 => lab.core.handle_seen(lab.now, Err("no netlink".to_owned())),
            _ => {
                lab.see(&[]).unwrap();
                lab.core
                    .handle_applied(lab.now, Err("no tunnel".to_owned().into()));
            }
        }
        let reason = ["no netlink", "no tunnel"][at % 2].to_owned();
        assert_eq!(*lab.core.status(), MeshStatus::Unprotected(reason));
        let delay = lab.core.poll_timeout() - lab.now;
        delays.push(delay.as_secs());
        assert!(matches!(lab.after(delay), Some(Action::Look { .. })));
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
}

#[test]
fn node_without_device_is_protected_by_its_blackholes() {
    let mut lab = Lab::new(&[node("node-1", 1)]);
    let blackholes = lab.core.wanted.clone().unwrap().blackholes;
    let look = |lab: &mut Lab, blackholes| {
        let observed = Observed {
            blackholes,
            ..Observed::default()
        };
        let seen = Seen {
            observed,
            ..Seen::default()
        };
        let due = lab.core.poll_timeout() - lab.now;
        assert!(matches!(lab.after(due), Some(Action::Look { .. })));
        lab.core.handle_seen(lab.now, Ok(seen));
        lab.core.poll_action().unwrap();
        let failed = Err("no /dev/net/tun".to_owned().into());
        lab.core.handle_applied(lab.now, failed);
        lab.core.status().clone()
    };
    let reason = || "no /dev/net/tun".to_owned();
    let unprotected = MeshStatus::Unprotected(reason());
    assert_eq!(look(&mut lab, BTreeSet::new()), unprotected);
    let all = look(&mut lab, blackholes.clone());
    assert_eq!(all, MeshStatus::Unavailable(reason()));
    let one = blackholes.into_iter().take(1).collect();
    assert_eq!(look(&mut lab, one), unprotected);
}

#[test]
fn foreign_routes_make_the_node_unprotected() {
    let mut lab = Lab::new(&[node("node-1", 1)]);
    let routes: BTreeSet<ForeignRoute> = (1..=6)
        .map(|third| ForeignRoute {
            to: Cidr::aligned(u32::from_be_bytes([10, 244, third, 0]), 24),
            interfaces: vec!["flannel.1".to_owned()],
            table: MAIN_TABLE,
        })
        .collect();
    let look =
        |lab: &mut Lab, foreign: &BTreeSet<ForeignRoute>, outcome: Result<(), ApplyError>| {
            let observed = Observed {
                blackholes: lab.core.wanted.clone().unwrap().blackholes,
                foreign: foreign.clone(),
                device: None,
            };
            let seen = Seen {
                observed,
                ..Seen::default()
            };
            lab.core.handle_change(lab.now);
            let networks = loop {
                let due = lab.core.poll_timeout() - lab.now;
                match lab.after(due) {
                    Some(Action::Look { networks, .. }) => break networks,
                    None => {}
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(networks, lab.core.wanted.clone().unwrap().blackholes);
            lab.core.handle_seen(lab.now, Ok(seen));
            // The rest of the mesh is repaired all the same.
            assert!(matches!(lab.core.poll_action(), Some(Action::Apply(_))));
            lab.core.handle_applied(lab.now, outcome);
            lab.core.status().clone()
        };
    let one = routes.iter().take(1).cloned().collect();
    let unprotected = MeshStatus::ForeignRoutes {
        routes: "10.244.1.0/24 dev flannel.1".to_owned(),
        unreached: BTreeSet::new(),
    };
    assert_eq!(look(&mut lab, &one, Ok(())), unprotected);
    let failed = Err("another program has a route to 10.244.1.0/24"
        .to_owned()
        .into());
    assert_eq!(look(&mut lab, &one, failed), unprotected);
    let MeshStatus::ForeignRoutes { routes: many, .. } = look(&mut lab, &routes, Ok(())) else {
        panic!("{:?}", lab.core.status());
    };
    assert!(
        many.ends_with("10.244.4.0/24 dev flannel.1 and 2 more"),
        "{many}"
    );
    assert_eq!(look(&mut lab, &BTreeSet::new(), Ok(())), MeshStatus::Up);
}

#[test]
fn named_peer_keeps_its_last_address() {
    let mut named = node("node-2", 2);
    named.address = "two.example:7001".to_owned();
    let mut lab = Lab::new(&[node("node-1", 1), named, node("node-3", 3)]);
    let look = Action::Look {
        networks: ["10.99.0.0/24", "10.244.0.0/16"]
            .map(|network| network.parse().unwrap())
            .into(),
        names: ["two.example".to_owned()].into(),
    };
    assert_eq!(lab.after(Duration::ZERO), Some(look));
    let third = "node-3 192.0.2.7:51820";
    let seen = lab.see(&[]);
    assert_eq!(peers(seen), [third], "skipped until the next pass");
    assert_eq!(lab.core.unresolved(), ["two.example"]);
    lab.core.handle_applied(lab.now, Ok(()));
    for resolved in [&[("two.example", [192, 0, 2, 2])][..], &[]] {
        lab.after(TICK).unwrap();
        let seen = lab.see(resolved);
        assert_eq!(peers(seen), ["node-2 192.0.2.2:51820", third]);
        assert!(lab.core.unresolved().is_empty());
        lab.core.handle_applied(lab.now, Ok(()));
    }
}

#[test]
fn block_is_admitted_once_the_ruleset_has_it() {
    let nodes = [node("node-1", 1), node("node-2", 2)];
    let mut state = state(&nodes);
    allocate(&mut state, "node-2", "10.244.1.0/24");
    let mut lab = Lab::new(&[]);
    lab.core.handle_isolation(lab.now, Isolation::NotInForce);
    lab.core.handle_state(lab.now, &state);
    lab.after(Duration::ZERO).unwrap();
    let routes = |steps: Vec<Step>| -> Vec<String> {
        let routes = steps.into_iter().filter_map(|step| match step {
            Step::AddRoute(route) => Some(route.to.to_string()),
            _ => None,
        });
        routes.collect()
    };
    assert_eq!(routes(steps(lab.see(&[]))), ["10.99.0.0/24"]);
    lab.core.handle_applied(lab.now, Ok(()));
    let enforced = crate::network::firewall::core::Rendered::of(&state, HostInputs::default());
    // The blocks of the others cannot be reached yet.
    assert!(matches!(lab.core.status(), MeshStatus::Unavailable(_)));
    let enforced = Isolation::InForce(Arc::new(enforced));
    lab.core.handle_isolation(lab.now, enforced);
    lab.after(Duration::ZERO).unwrap();
    let both = ["10.99.0.0/24", "10.244.1.0/24"];
    assert_eq!(routes(steps(lab.see(&[]))), both);
    lab.core.handle_applied(lab.now, Ok(()));
    // Without isolation every block is admitted.
    assert_eq!(*lab.core.status(), MeshStatus::Up);
    lab.core.handle_isolation(lab.now, Isolation::Off);
    assert_eq!(lab.after(DEBOUNCE), None);
}

#[test]
fn inherited_blocks_stay_admitted_until_the_test() {
    let nodes = [node("node-1", 1), node("node-2", 2)];
    let mut state = state(&nodes);
    let block = "10.244.1.0/24";
    allocate(&mut state, "node-2", block);
    allocate(&mut state, "node-2", "10.244.2.0/24");
    let enforced = crate::network::firewall::core::Rendered::of(&state, HostInputs::default());
    let in_force = Isolation::InForce(Arc::new(enforced));
    let admitted = |lab: &mut Lab| -> BTreeSet<String> {
        let peers = steps(lab.see(&[])).into_iter().find_map(|step| match step {
            Step::SetPeers(peers) => Some(peers),
            _ => None,
        });
        let networks = peers
            .into_iter()
            .flatten()
            .flat_map(|peer| peer.allowed_ips);
        let blocks = networks.filter(|network| network.prefix() < 32);
        blocks.map(|block| block.to_string()).collect()
    };
    let one = BTreeSet::from([block.to_owned()]);
    let both = BTreeSet::from([block.to_owned(), "10.244.2.0/24".to_owned()]);
    for (report, after, expected) in [
        (None, INHERITANCE - MS, &one),
        (None, INHERITANCE, &BTreeSet::new()),
        (Some(Isolation::Untested), MS, &one),
        (Some(Isolation::NotInForce), MS, &BTreeSet::new()),
        (Some(in_force), MS, &both),
    ] {
        let mut lab = Lab::new(&[]);
        lab.core.handle_isolation(lab.now, Isolation::Untested);
        lab.core
            .handle_inherited(lab.now, [block.parse().unwrap()].into());
        lab.core.handle_state(lab.now, &state);
        assert_eq!(admitted(&mut lab), one);
        assert!(lab.core.awaits_isolation());
        if let Some(isolation) = report {
            lab.core.handle_isolation(lab.now, isolation);
        }
        lab.now += after;
        lab.core.handle_timeout(lab.now);
        assert_eq!(admitted(&mut lab), *expected);
    }
}

#[test]
fn cluster_pool_is_covered_by_a_blackhole() {
    let mut lab = Lab::new(&[node("node-1", 1)]);
    let pool = "10.128.0.0/12".parse().unwrap();
    lab.core.handle_pool(lab.now, pool);
    lab.after(Duration::ZERO).unwrap();
    assert!(steps(lab.see(&[])).contains(&Step::AddBlackhole(pool)));
}

#[test]
fn removed_node_takes_its_mesh_down() {
    let mut lab = Lab::new(&[node("node-1", 1)]);
    lab.pass();
    lab.core.handle_state(lab.now, &state(&[node("node-2", 2)]));
    assert!(matches!(lab.core.status(), MeshStatus::Unprotected(_)));
    assert!(matches!(
        lab.after(Duration::ZERO),
        Some(Action::Look { .. })
    ));
    let hole = "10.99.0.0/24".parse().unwrap();
    let observed = Observed {
        blackholes: [hole].into(),
        ..Observed::default()
    };
    let seen = Seen {
        observed,
        ..Seen::default()
    };
    lab.core.handle_seen(lab.now, Ok(seen));
    assert_eq!(steps(lab.core.poll_action()), [Step::RemoveBlackhole(hole)]);
    assert!(!lab.core.poll_close());
    lab.core.handle_applied(lab.now, Ok(()));
    assert!(lab.core.poll_close() && !lab.core.poll_close());
    assert!(matches!(lab.core.status(), MeshStatus::Unprotected(_)));
    assert_eq!(lab.after(TICK), None);
    // It may join again.
    lab.core.handle_state(lab.now, &state(&[node("node-1", 1)]));
    lab.pass();
    assert_eq!(*lab.core.status(), MeshStatus::Up);
}

#[test]
fn node_removed_during_a_pass_is_not_up() {
    for seen in [true, false] {
        let mut lab = Lab::new(&[node("node-1", 1)]);
        lab.after(Duration::ZERO).unwrap();
        if seen {
            lab.see(&[]).unwrap();
        }
        lab.core.handle_state(lab.now, &state(&[]));
        if seen {
            lab.core.handle_applied(lab.now, Ok(()));
            assert!(matches!(
                lab.after(Duration::ZERO),
                Some(Action::Look { .. })
            ));
        }
        assert_eq!(lab.see(&[]), None, "nothing is left");
        assert!(matches!(lab.core.status(), MeshStatus::Unprotected(_)));
        assert!(lab.core.poll_close());
    }
}

#[test]
fn equal_states_are_not_computed_again() {
    let nodes = [node("node-1", 1), node("node-2", 2)];
    let mut lab = Lab::new(&nodes);
    let stored = |lab: &Lab| lab.core.state.clone().unwrap();
    let first = stored(&lab);
    let mut pressed = nodes.clone();
    pressed[1].cpu_pressure = 0.5;
    lab.core.handle_state(lab.now, &state(&pressed));
    assert!(stored(&lab).nodes.ptr_eq(&first.nodes));
    let changes: [fn(&mut jaco_proto::v1::Node); 4] = [
        |node| node.wg_port = 7,
        |node| node.address = "192.0.2.9:1".to_owned(),
        |node| node.wireguard_pubkey = vec![7; 32],
        |node| node.joined_at = None,
    ];
    for change in changes {
        let mut changed = nodes.clone();
        change(&mut changed[1]);
        let changed = state(&changed);
        lab.core.handle_state(lab.now, &changed);
        assert!(stored(&lab).nodes.ptr_eq(&changed.nodes));
    }
}

#[test]
fn own_changes_do_not_shorten_the_retry() {
    let mut lab = Lab::new(&[node("node-1", 1), node("node-2", 2)]);
    lab.after(Duration::ZERO).unwrap();
    let mut passes = 0;
    for _ in 0..100 {
        lab.see(&[]).unwrap();
        // The device was opened, which the kernel announces.
        lab.core.handle_change(lab.now);
        assert_eq!(lab.after(DEBOUNCE), None);
        let failed = Err("no peers".to_owned().into());
        lab.core.handle_applied(lab.now, failed);
        lab.core.handle_change(lab.now);
        passes += 1;
        let start = lab.now;
        while !matches!(lab.after(MS * 100), Some(Action::Look { .. })) {}
        assert!(passes > 5 || lab.now - start >= FIRST_RETRY * (1 << (passes - 1)));
        if passes == 6 {
            return;
        }
    }
}

#[test]
fn changed_members_cut_the_retry_short() {
    let mut lab = Lab::new(&[node("node-1", 1)]);
    for _ in 0..6 {
        let delay = lab.core.poll_timeout().saturating_duration_since(lab.now);
        lab.after(delay).unwrap();
        lab.core.handle_seen(lab.now, Err("no netlink".to_owned()));
    }
    let members = [node("node-1", 1), node("node-2", 2)];
    lab.core.handle_state(lab.now, &state(&members));
    assert!(matches!(lab.after(DEBOUNCE), Some(Action::Look { .. })));
}

#[test]
fn mesh_does_not_wait_for_names() {
    let mut named = node("node-2", 2);
    named.address = "two.example:7001".to_owned();
    let mut lab = Lab::new(&[node("node-1", 1), named]);
    lab.pass();
    assert_eq!(lab.core.unresolved(), ["two.example"]);
    for (octet, passes) in [(2, true), (2, false), (3, true)] {
        let resolved = [("two.example".to_owned(), [192, 0, 2, octet].into())];
        lab.core.handle_resolved(lab.now, resolved.into());
        assert!(lab.core.unresolved().is_empty());
        assert_eq!(lab.after(DEBOUNCE).is_some(), passes, "{octet}");
        if passes {
            let address = format!("node-2 192.0.2.{octet}:51820");
            assert_eq!(peers(lab.see(&[])), [address]);
            lab.core.handle_applied(lab.now, Ok(()));
        }
    }
}

/// Applies the steps of a plan and reports success.
fn restore(lab: &mut Lab, observed: Observed) {
    let seen = Seen {
        observed,
        ..Seen::default()
    };
    lab.core.handle_seen(lab.now, Ok(seen));
    if let Some(Action::Apply(_)) = lab.core.poll_action() {
        lab.core.handle_applied(lab.now, Ok(()));
    }
}

/// Passes the deadlines up to `after` from now, with a kernel that always shows `observed`; returns
/// the summaries of the audited repairs.
fn audits(lab: &mut Lab, after: Duration, observed: &Observed) -> Vec<String> {
    let end = lab.now + after;
    lab.audits.clear();
    loop {
        let next = lab.core.poll_timeout().clamp(lab.now, end);
        match lab.after(next - lab.now) {
            Some(Action::Look { .. }) => restore(lab, observed.clone()),
            Some(other) => panic!("{other:?}"),
            None if lab.now == end => return std::mem::take(&mut lab.audits),
            None => {}
        }
    }
}

#[test]
fn repairs_are_audited_at_a_bounded_rate() {
    let mut lab = Lab::new(&[node("node-1", 1)]);
    let lost = Observed::default();
    assert_eq!(audits(&mut lab, MS, &lost), [""; 0], "it is set up");
    let blackhole = "10.244.0.0/16".parse().unwrap();
    let damaged = Observed {
        blackholes: [blackhole].into(),
        ..Observed::default()
    };
    lab.core.handle_change(lab.now);
    let first = ["missing:device,missing:blackhole:10.99.0.0/24"];
    assert_eq!(audits(&mut lab, DEBOUNCE + MS, &damaged), first);
    // A program that deletes everything again and again.
    let mut count = 0;
    for _ in 0..600 {
        lab.core.handle_change(lab.now);
        for summary in audits(&mut lab, Duration::from_secs(1), &lost) {
            assert!(summary.starts_with("missing:device,missing:blackhole:"));
            count += 1;
        }
    }
    assert!((9..=10).contains(&count), "{count} events in 600 s");
}

#[test]
fn own_changes_and_failed_passes_are_no_repairs() {
    let mut lab = Lab::new(&[node("node-1", 1), node("node-2", 2)]);
    assert_eq!(audits(&mut lab, MS, &Observed::default()), [""; 0]);
    let mut changed = state(&[node("node-1", 1), node("node-2", 2)]);
    allocate(&mut changed, "node-2", "10.244.1.0/24");
    // The pass fails after some steps, and the state changes back.
    lab.core.handle_state(lab.now, &changed);
    assert!(matches!(lab.after(DEBOUNCE), Some(Action::Look { .. })));
    lab.see(&[]).unwrap();
    lab.core
        .handle_applied(lab.now, Err("no route".to_owned().into()));
    let former = state(&[node("node-1", 1), node("node-2", 2)]);
    lab.core.handle_state(lab.now, &former);
    let found = audits(&mut lab, TICK, &Observed::default());
    assert_eq!(
        found,
        ["missing:device,missing:blackhole:10.99.0.0/24,missing:blackhole:10.244.0.0/16"]
    );
}

#[test]
fn mesh_over_the_nodes_network_is_refused() {
    let mut own = node("node-1", 1);
    own.address = "10.0.0.7:7001".to_owned();
    let mut lab = Lab::new(&[own.clone(), node("node-2", 2)]);
    lab.core.handle_pool(lab.now, "10.0.0.0/8".parse().unwrap());
    for _ in 0..3 {
        assert!(matches!(lab.after(TICK), Some(Action::Look { .. })));
        assert_eq!(lab.see(&[]), None, "no blackhole, no device");
        let MeshStatus::Overlaps(overlap) = lab.core.status() else {
            panic!("{:?}", lab.core.status());
        };
        assert_eq!(overlap.network.to_string(), "10.0.0.0/8");
    }
    // It moves to another network.
    own.address = "192.0.2.1:7001".to_owned();
    let nodes = [own, node("node-2", 2)];
    lab.core.handle_state(lab.now, &state(&nodes));
    assert!(matches!(lab.after(DEBOUNCE), Some(Action::Look { .. })));
    lab.see(&[]).unwrap();
    lab.core.handle_applied(lab.now, Ok(()));
    assert_eq!(*lab.core.status(), MeshStatus::Up);
}

/// A mesh with the blocks 10.244.1.0/24 and 10.244.2.0/24 of another node, whose kernel has the
/// blackholes, after a pass in which the routes to `failed` were not added.
fn pass_without_routes(failed: &[&str], foreign: Option<&str>) -> Lab {
    let mut lab = Lab::new(&[node("node-1", 1)]);
    let mut state = state(&[node("node-1", 1), node("node-2", 2)]);
    allocate(&mut state, "node-2", "10.244.1.0/24");
    allocate(&mut state, "node-2", "10.244.2.0/24");
    lab.core.handle_state(lab.now, &state);
    assert!(matches!(
        lab.after(Duration::ZERO),
        Some(Action::Look { .. })
    ));
    let foreign = foreign.map(|to| ForeignRoute {
        to: to.parse().unwrap(),
        interfaces: vec!["eth1".to_owned()],
        table: MAIN_TABLE,
    });
    let seen = Seen {
        observed: Observed {
            foreign: foreign.into_iter().collect(),
            ..Observed::default()
        },
        ..Seen::default()
    };
    lab.core.handle_seen(lab.now, Ok(seen));
    let steps = steps(lab.core.poll_action());
    let fails = |step: &&Step| match step {
        Step::AddRoute(route) => failed.contains(&route.to.to_string().as_str()),
        _ => false,
    };
    let failure = steps.iter().filter(fails).fold(None, |earlier, step| {
        Some(ApplyError::with(earlier, step, step.to_string()))
    });
    lab.core
        .handle_applied(lab.now, failure.map_or(Ok(()), Err));
    lab
}

#[test]
fn failed_route_costs_its_block_alone() {
    let block = |text: &str| -> Cidr { text.parse().unwrap() };
    let lab = pass_without_routes(&["10.244.2.0/24"], None);
    let partial = MeshStatus::Partial {
        reason: "add route 10.244.2.0/24".to_owned(),
        unreached: [block("10.244.2.0/24")].into(),
    };
    assert_eq!(*lab.core.status(), partial);
    assert!(partial.is_protected());
    let lab = pass_without_routes(&["10.244.2.0/24"], Some("10.244.1.128/25"));
    let both = ["10.244.1.0/24", "10.244.2.0/24"].map(block);
    assert_eq!(lab.core.status().unreached(), Some(both.into()));
    assert!(!lab.core.status().is_protected());
    let lab = pass_without_routes(&[], Some("10.244.1.128/25"));
    let first = [block("10.244.1.0/24")];
    assert_eq!(lab.core.status().unreached(), Some(first.into()));
}

#[test]
fn failures_of_steps_add_up() {
    let route = |text: &str| DeviceRoute {
        to: text.parse().unwrap(),
        source: None,
        metric: 0,
    };
    let (one, two) = (route("10.244.1.0/24"), route("10.244.2.0/24"));
    let blocks = |steps: &[Step]| {
        let failure = steps.iter().fold(None, |earlier, step| {
            Some(ApplyError::with(earlier, step, step.to_string()))
        });
        let failure = failure.unwrap();
        assert_eq!(failure.reason, steps[0].to_string());
        failure.unreached.map(|blocks| blocks.len())
    };
    let blackhole = || Step::AddBlackhole(one.to);
    for (steps, expected) in [
        (&[Step::AddRoute(one), Step::ReplaceRoute(two)][..], Some(2)),
        (
            &[Step::RemoveRoute(one), Step::RemoveBlackhole(two.to)],
            Some(0),
        ),
        (&[Step::AddRoute(one), Step::SetPeers(Vec::new())], None),
        (&[blackhole(), Step::AddRoute(one)], None),
        (&[Step::OpenDevice], None),
    ] {
        assert_eq!(blocks(steps), expected, "{steps:?}");
    }
}

#[test]
fn change_after_a_failed_pass_is_handled() {
    let mut lab = pass_without_routes(&["10.244.2.0/24"], None);
    // A long pause between attempts.
    for _ in 0..6 {
        let due = lab.core.poll_timeout() - lab.now;
        while !matches!(lab.after(due), Some(Action::Look { .. })) {}
        lab.core.handle_seen(lab.now, Err("no netlink".to_owned()));
        // Announcements of what the pass did itself.
        lab.core.handle_change(lab.now);
    }
    let pause = lab.core.poll_timeout() - lab.now;
    assert!(pause > TICK / 2, "{pause:?}");
    assert_eq!(lab.after(SETTLING), None);
    lab.core.handle_change(lab.now);
    assert!(matches!(lab.after(DEBOUNCE), Some(Action::Look { .. })));
}
