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
    let mut world = World::new();
    let first = world.desired("shop-web-1", "a", "");
    assert_eq!(world.state.replicas_desired["shop-web-1"].raft_index, first);
    let second = world.desired("shop-web-1", "a", "");
    assert_eq!(
        world.state.replicas_desired["shop-web-1"].raft_index,
        second
    );
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
        world.rejected(upsert, ErrorCode::ValidationFailed);
    }
}

#[test]
fn replica_removal_drops_observation_and_failures() {
    let mut world = World::new();
    let raft_index = world.desired("shop-web-1", "a", "");
    world.ok(Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
        replica: Some(v1::ReplicaObserved {
            id: "shop-web-1".into(),
            host: "a".into(),
            state: v1::ReplicaState::Running.into(),
            desired_raft_index: raft_index,
            ..Default::default()
        }),
    }));
    world.ok(count("shop-web-1", Action::Increment));
    let remove = Payload::ReplicaDesiredRemove(v1::ReplicaDesiredRemove {
        id: "shop-web-1".into(),
    });
    let applied = world.ok(remove.clone());
    assert_eq!(
        kinds(&applied),
        [
            "removed replicas_desired",
            "removed replicas_observed",
            "removed restart_counters"
        ]
    );
    assert_eq!(deployments_of(&applied.events), [Some("shop"); 3]);
    world.no_change(remove);
}

#[test]
fn failures_are_counted_for_desired_replicas_only() {
    let mut world = World::new();
    world.no_change(count("shop-web-1", Action::Increment));
    world.desired("shop-web-1", "a", "");
    world.ok(count("shop-web-1", Action::Increment));
    world.now += 3;
    let applied = world.ok(count("shop-web-1", Action::Increment));
    assert_eq!(deployments_of(&applied.events), [Some("shop")]);
    let counter = world.state.restart_counters["shop-web-1"].clone();
    assert_eq!(
        (counter.consecutive_failures, counter.last_attempt_at),
        (2, Some(at(START + 3)))
    );
    world.ok(count("shop-web-1", Action::Reset));
    assert!(world.state.restart_counters.is_empty());
    world.no_change(count("shop-web-1", Action::Reset));
    world.rejected(
        count("shop-web-1", Action::Unspecified),
        ErrorCode::ValidationFailed,
    );
}

#[test]
fn replica_indexes_count_up_from_one() {
    let mut world = World::new();
    let next = |service: &str| {
        Payload::ReplicaCounterIncrement(v1::ReplicaCounterIncrement {
            deployment: "shop".into(),
            service: service.into(),
        })
    };
    world.ok(next("web"));
    let key = ("shop".to_owned(), "web".to_owned());
    assert_eq!(world.state.replica_counters[&key].next_index, 1);
    world.ok(next("web"));
    assert_eq!(world.state.replica_counters[&key].next_index, 2);
    world.rejected(next(""), ErrorCode::ValidationFailed);
}

#[test]
fn plan_is_stored_unchanged() {
    let mut world = World::new();
    let plan = v1::RolloutPlan {
        deployment: "shop".into(),
        service: "web".into(),
        target_revision: 3,
        total_steps: 2,
        ..Default::default()
    };
    let update = |plan| Payload::RolloutPlanUpdate(v1::RolloutPlanUpdate { plan });
    let applied = world.ok(update(Some(plan.clone())));
    assert_eq!(deployments_of(&applied.events), [Some("shop")]);
    let key = ("shop".to_owned(), "web".to_owned());
    assert_eq!(*world.state.rollout_plans[&key], plan);
    world.no_change(update(Some(plan)));
    world.rejected(update(None), ErrorCode::ValidationFailed);
    world.rejected(
        update(Some(v1::RolloutPlan::default())),
        ErrorCode::ValidationFailed,
    );
}

#[test]
fn subnet_has_one_holder_and_is_freed_selectively() {
    let mut world = World::new();
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
    world.ok(allocate("shop", "front", "a", "10.0.0.0/24"));
    world.ok(allocate("shop", "front", "a", "10.0.0.0/24"));
    let error = world.rejected(
        allocate("shop", "front", "b", "10.0.0.0/24"),
        ErrorCode::RaftApplyFailed,
    );
    assert_eq!(error.details["reason"], super::super::reject::CIDR_TAKEN);
    assert_eq!(error.details["host"], "a");
    world.rejected(
        allocate("shop", "front", "b", ""),
        ErrorCode::ValidationFailed,
    );
    world.rejected(allocate("shop", "", "b", "x"), ErrorCode::ValidationFailed);
    world.ok(allocate("shop", "front", "b", "10.0.1.0/24"));
    world.ok(allocate("shop", "back", "a", "10.0.2.0/24"));
    world.ok(allocate("blog", "front", "a", "10.0.3.0/24"));

    world.rejected(free("", "", ""), ErrorCode::ValidationFailed);
    world.no_change(free("shop", "front", "c"));
    world.ok(free("shop", "front", "b"));
    assert_eq!(world.state.subnets.len(), 3);
    world.ok(free("shop", "", ""));
    assert!(world.state.subnets.values().all(|s| s.deployment == "blog"));
    world.ok(free("", "", "a"));
    assert!(world.state.subnets.is_empty());
}

#[test]
fn compatibility_commands_have_no_effect() {
    let mut world = World::new();
    world.no_change(Payload::ReplicaCommandIssue(v1::ReplicaCommandIssue {
        replica_id: "shop-web-1".into(),
        op: "restart".into(),
    }));
    world.no_change(Payload::CertStore(v1::CertStore {
        key: "k".into(),
        value: b"v".to_vec(),
        ttl_seconds: 1,
    }));
}
