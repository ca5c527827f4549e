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

impl World {
    /// Applies the report and returns the resulting record.
    fn observe(&mut self, report: ReplicaObserved) -> Option<ReplicaObserved> {
        let update = v1::ReplicaObservedUpdate {
            replica: Some(report),
        };
        self.ok(Payload::ReplicaObservedUpdate(update));
        self.observed()
    }

    fn observed(&self) -> Option<ReplicaObserved> {
        self.state
            .replicas_observed
            .get(ID)
            .map(|o| ReplicaObserved::clone(o))
    }
}

#[test]
fn owner_report_is_stored_with_its_deployment() {
    let mut world = World::new();
    let index = world.desired(ID, "a", "");
    let mut first = report("a", ReplicaState::Pulling, index);
    first.details.insert("reason".into(), "x".into());
    assert_eq!(world.observe(first.clone()), Some(first));
    let second = report("a", ReplicaState::Running, index);
    let update = v1::ReplicaObservedUpdate {
        replica: Some(second.clone()),
    };
    let applied = world.ok(Payload::ReplicaObservedUpdate(update));
    assert_eq!(world.observed(), Some(second));
    assert_eq!(deployments_of(&applied.events), [Some("shop")]);
}

#[test]
fn reports_from_other_hosts_or_rows_are_dropped() {
    let mut world = World::new();
    assert_eq!(world.observe(report("a", ReplicaState::Running, 1)), None);
    let old = world.desired(ID, "a", "");
    let new = world.desired(ID, "a", "");
    assert_eq!(world.observe(report("b", ReplicaState::Running, new)), None);
    assert_eq!(world.observe(report("", ReplicaState::Running, new)), None);
    assert_eq!(world.observe(report("a", ReplicaState::Running, old)), None);
    assert_eq!(world.observe(report("a", ReplicaState::Running, 0)), None);
    assert!(
        world
            .observe(report("a", ReplicaState::Running, new))
            .is_some()
    );
}

#[test]
fn report_without_content_or_state_is_rejected() {
    let mut world = World::new();
    let none = Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate { replica: None });
    world.rejected(none, ErrorCode::ValidationFailed);
    let unspecified = report("a", ReplicaState::Unspecified, 1);
    let update = v1::ReplicaObservedUpdate {
        replica: Some(unspecified),
    };
    world.rejected(
        Payload::ReplicaObservedUpdate(update),
        ErrorCode::ValidationFailed,
    );
}

#[test]
fn exhausted_replica_stays_until_running_or_newer_row() {
    let mut world = World::new();
    let index = world.desired(ID, "a", "");
    let spent = exhausted("a", index);
    assert_eq!(world.observe(spent.clone()), Some(spent.clone()));
    for state in [
        ReplicaState::Pending,
        ReplicaState::Pulling,
        ReplicaState::Degraded,
        ReplicaState::Updating,
        ReplicaState::Failed,
        ReplicaState::Stopped,
    ] {
        assert_eq!(
            world.observe(report("a", state, index)),
            Some(spent.clone())
        );
    }
    let running = report("a", ReplicaState::Running, index);
    assert_eq!(world.observe(running.clone()), Some(running));

    world.observe(spent.clone());
    let newer = world.desired(ID, "a", "");
    let pulling = report("a", ReplicaState::Pulling, newer);
    assert_eq!(world.observe(pulling.clone()), Some(pulling));
}

/// Adds `host` as a member with this status.
fn member(world: &mut World, host: &str, status: NodeStatus) {
    if !world.state.nodes.contains_key(host) {
        let raft_id = 1 + world.state.nodes.len() as u64;
        world.ok(Payload::NodeJoin(v1::NodeJoin {
            hostname: host.into(),
            raft_id,
            ..Default::default()
        }));
    }
    world.ok(Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
        hostname: host.into(),
        status: status.into(),
        ..Default::default()
    }));
}

/// A replica that runs on `a` and is assigned to `b`; returns the new index.
fn moving(world: &mut World) -> u64 {
    member(world, "a", NodeStatus::Ready);
    let index = world.desired(ID, "a", "");
    world.observe(report("a", ReplicaState::Running, index));
    world.desired(ID, "b", "a")
}

#[test]
fn new_host_adds_progress_while_old_host_serves() {
    let mut world = World::new();
    let index = moving(&mut world);
    let mut failed = report("b", ReplicaState::Failed, index);
    failed.code = "docker_error".into();
    failed.details.insert("reason".into(), "no space".into());
    // The age of the old host's report does not matter: an unchanged state is not reported again.
    world.now += 9_000;
    let shown = world.observe(failed).unwrap();
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
    let shown = world.observe(again).unwrap();
    assert_eq!(shown.last_health_at, Some(at(START + 9)));
    assert_eq!(shown.details["move_code"], "docker_error");

    let shown = world
        .observe(report("b", ReplicaState::Pulling, index))
        .unwrap();
    assert_eq!(shown.details["move_state"], "pulling");
    assert!(!shown.details.contains_key("move_code"));
    assert!(!shown.details.contains_key("move_reason"));

    let running = report("b", ReplicaState::Running, index);
    assert_eq!(world.observe(running.clone()), Some(running));
}

#[test]
fn unhealthy_old_host_is_replaced_by_new_report() {
    for status in [NodeStatus::Unhealthy, NodeStatus::Offline] {
        let mut world = World::new();
        let index = moving(&mut world);
        member(&mut world, "a", status);
        let pulling = report("b", ReplicaState::Pulling, index);
        assert_eq!(world.observe(pulling.clone()), Some(pulling), "{status:?}");

        let back = world
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
        let mut world = World::new();
        let index = moving(&mut world);
        member(&mut world, "a", status);
        let shown = world.observe(report("b", ReplicaState::Pulling, index));
        assert_eq!(shown.unwrap().host, "a", "{status:?}");
    }
}

#[test]
fn reassignment_to_a_third_host_drops_the_report() {
    let mut world = World::new();
    moving(&mut world);
    assert_eq!(
        world.observed().unwrap().host,
        "a",
        "the old host still serves"
    );
    world.desired(ID, "c", "");
    assert_eq!(world.observed(), None);
    let mut world = World::new();
    let index = world.desired(ID, "a", "");
    let running = report("a", ReplicaState::Running, index);
    world.observe(running.clone());
    world.desired(ID, "a", "");
    assert_eq!(world.observed(), Some(running), "a new row, the same host");
}

#[test]
fn old_host_without_running_container_is_replaced() {
    let mut world = World::new();
    let index = moving(&mut world);
    let degraded = report("a", ReplicaState::Degraded, index - 1);
    assert_eq!(world.observe(degraded.clone()), Some(degraded));
    let pulling = report("b", ReplicaState::Pulling, index);
    assert_eq!(world.observe(pulling.clone()), Some(pulling.clone()));
    let stopped = report("a", ReplicaState::Stopped, index - 1);
    assert_eq!(world.observe(stopped), Some(pulling));
}

#[test]
fn running_new_host_ends_reports_of_old_host() {
    let mut world = World::new();
    let index = moving(&mut world);
    let running = report("b", ReplicaState::Running, index);
    world.observe(running.clone());
    for state in [
        ReplicaState::Running,
        ReplicaState::Stopped,
        ReplicaState::Failed,
    ] {
        let late = report("a", state, index - 1);
        assert_eq!(world.observe(late), Some(running.clone()));
    }
}

#[test]
fn second_move_accepts_only_its_two_hosts() {
    let mut world = World::new();
    moving(&mut world);
    let onward = world.desired(ID, "c", "b");
    let pulling = report("c", ReplicaState::Pulling, onward);
    assert_eq!(world.observe(pulling.clone()), Some(pulling.clone()));
    let late = report("a", ReplicaState::Running, onward);
    assert_eq!(world.observe(late), Some(pulling));
}
