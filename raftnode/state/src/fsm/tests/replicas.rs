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
fn plan_is_stored_unchanged() {
    let mut test = TestState::new();
    let plan = v1::RolloutPlan {
        deployment: "shop".into(),
        service: "web".into(),
        target_revision: 3,
        total_steps: 2,
        ..Default::default()
    };
    let update = |plan| Payload::RolloutPlanUpdate(v1::RolloutPlanUpdate { plan });
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
fn subnet_has_one_holder_and_is_freed_selectively() {
    let mut test = TestState::new();
    let allocate = |deployment: &str, network: &str, host: &str, cidr: &str| {
        Payload::SubnetAllocate(v1::SubnetAllocate {
            deployment: deployment.into(),
            network: network.into(),
            cidr: cidr.into(),
            host: host.into(),
        })
    };
    let free = |deployment: &str, network: &str, host: &str| {
        Payload::SubnetFree(v1::SubnetFree {
            deployment: deployment.into(),
            network: network.into(),
            host: host.into(),
        })
    };
    test.ok(allocate("shop", "front", "a", "10.0.0.0/24"));
    test.ok(allocate("shop", "front", "a", "10.0.0.0/24"));
    let error = test.rejected(
        allocate("shop", "front", "b", "10.0.0.0/24"),
        ErrorCode::RaftApplyFailed,
    );
    assert_eq!(error.details["reason"], super::super::reject::CIDR_TAKEN);
    assert_eq!(error.details["host"], "a");
    for overlapping in ["10.0.0.0/16", "10.0.0.128/25", "10.0.0.7/24", "0.0.0.0/0"] {
        test.rejected(
            allocate("shop", "front", "b", overlapping),
            ErrorCode::RaftApplyFailed,
        );
    }
    test.rejected(
        allocate("shop", "front", "b", ""),
        ErrorCode::ValidationFailed,
    );
    test.rejected(allocate("shop", "", "b", "x"), ErrorCode::ValidationFailed);
    test.ok(allocate("shop", "front", "b", "10.0.1.0/24"));
    test.ok(allocate("shop", "back", "a", "10.0.2.0/24"));
    test.ok(allocate("blog", "front", "a", "10.0.3.0/24"));

    test.rejected(free("", "", ""), ErrorCode::ValidationFailed);
    test.no_change(free("shop", "front", "c"));
    test.ok(free("shop", "front", "b"));
    assert_eq!(test.state.subnets.len(), 3);
    test.ok(free("shop", "", ""));
    assert!(test.state.subnets.values().all(|s| s.deployment == "blog"));
    test.ok(free("", "", "a"));
    assert!(test.state.subnets.is_empty());
}

#[test]
fn block_in_use_again_is_not_freed() {
    let mut test = TestState::new();
    let block = |deployment: &str, host: &str, cidr: &str| {
        Payload::SubnetAllocate(v1::SubnetAllocate {
            deployment: deployment.into(),
            network: "front".into(),
            cidr: cidr.into(),
            host: host.into(),
        })
    };
    let free = |deployment: &str, host: &str| {
        Payload::SubnetFree(v1::SubnetFree {
            deployment: deployment.into(),
            network: "front".into(),
            host: host.into(),
        })
    };
    test.cluster();
    test.ok(block("shop", "a", "10.0.0.0/24"));
    test.ok(block("shop", "left", "10.0.1.0/24"));
    // The command was decided before this apply.
    test.ok(Payload::DeploymentApply(v1::DeploymentApply {
        deployment: "shop".into(),
        revision: 1,
        ..Default::default()
    }));
    test.no_change(free("shop", "a"));
    test.ok(free("shop", "left"));
    let hosts: Vec<_> = test.state.subnets.values().map(|s| &*s.host).collect();
    assert_eq!(hosts, ["a"]);
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
