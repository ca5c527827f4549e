use jaco_proto::v1::{ReplicaState, RolloutState};

use super::*;

const ID: &str = "shop-web-0-aa";

fn apply(revision: u64) -> Payload {
    Payload::DeploymentApply(v1::DeploymentApply {
        deployment: "shop".into(),
        revision,
        services: vec![v1::ServiceSpec {
            name: "web".into(),
            ..Default::default()
        }],
        ..Default::default()
    })
}

fn hold(revision: u64, held: bool) -> Payload {
    Payload::RolloutHoldSet(v1::RolloutHoldSet {
        deployment: "shop".into(),
        revision,
        held,
    })
}

fn plan(target_revision: u64, state: RolloutState, paused: bool) -> v1::RolloutPlan {
    v1::RolloutPlan {
        deployment: "shop".into(),
        service: "web".into(),
        target_revision,
        state: state.into(),
        paused,
        failure_reason: "no such image".into(),
        ..Default::default()
    }
}

fn recorded(applied: &Applied, kind: AuditEventType) {
    let payload = [("deployment", "shop"), ("revision", "1")];
    assert_eq!(audits(applied), audit(kind, &payload));
}

/// A deployment with one replica that reports `state`, and its plan.
fn failing(plan: v1::RolloutPlan, state: ReplicaState) -> TestState {
    let mut test = TestState::new();
    test.cluster();
    test.ok(apply(1));
    let desired_raft_index = test.desired(ID, "a", "");
    test.ok(Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
        replica: Some(v1::ReplicaObserved {
            id: ID.into(),
            host: "a".into(),
            state: state.into(),
            desired_raft_index,
            ..Default::default()
        }),
    }));
    test.ok(Payload::RolloutPlanUpdate(v1::RolloutPlanUpdate {
        plan: Some(plan),
    }));
    test
}

#[test]
fn hold_names_its_operator_and_is_recorded_once() {
    let mut test = TestState::new();
    test.ok(apply(1));
    let paused = test.ok(hold(1, true));
    recorded(&paused, AuditEventType::RolloutPaused);
    let stored = paused.state.deployments["shop"].rollout_hold.clone();
    let stored = stored.unwrap();
    assert_eq!((&*stored.by, stored.at), ("tester", Some(at(START))));
    test.now += 1;
    test.no_change(hold(1, true));
    let resumed = test.ok(hold(1, false));
    recorded(&resumed, AuditEventType::RolloutResumed);
    assert_eq!(resumed.state.deployments["shop"].rollout_hold, None);
    test.no_change(hold(1, false));
}

#[test]
fn hold_is_about_the_applied_revision() {
    let mut test = TestState::new();
    test.rejected(hold(1, true), ErrorCode::DeploymentNotFound);
    test.ok(apply(1));
    test.ok(hold(1, true));
    test.ok(apply(2));
    assert_eq!(test.state.deployments["shop"].rollout_hold, None);
    for held in [true, false] {
        let error = test.rejected(hold(1, held), ErrorCode::RaftApplyFailed);
        assert_eq!(error.details["applied_revision"], "2");
    }
    test.ok(hold(2, true));
    test.ok(Payload::DeploymentRollback(v1::DeploymentRollback {
        deployment: "shop".into(),
        ..Default::default()
    }));
    assert_eq!(test.state.deployments["shop"].rollout_hold, None);
}

#[test]
fn resumed_rollout_tries_given_up_replicas_again() {
    let in_progress = RolloutState::InProgress;
    let mut test = failing(plan(1, in_progress, true), ReplicaState::Failed);
    let before = test.state.replicas_desired[ID].raft_index;
    let resumed = test.ok(hold(1, false));
    recorded(&resumed, AuditEventType::RolloutResumed);
    assert!(resumed.state.replicas_desired[ID].raft_index > before);
    let plan = resumed.state.rollout_plans.values().next().unwrap();
    assert_eq!((plan.paused, &*plan.failure_reason), (false, ""));
    test.no_change(hold(1, false));
}

#[test]
fn resumed_rollout_keeps_what_runs_or_ended() {
    let in_progress = RolloutState::InProgress;
    for (plan, state) in [
        (plan(1, in_progress, true), ReplicaState::Running),
        (plan(1, in_progress, false), ReplicaState::Failed),
        (plan(1, RolloutState::Aborted, true), ReplicaState::Failed),
        (plan(7, in_progress, true), ReplicaState::Failed),
    ] {
        let mut test = failing(plan, state);
        let before = test.state.replicas_desired[ID].raft_index;
        test.ok(hold(1, true));
        test.ok(hold(1, false));
        assert_eq!(test.state.replicas_desired[ID].raft_index, before);
    }
}
