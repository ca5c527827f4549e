//! When tracked connections are cut.

use super::*;

#[test]
fn repair_cuts_connections_begun_without_the_ruleset() {
    let mut bench = Bench::enforced();
    // The table was absent at the start.
    assert_eq!(bench.cuts, 1);
    let changes: [fn(&mut Option<Ruleset>); 2] = [
        |table| *table = None,
        |table| table.as_mut().unwrap().sets[0].spans_mut().unwrap().clear(),
    ];
    for change in changes {
        let before = bench.cuts;
        change(&mut bench.kernel);
        bench.event();
        bench.advance(SECOND);
        assert_eq!(bench.cuts, before + 1);
        assert!(!bench.status.has_stale_flows);
    }
    // Nothing is cut while the ruleset is not in force, and a failure is tried again.
    let before = bench.cuts;
    (bench.kernel, bench.apply_error) = (None, Some("no".into()));
    bench.event();
    bench.advance(SECOND * 10);
    assert_eq!((bench.cuts, bench.status.has_stale_flows), (before, true));
    (bench.apply_error, bench.cut_fails) = (None, true);
    bench.advance(TICK);
    assert!(bench.cuts > before && bench.status.has_stale_flows);
    bench.cut_fails = false;
    bench.advance(TICK * 2);
    assert!(!bench.status.has_stale_flows);
}

#[test]
fn addresses_given_to_a_network_lose_their_connections() {
    let mut bench = Bench::enforced();
    let own = ("web", "a", "n1", "10.244.1.0/24");
    let first = ("web", "b", "n2", "10.244.2.0/24");
    let next = ("web", "c", "n2", "10.244.2.0/24");
    let more = ("web", "c", "n3", "10.244.3.0/24");
    // Rows, and whether connections are cut: not if networks only lose addresses.
    let changes: [(&[_], bool); 6] = [
        (&[own, first], true),
        (&[own], false),
        (&[own, next], true),
        (&[own, next, more], true),
        (&[own, next, more], false),
        (&[own], false),
    ];
    for (rows, is_cut) in changes {
        let before = bench.cuts;
        bench.rows(rows);
        bench.advance(SECOND * 3);
        assert_eq!(bench.cuts > before, is_cut, "{rows:?}");
        assert!(!bench.status.has_stale_flows);
    }
}

#[test]
fn block_that_only_the_engine_knows_loses_connections() {
    let mut bench = Bench::enforced();
    bench.rows(&[("web", "a", "n1", "10.244.1.0/24")]);
    bench.advance(SECOND * 3);
    let before = bench.cuts;
    let unknown = NetworkId::new("gone", "b");
    let local = Arc::new(LocalNetworks {
        begun: bench.now,
        blocks: vec![(Some(unknown), "10.244.7.0/24".parse().unwrap())],
        bridges: Default::default(),
    });
    for _ in 0..2 {
        bench.core.handle_local(bench.now, Arc::clone(&local));
        bench.advance(SECOND * 3);
        assert_eq!(bench.pool(), ["10.244.1.0/24", "10.244.7.0/24"]);
        assert_eq!(bench.cuts, before + 1);
    }
}

#[test]
fn change_by_others_during_a_pass_cuts_connections() {
    let mut bench = Bench::enforced();
    let rows = [
        ("web", "a", "n1", "10.244.1.0/24"),
        ("web", "b", "n1", "10.244.2.0/24"),
    ];
    bench.rows(&rows);
    bench.advance(SECOND * 3);
    for (applied, cuts) in [(Applied::Undisturbed, 0), (Applied::Disturbed, 1)] {
        let before = (bench.cuts, bench.applies);
        bench.applied = applied;
        // A table that only loses addresses.
        bench.rows(&rows[..1]);
        bench.advance(SECOND * 3);
        assert_eq!((bench.cuts, bench.applies), (before.0 + cuts, before.1 + 1));
        bench.applied = Applied::Undisturbed;
        bench.rows(&rows);
        bench.advance(SECOND * 3);
    }
}

#[test]
fn first_pass_of_a_process_cuts_connections() {
    let mut bench = Bench::enforced();
    let mut next = Bench::new();
    next.kernel = bench.kernel.take();
    next.rows(&[("web", "a", "n1", "10.244.1.0/24")]);
    next.leader(true);
    next.advance(SECOND * 3);
    assert_eq!((next.cuts, next.applies), (1, 0));
    assert!(!next.status.has_stale_flows);
}

#[test]
fn drift_during_a_cut_causes_another() {
    let mut bench = Bench::enforced();
    bench.core.suspect_flows();
    assert!(matches!(bench.core.poll_action(), Some(Action::Publish(_))));
    let cut = bench.core.poll_action();
    assert!(matches!(cut, Some(Action::CutFlows(_))), "{cut:?}");
    bench.core.suspect_flows();
    bench.core.handle_flows_cut(FlowsCut::Done);
    let cut = bench.core.poll_action();
    assert!(matches!(cut, Some(Action::CutFlows(_))), "{cut:?}");
    bench.core.handle_flows_cut(FlowsCut::Done);
    assert!(matches!(bench.core.poll_action(), Some(Action::Publish(_))));
    assert!(bench.core.poll_action().is_none());
}

#[test]
fn kernel_without_list_is_asked_once() {
    let mut bench = Bench::new();
    bench.lists_flows = false;
    bench.rows(&[("web", "a", "n1", "10.244.1.0/24")]);
    bench.leader(true);
    bench.advance(SECOND * 3);
    assert!(!bench.status.has_stale_flows, "containers wait for nothing");
    assert_eq!(bench.cuts, 1);
    bench.kernel = None;
    bench.event();
    assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
    assert!(!bench.status.has_stale_flows);
    assert_eq!(bench.cuts, 1);
    let details = &bench.state.nodes["n1"].status_details;
    assert_eq!(details["flow_list"], "unsupported");
}
