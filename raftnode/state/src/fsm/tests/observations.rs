use jaco_proto::v1::{NodeStatus, ReplicaObserved, ReplicaState};

use super::*;

const ID: &str = "shop-web-1";

fn report(host: &str, state: ReplicaState, raft_index: u64) -> ReplicaObserved {
    ReplicaObserved {
        id: ID.into(),
        host: host.into(),
        state: state.into(),
        container_id: format!("on {host}"),
        last_health_at: Some(at(START)),
        desired_raft_index: raft_index,
        ..Default::default()
    }
}

fn exhausted(host: &str, raft_index: u64) -> ReplicaObserved {
    ReplicaObserved {
        code: "restart_exhausted".into(),
        ..report(host, ReplicaState::Failed, raft_index)
    }
}

impl TestState {
    /// Applies the report and returns the resulting record.
    fn observe(&mut self, report: ReplicaObserved) -> Option<ReplicaObserved> {
        let update = v1::ReplicaObservedUpdate {
            replica: Some(report),
        };
        self.ok(Payload::ReplicaObservedUpdate(update));
        self.observed()
    }

    /// Returns the record without its own index.
    fn observed(&self) -> Option<ReplicaObserved> {
        let observed = self.state.replicas_observed.get(ID)?;
        Some(ReplicaObserved {
            observed_raft_index: 0,
            ..ReplicaObserved::clone(observed)
        })
    }

    /// Returns the index at which the record was written.
    fn observed_at(&self) -> u64 {
        self.state.replicas_observed[ID].observed_raft_index
    }
}

#[test]
fn record_keeps_index_of_its_first_write() {
    let mut test = TestState::new();
    let row = test.desired(ID, "a", "");
    let observe = |test: &mut TestState, mut report: ReplicaObserved| {
        // The index is not the reporter's to choose.
        report.observed_raft_index = 7_000;
        test.observe(report);
        test.observed_at()
    };
    let running = report("a", ReplicaState::Running, row);
    let first = observe(&mut test, running.clone());
    assert_eq!(first, test.state.applied_index);
    assert_eq!(observe(&mut test, running), first, "written twice");
    let gave_up = observe(&mut test, exhausted("a", row));
    assert_eq!(gave_up, test.state.applied_index);
    // A second report of the same failure is newer, but tells nothing new.
    let later = ReplicaObserved {
        last_health_at: Some(at(START + 9)),
        ..exhausted("a", row)
    };
    assert_eq!(observe(&mut test, later), gave_up);
}

#[test]
fn owner_report_is_stored_with_its_deployment() {
    let mut test = TestState::new();
    let index = test.desired(ID, "a", "");
    let mut first = report("a", ReplicaState::Pulling, index);
    first.details.insert("reason".into(), "x".into());
    assert_eq!(test.observe(first.clone()), Some(first));
    let second = report("a", ReplicaState::Running, index);
    let update = v1::ReplicaObservedUpdate {
        replica: Some(second.clone()),
    };
    let applied = test.ok(Payload::ReplicaObservedUpdate(update));
    assert_eq!(test.observed(), Some(second));
    assert_eq!(deployments_of(&applied.events), [Some("shop")]);
}

#[test]
fn reports_from_other_hosts_or_rows_are_dropped() {
    let mut test = TestState::new();
    assert_eq!(test.observe(report("a", ReplicaState::Running, 1)), None);
    let old = test.desired(ID, "a", "");
    let new = test.desired(ID, "a", "");
    assert_eq!(test.observe(report("b", ReplicaState::Running, new)), None);
    assert_eq!(test.observe(report("", ReplicaState::Running, new)), None);
    assert_eq!(test.observe(report("a", ReplicaState::Running, old)), None);
    assert_eq!(test.observe(report("a", ReplicaState::Running, 0)), None);
    assert!(
        test.observe(report("a", ReplicaState::Running, new))
            .is_some()
    );
}

#[test]
fn report_without_content_or_state_is_rejected() {
    let mut test = TestState::new();
    let none = Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate { replica: None });
    test.rejected(none, ErrorCode::ValidationFailed);
    let unspecified = report("a", ReplicaState::Unspecified, 1);
    let update = v1::ReplicaObservedUpdate {
        replica: Some(unspecified),
    };
    test.rejected(
        Payload::ReplicaObservedUpdate(update),
        ErrorCode::ValidationFailed,
    );
}

#[test]
fn exhausted_replica_stays_until_running_or_newer_row() {
    let mut test = TestState::new();
    let index = test.desired(ID, "a", "");
    let spent = exhausted("a", index);
    assert_eq!(test.observe(spent.clone()), Some(spent.clone()));
    for state in [
        ReplicaState::Pending,
        ReplicaState::Pulling,
        ReplicaState::Degraded,
        ReplicaState::Updating,
        ReplicaState::Failed,
        ReplicaState::Stopped,
    ] {
        assert_eq!(test.observe(report("a", state, index)), Some(spent.clone()));
    }
    let running = report("a", ReplicaState::Running, index);
    assert_eq!(test.observe(running.clone()), Some(running));

    test.observe(spent.clone());
    let newer = test.desired(ID, "a", "");
    let pulling = report("a", ReplicaState::Pulling, newer);
    assert_eq!(test.observe(pulling.clone()), Some(pulling));
}

/// Adds `host` as a member with this status.
fn member(test: &mut TestState, host: &str, status: NodeStatus) {
    if !test.state.nodes.contains_key(host) {
        let raft_id = 1 + test.state.nodes.len() as u64;
        test.ok(Payload::NodeJoin(v1::NodeJoin {
            hostname: host.into(),
            raft_id,
            ..Default::default()
        }));
    }
    test.ok(Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
        hostname: host.into(),
        status: status.into(),
        ..Default::default()
    }));
}

/// A replica that runs on `a` and is assigned to `b`; returns the new index.
fn moving(test: &mut TestState) -> u64 {
    member(test, "a", NodeStatus::Ready);
    let index = test.desired(ID, "a", "");
    test.observe(report("a", ReplicaState::Running, index));
    test.desired(ID, "b", "a")
}

#[test]
fn new_host_adds_progress_while_old_host_serves() {
    let mut test = TestState::new();
    let index = moving(&mut test);
    let mut failed = report("b", ReplicaState::Failed, index);
    failed.code = "docker_error".into();
    failed.details.insert("reason".into(), "no space".into());
    // The age of the old host's report does not matter: an unchanged state is not reported again.
    test.now += 9_000;
    let shown = test.observe(failed).unwrap();
    assert_eq!(
        (shown.host.as_str(), shown.state()),
        ("a", ReplicaState::Running)
    );
    assert_eq!(shown.last_health_at, Some(at(START)));
    assert_eq!(shown.details["move_state"], "failed");
    assert_eq!(shown.details["move_code"], "docker_error");
    assert_eq!(shown.details["move_reason"], "no space");

    let mut again = report("a", ReplicaState::Running, index - 1);
    again.last_health_at = Some(at(START + 9));
    let shown = test.observe(again).unwrap();
    assert_eq!(shown.last_health_at, Some(at(START + 9)));
    assert_eq!(shown.details["move_code"], "docker_error");

    let shown = test
        .observe(report("b", ReplicaState::Pulling, index))
        .unwrap();
    assert_eq!(shown.details["move_state"], "pulling");
    assert!(!shown.details.contains_key("move_code"));
    assert!(!shown.details.contains_key("move_reason"));

    let running = report("b", ReplicaState::Running, index);
    assert_eq!(test.observe(running.clone()), Some(running));
}

#[test]
fn unhealthy_old_host_is_replaced_by_new_report() {
    for status in [NodeStatus::Unhealthy, NodeStatus::Offline] {
        let mut test = TestState::new();
        let index = moving(&mut test);
        member(&mut test, "a", status);
        let pulling = report("b", ReplicaState::Pulling, index);
        assert_eq!(test.observe(pulling.clone()), Some(pulling), "{status:?}");

        let back = test
            .observe(report("a", ReplicaState::Running, index - 1))
            .unwrap();
        assert_eq!(
            (back.host.as_str(), back.details["move_state"].as_str()),
            ("a", "pulling")
        );
    }
}

#[test]
fn old_host_without_isolation_is_still_trusted() {
    for status in [NodeStatus::IsolationUnavailable, NodeStatus::DrainTimeout] {
        let mut test = TestState::new();
        let index = moving(&mut test);
        test.ok(Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
            hostname: "a".into(),
            drain_mark: 1,
            ..Default::default()
        }));
        member(&mut test, "a", status);
        assert_eq!(test.state.nodes["a"].status(), status);
        let shown = test.observe(report("b", ReplicaState::Pulling, index));
        assert_eq!(shown.unwrap().host, "a", "{status:?}");
    }
}

#[test]
fn reassignment_to_a_third_host_drops_the_report() {
    let mut test = TestState::new();
    moving(&mut test);
    assert_eq!(
        test.observed().unwrap().host,
        "a",
        "the old host still serves"
    );
    test.desired(ID, "c", "");
    assert_eq!(test.observed(), None);
    let mut test = TestState::new();
    let index = test.desired(ID, "a", "");
    let running = report("a", ReplicaState::Running, index);
    test.observe(running.clone());
    test.desired(ID, "a", "");
    assert_eq!(test.observed(), Some(running), "a new row, the same host");
}

#[test]
fn old_host_without_running_container_is_replaced() {
    let mut test = TestState::new();
    let index = moving(&mut test);
    let degraded = report("a", ReplicaState::Degraded, index - 1);
    assert_eq!(test.observe(degraded.clone()), Some(degraded));
    let pulling = report("b", ReplicaState::Pulling, index);
    assert_eq!(test.observe(pulling.clone()), Some(pulling.clone()));
    let stopped = report("a", ReplicaState::Stopped, index - 1);
    assert_eq!(test.observe(stopped), Some(pulling));
}

#[test]
fn running_new_host_ends_reports_of_old_host() {
    let mut test = TestState::new();
    let index = moving(&mut test);
    let running = report("b", ReplicaState::Running, index);
    test.observe(running.clone());
    for state in [
        ReplicaState::Running,
        ReplicaState::Stopped,
        ReplicaState::Failed,
    ] {
        let late = report("a", state, index - 1);
        assert_eq!(test.observe(late), Some(running.clone()));
    }
}

#[test]
fn second_move_accepts_only_its_two_hosts() {
    let mut test = TestState::new();
    moving(&mut test);
    let onward = test.desired(ID, "c", "b");
    let pulling = report("c", ReplicaState::Pulling, onward);
    assert_eq!(test.observe(pulling.clone()), Some(pulling.clone()));
    let late = report("a", ReplicaState::Running, onward);
    assert_eq!(test.observe(late), Some(pulling));
}

#[test]
fn running_new_host_releases_the_previous_one() {
    let mut test = TestState::new();
    let index = moving(&mut test);
    let previous = |test: &TestState| test.state.replicas_desired[ID].previous_host.clone();
    test.observe(report("b", ReplicaState::Pulling, index));
    test.observe(report("a", ReplicaState::Running, index - 1));
    assert_eq!(previous(&test), "a");
    let running = v1::ReplicaObservedUpdate {
        replica: Some(report("b", ReplicaState::Running, index)),
    };
    let applied = test.ok(Payload::ReplicaObservedUpdate(running));
    assert_eq!(
        kinds(&applied),
        ["updated replicas_observed", "updated replicas_desired"]
    );
    assert_eq!(previous(&test), "");
    let row = &test.state.replicas_desired[ID];
    assert_eq!(row.raft_index, index, "the container stays");
    // A later failure of the new container does not concern the old host.
    let failed = exhausted("b", index);
    assert_eq!(test.observe(failed.clone()), Some(failed.clone()));
    let late = report("a", ReplicaState::Running, index - 1);
    assert_eq!(test.observe(late), Some(failed));
}

#[test]
fn finished_new_host_releases_the_previous_one() {
    let mut test = TestState::new();
    let index = moving(&mut test);
    test.observe(report("a", ReplicaState::Running, index - 1));
    let finished = ReplicaObserved {
        code: "container_exited".into(),
        details: [("exit_code".into(), "0".into())].into(),
        ..report("b", ReplicaState::Stopped, index)
    };
    assert_eq!(test.observe(finished.clone()), Some(finished.clone()));
    assert_eq!(test.state.replicas_desired[ID].previous_host, "");
    // The previous host may not have noticed yet.
    test.observe(report("a", ReplicaState::Running, index - 1));
    assert_eq!(test.observed(), Some(finished));
}

#[test]
fn progress_of_a_move_keeps_its_index() {
    let mut test = TestState::new();
    let index = moving(&mut test);
    test.observe(exhausted("b", index));
    let gave_up = test.observed_at();
    assert_eq!(gave_up, test.state.applied_index);
    let mut again = report("a", ReplicaState::Running, index - 1);
    again.details.insert("ip.n".into(), "10.0.0.1".into());
    let shown = test.observe(again).unwrap();
    assert_eq!(shown.details["move_code"], "restart_exhausted");
    assert_eq!(shown.details["ip.n"], "10.0.0.1");
    assert_eq!(test.observed_at(), gave_up);

    // The old host was out of contact when its successor gave up.
    let mut test = TestState::new();
    let index = moving(&mut test);
    member(&mut test, "a", NodeStatus::Unhealthy);
    test.observe(exhausted("b", index));
    let gave_up = test.observed_at();
    let back = test.observe(report("a", ReplicaState::Running, index - 1));
    assert_eq!(back.unwrap().details["move_code"], "restart_exhausted");
    assert_eq!(test.observed_at(), gave_up);
}

#[test]
fn new_row_drops_the_progress_of_the_old() {
    let mut test = TestState::new();
    let index = moving(&mut test);
    let serving = test.observed().unwrap();
    let shown = test.observe(exhausted("b", index)).unwrap();
    assert!(shown.details.contains_key("move_code"));
    let next = test.desired(ID, "b", "a");
    assert_eq!(test.observed(), Some(serving.clone()));
    assert_eq!(test.observed_at(), next);
    assert_eq!(test.observe(exhausted("b", index)), Some(serving.clone()));
    // A restarted node repeats what it read from the state.
    assert_eq!(test.observe(shown), Some(serving));
}

#[test]
fn repeated_drain_retries_moves_given_up() {
    // The old host is in contact, so that its record stays, or it is not.
    for status in [NodeStatus::Ready, NodeStatus::Unhealthy] {
        let mut test = TestState::new();
        let index = moving(&mut test);
        member(&mut test, "a", status);
        let mark = |host: &str| {
            Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
                hostname: host.into(),
                drain_mark: 1,
                ..Default::default()
            })
        };
        let row_index = |test: &TestState| test.state.replicas_desired[ID].raft_index;
        test.ok(mark("a"));
        test.no_change(mark("a"));
        test.observe(exhausted("b", index));
        test.ok(Payload::RestartCounterUpdate(v1::RestartCounterUpdate {
            replica_id: ID.into(),
            action: v1::restart_counter_update::Action::Increment.into(),
        }));
        member(&mut test, "b", NodeStatus::Ready);
        test.ok(mark("b"));
        test.no_change(mark("b"));
        assert_eq!(row_index(&test), index, "another host");
        test.ok(mark("a"));
        let again = test.state.applied_index;
        assert_eq!(row_index(&test), again, "{status:?}");
        assert_eq!(test.state.replicas_desired[ID].previous_host, "a");
        assert!(test.state.restart_counters.is_empty());
        // The move is in progress again.
        test.no_change(mark("a"));
    }
}

#[test]
fn former_container_on_its_host_serves_on() {
    let mut test = TestState::new();
    member(&mut test, "a", NodeStatus::Ready);
    let first = test.desired(ID, "a", "");
    let serving = test.observe(report("a", ReplicaState::Running, first));
    let second = test.desired(ID, "a", "");
    let pulling = |attempt: &str| {
        let details = [("attempt", attempt), ("reason", "no such image")];
        let details = details.map(|(key, value)| (key.to_owned(), value.to_owned()));
        ReplicaObserved {
            code: "image_pull_failed".into(),
            details: details.into(),
            keeps_serving: true,
            ..report("a", ReplicaState::Pending, second)
        }
    };
    let shown = test.observe(pulling("2")).unwrap();
    assert_eq!(shown.state(), ReplicaState::Running);
    assert_eq!(shown.desired_raft_index, first);
    for (key, value) in [
        ("move_state", "pending"),
        ("move_code", "image_pull_failed"),
        ("move_reason", "no such image"),
        ("move_attempt", "2"),
    ] {
        assert_eq!(shown.details[key], value);
    }
    // The next row begins anew, and a container that has ended is reported by its successor.
    test.desired(ID, "a", "");
    assert_eq!(test.observed(), serving);
    let third = test.desired(ID, "a", "");
    let ended = test
        .observe(report("a", ReplicaState::Updating, third))
        .unwrap();
    assert_eq!(ended.state(), ReplicaState::Updating);
    let late = ReplicaObserved {
        keeps_serving: true,
        ..report("a", ReplicaState::Pulling, third)
    };
    let shown = test.observe(late).unwrap();
    assert_eq!(
        (shown.state(), shown.keeps_serving),
        (ReplicaState::Pulling, false)
    );
}
