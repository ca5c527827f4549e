//! Reports of the passes to the cluster, and their times.

use super::*;

#[test]
fn failed_load_makes_the_node_unavailable_until_recovered() {
    let mut bench = Bench::new();
    bench.apply_error = Some("out of memory".to_owned());
    bench.leader(true);
    assert_eq!(
        bench.reported(),
        [
            "IsolationUnavailable: out of memory",
            "isolation_self_test_failed out of memory"
        ]
    );
    bench.advance(SECOND * 100);
    assert_eq!(bench.reported(), Vec::<String>::new(), "said once");
    bench.apply_error = None;
    bench.advance(TICK);
    assert_eq!(
        bench.reported(),
        ["Ready: isolation_reload_recovered", "recovered"]
    );
    assert_eq!(bench.state.nodes["n1"].status(), NodeStatus::Ready);
}

#[test]
fn ruleset_that_does_not_stick_fails_the_test() {
    let mut bench = Bench::enforced();
    bench.kernel = None;
    bench.spoil = Some(|table| drop(table.chains.remove(2)));
    bench.event();
    assert_eq!(
        bench.reported(),
        ["IsolationUnavailable: isolation_self_test_failed: \
          missing:chain:output,missing:rule:output[0]"]
    );
}

#[test]
fn drift_of_a_failed_repair_is_audited_later() {
    let mut bench = Bench::enforced();
    bench.kernel.as_mut().unwrap().chains[0].rules.pop();
    bench.spoil = Some(|table| drop(table.chains.remove(2)));
    bench.event();
    assert_eq!(bench.reported().len(), 1, "the status");
    // The other program ends; its change of the repaired table is undone by itself.
    bench.spoil = None;
    bench.kernel = Some(Ruleset::of_state(&bench.state));
    bench.advance(TICK);
    assert_eq!(
        bench.reported(),
        [
            "Ready: isolation_reload_recovered",
            "applied missing:rule:forward[3]",
            "recovered"
        ]
    );
    assert_eq!(bench.status.repairs, 1);
}

#[test]
fn unreadable_kernel_leaves_the_status() {
    let mut bench = Bench::enforced();
    bench.read_error = Some("operation not permitted".to_owned());
    bench.event();
    assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
    assert_eq!(bench.reported(), Vec::<String>::new());
    // A node that never passed the test has nothing to rely on.
    let mut bench = Bench::new();
    bench.read_error = Some("operation not permitted".to_owned());
    bench.leader(true);
    assert_eq!(
        bench.reported()[0],
        "IsolationUnavailable: operation not permitted"
    );
}

#[test]
fn marked_node_recovers_after_a_restart() {
    let mut bench = Bench::new();
    bench.set_node(|node| node.set_status(NodeStatus::IsolationUnavailable));
    bench.leader(true);
    assert_eq!(
        bench.reported(),
        ["Ready: isolation_reload_recovered", "recovered"]
    );
}

#[test]
fn recovered_node_joins_before_its_network_is_up() {
    let broken = MeshStatus::Unavailable("no /dev/net/tun".to_owned());
    for (mesh, members, expected) in [
        (MeshStatus::Up, 2, "Ready"),
        (broken.clone(), 2, "Joining"),
        (broken, 1, "Ready"),
    ] {
        let mut bench = Bench::new();
        if members == 2 {
            let other = Arc::new(v1::Node::default());
            bench.state.nodes.insert("n2".into(), other);
        }
        bench.set_node(|node| {
            node.set_status(NodeStatus::IsolationUnavailable);
            let details = [("reason", "lost"), ("pressure", "high")];
            let details = details.map(|(key, value)| (key.to_owned(), value.to_owned()));
            node.status_details = details.into();
        });
        bench.core.handle_mesh(mesh);
        bench.leader(true);
        let status = format!("{expected}: isolation_reload_recovered");
        assert_eq!(bench.reported(), [&*status, "recovered"], "{members}");
        let details = &bench.state.nodes["n1"].status_details;
        assert_eq!(details["pressure"], "high");
        let unavailable = (members == 1).then_some("unavailable");
        assert_eq!(details.get("mesh").map(String::as_str), unavailable);
    }
}

#[test]
fn details_of_others_are_kept() {
    let mut bench = Bench::new();
    bench.apply_error = Some("no".to_owned());
    bench.set_node(|node| {
        let detail = ("pressure".to_owned(), "high".to_owned());
        node.status_details.extend([detail]);
    });
    bench.leader(true);
    assert_eq!(bench.reported().len(), 2);
    let details = bench.state.nodes["n1"].status_details.clone();
    assert_eq!(details["pressure"], "high");
    assert_eq!(details["reason"], "no");
    bench.set_node(|node| drop(node.status_details.remove("pressure")));
    bench.advance(TICK);
    assert_eq!(bench.reported(), Vec::<String>::new());
}

#[test]
fn committed_status_is_not_repeated() {
    for submitted in [Submitted::Committed, Submitted::Unknown] {
        let mut bench = Bench::new();
        bench.apply_error = Some("no".to_owned());
        (bench.lags, bench.submitted) = (true, submitted);
        bench.leader(true);
        assert_eq!(bench.reported().len(), 2, "status and event");
        bench.advance(MS * 900);
        bench.publish();
        assert_eq!(bench.reported(), Vec::<String>::new());
        // It was lost after all.
        bench.advance(MS * 200);
        assert_eq!(bench.reported(), ["IsolationUnavailable: no"]);
        bench.set_node(|node| {
            node.set_status(NodeStatus::IsolationUnavailable);
            node.status_details = [("reason".to_owned(), "no".to_owned())].into();
        });
        bench.advance(SECOND * 5);
        assert_eq!(bench.reported(), Vec::<String>::new());
    }
}

#[test]
fn refused_status_does_not_hold_up_events() {
    let mut bench = Bench::new();
    bench.apply_error = Some("no".to_owned());
    bench.submitted = Submitted::Refused;
    bench.leader(true);
    assert_eq!(
        bench.reported(),
        ["IsolationUnavailable: no", "isolation_self_test_failed no"]
    );
    bench.advance(SECOND * 29);
    assert_eq!(bench.reported(), Vec::<String>::new());
}

#[test]
fn status_that_others_decide_stays() {
    for (status, draining) in [
        (NodeStatus::Unhealthy, false),
        (NodeStatus::Offline, false),
        (NodeStatus::DrainTimeout, false),
        (NodeStatus::Ready, true),
    ] {
        let mut bench = Bench::new();
        bench.set_node(|node| {
            node.set_status(status);
            node.draining = draining;
        });
        bench.apply_error = Some("no".to_owned());
        bench.leader(true);
        assert_eq!(
            bench.reported(),
            ["isolation_self_test_failed no"],
            "{status:?}"
        );
    }
}

#[test]
fn reports_wait_for_a_leader() {
    let mut bench = Bench::enforced();
    bench.submitted = Submitted::Unavailable;
    bench.kernel = None;
    bench.event();
    assert_eq!(bench.reported().len(), 1);
    bench.leader(false);
    bench.advance(SECOND * 60);
    assert_eq!(bench.reported(), Vec::<String>::new());
    bench.submitted = Submitted::Committed;
    bench.leader(true);
    assert_eq!(bench.reported().len(), 1);
    bench.advance(SECOND * 60);
    assert_eq!(bench.reported(), Vec::<String>::new());
}

#[test]
fn event_with_unknown_outcome_is_not_repeated() {
    let mut bench = Bench::enforced();
    bench.submitted = Submitted::Unknown;
    bench.kernel = None;
    bench.event();
    bench.submitted = Submitted::Committed;
    bench.advance(SECOND * 60);
    assert_eq!(bench.reported().len(), 1);
}

#[test]
fn failed_exemption_is_audited_once_per_error() {
    let mut bench = Bench::enforced();
    let failed = |error: &str| vec![(Exemption::Masquerade, Outcome::Failed(error.to_owned()))];
    for (outcomes, reported) in [
        (failed("a"), &["SNAT_EXEMPT_FAILED a"][..]),
        (failed("a"), &[]),
        (failed("b"), &["SNAT_EXEMPT_FAILED b"]),
        (vec![(Exemption::Masquerade, Outcome::InPlace)], &[]),
        (failed("b"), &["SNAT_EXEMPT_FAILED b"]),
    ] {
        bench.exemptions = outcomes;
        bench.advance(TICK);
        assert_eq!(bench.reported(), reported);
    }
    assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
}

#[test]
fn status_shows_legacy_rules_of_the_engine() {
    let mut bench = Bench::enforced();
    let detail = |bench: &Bench| {
        let row = &bench.state.nodes["n1"];
        assert_eq!(row.status(), NodeStatus::Ready);
        row.status_details.get("coexistence").cloned()
    };
    for (outcome, shown) in [
        (Outcome::Legacy, Some("unsupported")),
        (Outcome::InPlace, None),
        (Outcome::NoChain, None),
    ] {
        bench.exemptions = vec![(Exemption::InterNetwork, outcome)];
        bench.advance(TICK * 2);
        assert_eq!(detail(&bench).as_deref(), shown);
    }
    let events = |report: &&Payload| matches!(report, Payload::AuditAppend(_));
    assert_eq!(bench.reports.iter().filter(events).count(), 0);
    assert_eq!(bench.reports.len(), 2, "{:?}", bench.reports);
}

#[test]
fn status_names_foreign_routes() {
    let mut bench = Bench::enforced();
    let mut detail = |mesh: MeshStatus| {
        bench.core.handle_mesh(mesh);
        bench.advance(TICK * 2);
        let row = &bench.state.nodes["n1"];
        assert_eq!(row.status(), NodeStatus::Ready);
        row.status_details.get("foreign_routes").cloned()
    };
    let routes = || "10.244.1.0/24 dev flannel.1".to_owned();
    let foreign = MeshStatus::ForeignRoutes {
        routes: routes(),
        unreached: Default::default(),
    };
    assert_eq!(detail(MeshStatus::Up), None);
    assert_eq!(detail(foreign), Some(routes()));
    // A daemon that starts does not know yet.
    let starting = MeshStatus::Unprotected("not set up yet".to_owned());
    assert_eq!(detail(starting), Some(routes()));
    assert_eq!(detail(MeshStatus::Up), None);
    assert_eq!(bench.reports.len(), 2, "{:?}", bench.reports);
}
