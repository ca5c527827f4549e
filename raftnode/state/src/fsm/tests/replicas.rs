use jaco_proto::v1::restart_counter_update::Action;

use super::*;

fn count(id: &str, action: Action) -> Payload {
    Payload::RestartCounterUpdate(v1::RestartCounterUpdate {
        replica_id: id.into(),
        action: action.into(),
    })
}

#[test]
fn desired_replica_carries_the_index_of_its_entry() {
    let mut test = TestState::new();
    let first = test.desired("shop-web-1", "a", "");
    assert_eq!(test.state.replicas_desired["shop-web-1"].raft_index, first);
    let second = test.desired("shop-web-1", "a", "");
    assert_eq!(test.state.replicas_desired["shop-web-1"].raft_index, second);
    assert!(second > first);
    for replica in [
        None,
        Some(v1::ReplicaDesired {
            id: "x".into(),
            ..Default::default()
        }),
        Some(v1::ReplicaDesired {
            id: "x\0y".into(),
            deployment: "d".into(),
            service: "s".into(),
            ..Default::default()
        }),
    ] {
        let upsert = Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert { replica });
        test.rejected(upsert, ErrorCode::ValidationFailed);
    }
}

#[test]
fn replica_removal_drops_observation_and_failures() {
    let mut test = TestState::new();
    let raft_index = test.desired("shop-web-1", "a", "");
    test.ok(Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
        replica: Some(v1::ReplicaObserved {
            id: "shop-web-1".into(),
            host: "a".into(),
            state: v1::ReplicaState::Running.into(),
            desired_raft_index: raft_index,
            ..Default::default()
        }),
    }));
    test.ok(count("shop-web-1", Action::Increment));
    let remove = Payload::ReplicaDesiredRemove(v1::ReplicaDesiredRemove {
        id: "shop-web-1".into(),
    });
    let applied = test.ok(remove.clone());
    assert_eq!(
        kinds(&applied),
        [
            "removed replicas_desired",
            "removed replicas_observed",
            "removed restart_counters"
        ]
    );
    assert_eq!(deployments_of(&applied.events), [Some("shop"); 3]);
    test.no_change(remove);
}

#[test]
fn failures_are_counted_for_desired_replicas_only() {
    let mut test = TestState::new();
    test.no_change(count("shop-web-1", Action::Increment));
    test.desired("shop-web-1", "a", "");
    test.ok(count("shop-web-1", Action::Increment));
    test.now += 3;
    let applied = test.ok(count("shop-web-1", Action::Increment));
    assert_eq!(deployments_of(&applied.events), [Some("shop")]);
    let counter = test.state.restart_counters["shop-web-1"].clone();
    assert_eq!(
        (counter.consecutive_failures, counter.last_attempt_at),
        (2, Some(at(START + 3)))
    );
    test.ok(count("shop-web-1", Action::Reset));
    assert!(test.state.restart_counters.is_empty());
    test.no_change(count("shop-web-1", Action::Reset));
    test.rejected(
        count("shop-web-1", Action::Unspecified),
        ErrorCode::ValidationFailed,
    );
}

#[test]
fn replica_indexes_count_up_from_one() {
    let mut test = TestState::new();
    let next = |service: &str| {
        Payload::ReplicaCounterIncrement(v1::ReplicaCounterIncrement {
            deployment: "shop".into(),
            service: service.into(),
        })
    };
    test.ok(next("web"));
    let key = ("shop".to_owned(), "web".to_owned());
    assert_eq!(test.state.replica_counters[&key].next_index, 1);
    test.ok(next("web"));
    assert_eq!(test.state.replica_counters[&key].next_index, 2);
    test.rejected(next(""), ErrorCode::ValidationFailed);
}

#[test]
fn plan_of_a_service_is_stored_unchanged() {
    let mut test = TestState::new();
    let plan = v1::RolloutPlan {
        deployment: "shop".into(),
        service: "web".into(),
        target_revision: 3,
        total_steps: 2,
        ..Default::default()
    };
    let update = |plan| Payload::RolloutPlanUpdate(v1::RolloutPlanUpdate { plan });
    test.no_change(update(Some(plan.clone())));
    test.ok(Payload::DeploymentApply(v1::DeploymentApply {
        deployment: "shop".into(),
        revision: 3,
        services: vec![v1::ServiceSpec {
            name: "web".into(),
            ..Default::default()
        }],
        ..Default::default()
    }));
    let applied = test.ok(update(Some(plan.clone())));
    assert_eq!(deployments_of(&applied.events), [Some("shop")]);
    let key = ("shop".to_owned(), "web".to_owned());
    assert_eq!(*test.state.rollout_plans[&key], plan);
    test.no_change(update(Some(plan)));
    test.rejected(update(None), ErrorCode::ValidationFailed);
    test.rejected(
        update(Some(v1::RolloutPlan::default())),
        ErrorCode::ValidationFailed,
    );
}

#[test]
fn compatibility_commands_have_no_effect() {
    let mut test = TestState::new();
    test.no_change(Payload::ReplicaCommandIssue(v1::ReplicaCommandIssue {
        replica_id: "shop-web-1".into(),
        op: "restart".into(),
    }));
    test.no_change(Payload::CertStore(v1::CertStore {
        key: "k".into(),
        value: b"v".to_vec(),
        ttl_seconds: 1,
    }));
}
