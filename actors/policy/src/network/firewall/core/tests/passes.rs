//! When a pass runs, and what it repairs.

use super::*;
use crate::network::testing::make_internal;

#[test]
fn nothing_happens_before_a_leader_is_known() {
    let mut bench = Bench::new();
    bench.advance(SECOND * 100);
    bench.event();
    assert_eq!((bench.reads, bench.applies, bench.cuts), (0, 0, 0));
    assert_eq!(bench.status.isolation, IsolationStatus::Pending);
    bench.leader(true);
    assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
    // The state cannot become older than the table from here on.
    bench.leader(false);
    bench.kernel = None;
    bench.advance(QUIET);
    bench.event();
    assert_eq!(bench.applies, 2);
}

#[test]
fn first_load_is_not_audited() {
    let mut bench = Bench::enforced();
    assert_eq!(bench.reported(), Vec::<String>::new());
    let enforced = bench.status.enforced.clone().unwrap();
    assert_eq!(enforced.index, bench.state.applied_index);
    assert_eq!(bench.kernel.as_ref(), Some(&enforced.ruleset));
}

#[test]
fn table_of_an_earlier_process_is_adopted() {
    let mut bench = Bench::new();
    bench.rows(&[("web", "a", "n1", "10.244.1.0/24")]);
    bench.kernel = Some(Ruleset::of_state(&bench.state));
    bench.leader(true);
    assert_eq!(bench.applies, 0);
    assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
    // One that differs was changed while no process watched.
    let mut bench = Bench::new();
    bench.kernel = Some(Ruleset::default());
    bench.leader(true);
    let reported = bench.reported();
    assert_eq!(reported.len(), 1);
    assert!(
        reported[0].contains("missing:chain:forward"),
        "{reported:?}"
    );
}

#[test]
fn own_change_is_applied_without_audit() {
    let mut bench = Bench::enforced();
    let applies = bench.applies;
    bench.rows(&[
        ("web", "a", "n1", "10.244.1.0/24"),
        ("web", "b", "n1", "10.244.2.0/24"),
    ]);
    assert_eq!(bench.applies, applies, "debounced");
    bench.advance(QUIET);
    assert_eq!(bench.applies, applies + 1);
    assert_eq!(bench.reported(), Vec::<String>::new());
    assert_eq!(bench.status.enforced.as_ref().unwrap().scopes.len(), 2);
}

#[test]
fn steady_changes_are_applied_within_a_second() {
    let mut bench = Bench::enforced();
    let passes = bench.passes.len();
    let start = (bench.now - bench.start).as_millis();
    for n in 0..20 {
        let block = format!("10.244.{n}.0/24");
        bench.rows(&[("web", "a", "n1", &block)]);
        bench.advance(MS * 100);
    }
    let delays: Vec<_> = bench.passes[passes..].iter().map(|at| at - start).collect();
    assert_eq!(delays[0], 1000);
    // The event of each repair causes one more pass.
    let between = |pair: &[u128]| pair[1] - pair[0];
    assert!(
        delays
            .windows(2)
            .map(between)
            .all(|ms| (200..=1010).contains(&ms)),
        "{delays:?}"
    );
}

#[test]
fn unrelated_changes_cause_no_pass() {
    let mut bench = Bench::enforced();
    let reads = bench.reads;
    for n in 0..10 {
        bench.set_node(|node| node.version = n.to_string());
        bench.advance(SECOND);
    }
    assert_eq!(bench.reads, reads);
    bench.advance(TICK);
    assert_eq!(bench.reads, reads + 1, "the timer is the net");
}

#[test]
fn waiting_container_skips_the_debounce() {
    let mut bench = Bench::enforced();
    let (id, block) = (NetworkId::new("web", "b"), "10.244.2.0/24".parse().unwrap());
    let rows = [
        ("web", "a", "n1", "10.244.1.0/24"),
        ("web", "b", "n1", "10.244.2.0/24"),
    ];
    for row_first in [false, true] {
        bench.rows(&rows[..1]);
        bench.advance(SECOND * 2);
        let applies = bench.applies;
        if row_first {
            bench.rows(&rows);
        }
        bench.core.handle_request(bench.now, &id, block);
        bench.run();
        if !row_first {
            bench.rows(&rows);
        }
        assert_eq!(bench.applies, applies + 1, "row first: {row_first}");
        assert!(bench.status.enforced.as_ref().unwrap().includes(&id, block));
    }
}

#[test]
fn drift_is_repaired_at_once_and_audited() {
    type Change<'a> = &'a dyn Fn(&mut Option<Ruleset>);
    let table: &[(Change<'_>, &str)] = &[
        (
            &|kernel| {
                kernel.as_mut().unwrap().sets[0]
                    .spans_mut()
                    .unwrap()
                    .clear()
            },
            { "applied missing:element:dep_net_web_a/10.244.1.0/24" },
        ),
        (
            &|kernel| drop(kernel.as_mut().unwrap().chains[0].rules.pop()),
            "applied missing:rule:forward[3]",
        ),
        (
            &|kernel| kernel.as_mut().unwrap().chains[1].rules.push(Rule::Foreign),
            "applied extra:rule:input[0]",
        ),
    ];
    for (change, expected) in table {
        let mut bench = Bench::enforced();
        change(&mut bench.kernel);
        bench.event();
        assert_eq!(bench.kernel, Some(Ruleset::of_state(&bench.state)));
        assert_eq!(bench.reported(), [*expected]);
        assert_eq!(bench.status.repairs, 1);
        // The event of the repair itself finds nothing to do.
        bench.event();
        bench.advance(SECOND);
        assert_eq!((bench.reported().len(), bench.applies), (0, 2));
    }
    let mut bench = Bench::enforced();
    bench.kernel = None;
    bench.event();
    assert!(bench.reported()[0].contains(",missing:chain:forward,"));
}

#[test]
fn drift_beside_an_own_change_is_audited_alone() {
    let mut bench = Bench::enforced();
    let span = Span { first: 1, last: 2 };
    bench.kernel.as_mut().unwrap().sets[0]
        .spans_mut()
        .unwrap()
        .push(span);
    bench.rows(&[("web", "b", "n1", "10.244.2.0/24")]);
    bench.advance(QUIET);
    assert_eq!(
        bench.reported(),
        ["applied extra:element:dep_net_web_a/0.0.0.1-0.0.0.2"]
    );
}

#[test]
fn storm_of_kernel_events_is_bounded() {
    let mut bench = Bench::enforced();
    let passes = bench.passes.len();
    for _ in 0..1000 {
        bench.event();
        bench.advance(MS);
    }
    let passes = bench.passes.len() - passes;
    assert!((3..=6).contains(&passes), "{passes}");
}

#[test]
fn failed_passes_back_off() {
    let mut bench = Bench::new();
    bench.apply_error = Some("no".to_owned());
    bench.leader(true);
    bench.advance(SECOND * 70);
    let seconds: Vec<_> = bench.passes.iter().map(|ms| ms / 1000).collect();
    assert_eq!(seconds, [0, 1, 3, 7, 15, 31, 61]);
}

#[test]
fn changes_by_others_cause_one_retry_per_second() {
    let mut bench = Bench::enforced();
    let (passes, start) = (bench.passes.len(), (bench.now - bench.start).as_millis());
    bench.kernel = None;
    bench.spoil = Some(|table| drop(table.chains.pop()));
    for _ in 0..7_000 {
        bench.event();
        bench.advance(MS * 10);
    }
    let mut failed = bench.passes[passes..].iter().map(|at| at - start);
    assert_eq!(failed.next(), Some(0));
    assert!((65..=70).contains(&failed.clone().count()), "{failed:?}");
    let failed: Vec<_> = failed.collect();
    assert!(failed.windows(2).all(|pair| pair[1] - pair[0] >= 1_000));
}

#[test]
fn change_during_a_pass_causes_one_more() {
    let mut bench = Bench::enforced();
    let passes = bench.passes.len();
    bench.kernel = None;
    bench.event();
    let repaired = bench.now;
    bench.advance(TICK - SECOND);
    let since: Vec<_> = { bench.passes[passes..].iter() }
        .map(|at| bench.start + MS * u32::try_from(*at).unwrap())
        .collect();
    assert_eq!(since[1..], [repaired + QUIET]);
}

#[test]
fn ruleset_of_older_rows_is_no_drift() {
    let mut bench = Bench::new();
    let rows = [
        ("api", "b", "n1", "10.244.2.0/24"),
        ("web", "a", "n1", "10.244.1.0/24"),
    ];
    let old = Ruleset::of_state(&state(&rows[..1]));
    bench.rows(&rows);
    bench.kernel = Some(old.clone());
    bench.leader(true);
    assert_eq!((bench.applies, bench.reported()), (1, Vec::<String>::new()));
    // One that no rows explain was changed.
    let mut bench = Bench::new();
    bench.rows(&rows);
    bench.kernel = Some(old);
    bench.kernel.as_mut().unwrap().chains[0].rules.pop();
    bench.leader(true);
    assert_eq!(bench.reported().len(), 1);
}

#[test]
fn own_ruleset_in_another_order_is_no_drift() {
    let mut bench = Bench::enforced();
    bench.rows(&[
        ("web", "a", "n1", "10.244.1.0/24"),
        ("web", "b", "n1", "10.244.2.0/24"),
    ]);
    bench.now += QUIET;
    bench.core.handle_timeout(bench.now);
    while let Some(action) = bench.core.poll_action() {
        if let Action::Apply(rendered) = action {
            let mut kernel = rendered.ruleset.clone();
            kernel.sets.reverse();
            bench.kernel = Some(kernel);
            let lost = Err("no answer".to_owned());
            bench.core.handle_applied(bench.now, lost);
        } else {
            bench.act(action);
        }
    }
    bench.rows(&[("web", "c", "n1", "10.244.3.0/24")]);
    bench.advance(TICK);
    let reported = bench.reported();
    assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
    assert!(
        !reported.iter().any(|line| line.starts_with("applied")),
        "{reported:?}"
    );
}

#[test]
fn restarted_actor_needs_no_leader() {
    let mut bench = Bench::enforced();
    let state = Arc::new(bench.state.clone());
    bench.core = Core::new(bench.now, "n1", state, bench.status.clone());
    bench.kernel = None;
    bench.event();
    assert_eq!(bench.kernel, Some(Ruleset::of_state(&bench.state)));
}

#[test]
fn restarted_actor_knows_its_own_ruleset() {
    let mut bench = Bench::enforced();
    bench.rows(&[("web", "b", "n1", "10.244.2.0/24")]);
    // The actor dies after the kernel took the ruleset, and the blocks change once more.
    bench.advance(QUIET - MS);
    bench.now += MS;
    bench.core.handle_timeout(bench.now);
    while let Some(action) = bench.core.poll_action() {
        if let Action::Apply(rendered) = action {
            bench.kernel = Some(rendered.ruleset.clone());
            break;
        }
        bench.act(action);
    }
    bench.rows(&[("web", "c", "n1", "10.244.3.0/24")]);
    let state = Arc::new(bench.state.clone());
    bench.core = Core::new(bench.now, "n1", state, bench.status.clone());
    bench.leader(true);
    assert_eq!(bench.reported(), Vec::<String>::new());
    let blocks = ["10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24"];
    assert_eq!(bench.pool(), blocks);
}

#[test]
fn unreadable_table_is_replaced_after_three_attempts() {
    for enforced in [true, false] {
        let mut bench = Bench::new();
        if enforced {
            bench = Bench::enforced();
        }
        let (applies, before) = (bench.applies, bench.status.isolation.clone());
        (bench.kernel, bench.read_error) = (None, Some("a malformed answer".into()));
        bench.leader(true);
        bench.event();
        bench.advance(SECOND * 2);
        if enforced {
            assert_eq!((bench.applies, &bench.status.isolation), (applies, &before));
        }
        bench.advance(SECOND * 6);
        assert!(bench.applies > applies);
        assert_eq!(bench.kernel, Some(Ruleset::of_state(&bench.state)));
        let unavailable = IsolationStatus::Unavailable("a malformed answer".into());
        assert_eq!(bench.status.isolation, unavailable);
        bench.read_error = None;
        bench.advance(TICK);
        assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
        let applies = bench.applies;
        bench.advance(TICK * 3);
        assert_eq!(bench.applies, applies);
    }
}

#[test]
fn nothing_is_accepted_without_the_ruleset() {
    let mut bench = Bench::enforced();
    bench.survey_empty();
    bench.advance(QUIET);
    assert!(bench.accepts);
    bench.apply_error = Some("owned by another process".to_owned());
    bench.kernel = None;
    bench.event();
    bench.advance(QUIET);
    assert!(matches!(
        bench.status.isolation,
        IsolationStatus::Unavailable(_)
    ));
    assert!(!bench.accepts);
    bench.apply_error = None;
    bench.advance(TICK);
    assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
    assert!(bench.accepts);
    assert!(!bench.accepted_at_cut, "connections begun without it go on");
    // A table that is not read once may still be there.
    bench.read_error = Some("busy".to_owned());
    bench.event();
    assert!(bench.accepts);
}

#[test]
fn further_networks_of_a_container_cause_a_pass() {
    let mut bench = Bench::enforced();
    let row = v1::ReplicaDesired {
        id: "web-0".into(),
        deployment: "web".into(),
        ..Default::default()
    };
    let observed = v1::ReplicaObserved {
        id: "web-0".into(),
        host: "n1".into(),
        state: v1::ReplicaState::Running.into(),
        details: [("a", "10.244.1.2"), ("b", "10.244.2.2")]
            .map(|(network, address)| (format!("ip.jaco_web_{network}"), address.to_owned()))
            .into(),
        ..Default::default()
    };
    let (rows, seen) = (
        &mut bench.state.replicas_desired,
        &mut bench.state.replicas_observed,
    );
    rows.insert("web-0".into(), Arc::new(row));
    seen.insert("web-0".into(), Arc::new(observed));
    bench.publish();
    bench.advance(QUIET);
    let kernel = bench.kernel.as_ref().unwrap();
    let bridge = NetworkId::new("web", "b").bridge_name();
    for (address, admitted) in [([10, 244, 1, 2], true), ([10, 244, 1, 3], false)] {
        let found = kernel.admits_source(address.into(), &bridge, false);
        assert_eq!(found, admitted, "{address:?}");
    }
    assert_eq!(bench.reported(), Vec::<String>::new());
}

#[test]
fn declaration_of_internal_networks_causes_a_pass() {
    let mut bench = Bench::enforced();
    bench.rows(&[("shop", "a", "n1", "10.244.2.0/24")]);
    bench.advance(QUIET);
    let leads_out = |bench: &Bench| {
        let kernel = bench.kernel.as_ref().unwrap();
        let (from, to) = ([10, 244, 2, 2].into(), [192, 0, 2, 1].into());
        kernel.verdict(from, to, false) == Verdict::Accept
    };
    assert!(leads_out(&bench));
    let cuts = bench.cuts;
    make_internal(&mut bench.state, "shop", "a");
    bench.publish();
    bench.advance(QUIET);
    assert!(!leads_out(&bench));
    assert!(bench.cuts > cuts, "connections to the outside end");
    // Its containers are being stopped.
    bench.state.deployments.remove("shop");
    bench.publish();
    bench.advance(QUIET);
    assert!(!leads_out(&bench));
    bench
        .state
        .deployments
        .insert("shop".into(), Default::default());
    bench.publish();
    bench.advance(QUIET);
    assert!(leads_out(&bench));
}

#[test]
fn nothing_is_accepted_before_blocks_are_known() {
    // Neither a table nor the engine shows the containers of an earlier process.
    let mut bench = Bench::enforced();
    assert!(!bench.accepts);
    bench.survey_empty();
    bench.advance(QUIET);
    assert!(bench.accepts);
    let mut next = Bench::new();
    next.kernel = bench.kernel.take();
    next.rows(&[("web", "a", "n1", "10.244.1.0/24")]);
    next.leader(true);
    next.advance(SECOND * 3);
    assert!(next.accepts, "the table of an earlier process");
}

#[test]
fn address_that_led_out_is_released_at_once() {
    let mut bench = Bench::enforced();
    let internal = v1::NetworkSpec {
        name: "a".into(),
        internal: true,
    };
    let deployment = v1::Deployment {
        name: "web".into(),
        networks: vec![internal],
        ..Default::default()
    };
    let row = v1::ReplicaDesired {
        id: "web-x-0".into(),
        deployment: "web".into(),
        service: "x".into(),
        host: "n1".into(),
        ..Default::default()
    };
    let state = &mut bench.state;
    state.deployments.insert("web".into(), Arc::new(deployment));
    state.replicas_desired.insert(row.id.clone(), Arc::new(row));
    bench.publish();
    bench.advance(SECOND);
    let addresses = [("a", "10.244.1.2"), ("b", "10.244.2.2")];
    let details = addresses.map(|(network, ip)| (format!("ip.jaco_web_{network}"), ip.to_owned()));
    let mut reports = LocalReports::default();
    reports.insert(v1::ReplicaObserved {
        id: "web-x-0".into(),
        host: "n1".into(),
        state: v1::ReplicaState::Running.into(),
        details: details.into(),
        ..Default::default()
    });
    let empty = LocalReports::default();
    for (shown, waits) in [(reports.clone(), true), (empty, false), (reports, true)] {
        let passes = bench.passes.len();
        bench.core.handle_reports(bench.now, shown);
        bench.run();
        assert_eq!(bench.passes.len() == passes, waits);
        bench.advance(SECOND);
        assert!(bench.passes.len() > passes);
    }
}
