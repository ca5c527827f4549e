//! Members that drain before they leave.

use jaco_proto::mark;

use super::*;

#[test]
fn draining_member_keeps_its_role_until_drained() {
    // A voter, the leader among others, and a learner.
    for (hostname, voters_left) in [("a", "bcd"), ("b", "acd"), ("d", "abc")] {
        let mut cluster = Cluster::of(4);
        cluster.drain(hostname);
        assert_eq!(cluster.run_until_idle(), [], "{hostname}");
        cluster.leave(hostname);
        cluster.run_until_idle();
        assert_eq!(cluster.id(hostname), 0, "{hostname}");
        assert_eq!(cluster.voters(), voters_left, "{hostname}");
    }
}

#[test]
fn slow_drain_is_given_up() {
    let mut cluster = Cluster::of(3);
    cluster.drain("b");
    assert_eq!(cluster.plan(), Decision::Idle);
    cluster.now += DRAIN_LIMIT - Duration::from_millis(1);
    assert_eq!(cluster.plan(), Decision::Idle);
    // A second drain counts for itself.
    cluster.drain("c");
    cluster.now += Duration::from_millis(1);
    assert_eq!(cluster.plan(), Decision::Act(Action::EndDrain(2)));
    // A change of another member delays the end, but does not reset the limit.
    cluster.view.changing = true;
    assert_eq!(cluster.plan(), Decision::Idle);
    cluster.view.changing = false;
    assert_eq!(cluster.plan(), Decision::Act(Action::EndDrain(2)));
    cluster.act(Action::EndDrain(2));
    assert_eq!(cluster.plan(), Decision::Idle);
    // A repeated request has the whole time again.
    cluster.drain("b");
    cluster.now += DRAIN_LIMIT - Duration::from_secs(1);
    assert_eq!(cluster.plan(), Decision::Idle);
    assert_eq!(cluster.voters(), "abc");
}

#[test]
fn each_replica_extends_its_drain_once() {
    let mut cluster = Cluster::of(3);
    let almost = DRAIN_LIMIT - Duration::from_secs(1);
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
    cluster.drain("b");
    for remaining in [["x", "y", "z"].as_slice(), &["y", "z"], &["z"]] {
        cluster.view.rows.get_mut(&2).unwrap().remaining = ids(remaining);
        assert_eq!(cluster.plan(), Decision::Idle, "{remaining:?}");
        cluster.now += almost;
    }
    // A replica that fails on its new host needs the old one again.
    for remaining in [["y", "z"].as_slice(), &["z"]] {
        cluster.view.rows.get_mut(&2).unwrap().remaining = ids(remaining);
        assert_eq!(cluster.plan(), Decision::Idle, "{remaining:?}");
    }
    cluster.now += Duration::from_secs(1);
    assert_eq!(cluster.plan(), Decision::Act(Action::EndDrain(2)));
}

/// State whose member `b` has a status, a version and the only replica.
fn state_of_drain(status: v1::NodeStatus, version: &str) -> State {
    let mut state = State::default();
    for (hostname, status, version) in [("a", v1::NodeStatus::Ready, "1.0"), ("b", status, version)]
    {
        let node = v1::Node {
            hostname: hostname.to_owned(),
            status: status.into(),
            version: version.to_owned(),
            draining: hostname == "b",
            ..Default::default()
        };
        state.nodes.insert(hostname.into(), node.into());
    }
    let row = v1::ReplicaDesired {
        id: "app-web-0".to_owned(),
        host: "b".to_owned(),
        ..Default::default()
    };
    state.replicas_desired.insert(row.id.clone(), row.into());
    state
}

#[test]
fn timeout_is_recorded_among_equal_versions() {
    let state = state_of_drain(v1::NodeStatus::Ready, "1.0");
    let update = end_drain(&state, "b").unwrap();
    assert_eq!(update.status(), v1::NodeStatus::DrainTimeout);
    assert_eq!(update.drain_mark, mark::KEEP);
    assert!(update.drain.unwrap().timed_out);
    assert_eq!(update.details["reason"], "drain_timeout");
    assert_eq!(update.details["replicas"], "app-web-0");
    let mixed = end_drain(&state_of_drain(v1::NodeStatus::Ready, "0.9"), "b").unwrap();
    assert_eq!(mixed.status(), v1::NodeStatus::DrainTimeout);
    assert_eq!((mixed.drain_mark, mixed.drain), (mark::KEEP, None));
    for host in ["a", "c"] {
        assert_eq!(end_drain(&state, host), None, "{host} does not drain");
        assert_eq!(clear_mark(&state, host), None, "{host} has no mark");
    }
    let cleared = clear_mark(&state, "b").unwrap();
    assert_eq!(cleared.drain_mark, mark::CLEAR);
    let given_up = state_of_drain(v1::NodeStatus::DrainTimeout, "1.0");
    assert_eq!(end_drain(&given_up, "b"), None);
    assert_eq!(clear_mark(&given_up, "b"), None);
}

#[test]
fn new_leader_continues_the_drain() {
    let mut cluster = Cluster::of(3);
    cluster.drain("c");
    assert_eq!(cluster.plan(), Decision::Idle);
    cluster.now += DRAIN_LIMIT - Duration::from_secs(1);
    cluster.act(Action::Transfer(2));
    assert_eq!(cluster.plan(), Decision::Idle);
    cluster.now += Duration::from_secs(2);
    assert_eq!(cluster.plan(), Decision::Idle);
    cluster.now += DRAIN_LIMIT;
    assert_eq!(cluster.plan(), Decision::Act(Action::EndDrain(3)));
    cluster.leave("c");
    cluster.run_until_idle();
    assert_eq!(cluster.id("c"), 0);
}

#[test]
fn draining_member_gets_no_new_role() {
    // `b` would lead after `a`, and is promoted only once it stays.
    let mut cluster = Cluster::of(2);
    cluster.drain("b");
    cluster.leave("a");
    let blocked = Decision::Blocked(Blocked {
        raft_id: 1,
        reason: NO_TRANSFER_TARGET,
    });
    assert_eq!(cluster.plan(), blocked);
    cluster.set_departure(2, Departure::Staying);
    assert_eq!(cluster.plan(), Decision::Act(Action::Promote(2)));

    let mut cluster = Cluster::of(3);
    cluster.drain("b");
    cluster.leave("a");
    assert_eq!(cluster.plan(), Decision::Act(Action::Transfer(3)));
}

#[test]
fn draining_member_outside_configuration_is_removed() {
    let mut cluster = Cluster::of(3);
    cluster.join("d");
    cluster.drain("d");
    assert_eq!(cluster.run_until_idle(), [Action::DeleteRow(4)]);
}

#[test]
fn marked_member_drains_while_replicas_need_it() {
    use v1::NodeStatus::{DrainTimeout, Offline, Ready};
    let skips = Some(v1::NodeDrain {
        skip_moves: true,
        timed_out: false,
    });
    let waits = Some(v1::NodeDrain::default());
    let recorded = Some(v1::NodeDrain {
        skip_moves: false,
        timed_out: true,
    });
    type Row = (
        bool,
        v1::NodeStatus,
        Option<v1::NodeDrain>,
        &'static str,
        Departure,
    );
    let table: &[Row] = &[
        // Mark, status, settings, host of the only replica.
        (false, Ready, None, "b", Departure::Staying),
        (false, Ready, skips, "b", Departure::Staying),
        (true, Ready, None, "b", Departure::Draining),
        (true, Ready, waits, "b", Departure::Draining),
        (true, Offline, None, "b", Departure::Draining),
        (true, Ready, skips, "b", Departure::Leaving),
        (true, Ready, None, "a", Departure::Leaving),
        (true, DrainTimeout, None, "b", Departure::Staying),
        (true, DrainTimeout, None, "a", Departure::Staying),
        (true, DrainTimeout, recorded, "b", Departure::Staying),
        (true, Offline, recorded, "b", Departure::Staying),
        (true, Ready, recorded, "a", Departure::Staying),
    ];
    for &(draining, status, drain, host, expected) in table {
        let mut state = State::default();
        let node = v1::Node {
            hostname: "b".to_owned(),
            status: status.into(),
            draining,
            drain,
            ..Default::default()
        };
        let row = v1::ReplicaDesired {
            id: "app-web-0".to_owned(),
            host: host.to_owned(),
            ..Default::default()
        };
        state.nodes.insert("b".into(), node.clone().into());
        state.replicas_desired.insert(row.id.clone(), row.into());
        let (found, _) = departure(&state, &node);
        assert_eq!(found, expected, "{draining} {status:?} {drain:?} {host}");
    }
}
