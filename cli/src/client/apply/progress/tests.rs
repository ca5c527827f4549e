use super::*;
use crate::client::replica::Reason;

const REVISION: u64 = 5;

fn goal() -> Goal {
    Goal {
        deployment: "app".to_owned(),
        revision: REVISION,
        images: [("web".to_owned(), "i:2".to_owned())].into(),
        ..Goal::default()
    }
}

fn seen(id: &str, state: ReplicaState) -> Replica {
    Replica {
        id: id.to_owned(),
        service: "web".to_owned(),
        host: "one".to_owned(),
        image: "i:2".to_owned(),
        state,
        reason: Reason::default(),
        wanted: 40,
        seen: 40,
    }
}

fn code(code: &str) -> Reason {
    Reason {
        code: code.to_owned(),
        ..Reason::default()
    }
}

fn deployment(replicas: i32) -> v1::Deployment {
    v1::Deployment {
        name: "app".to_owned(),
        applied_revision: REVISION,
        highest_revision: REVISION,
        status: DeploymentStatus::Active.into(),
        services: vec![v1::ServiceSpec {
            name: "web".to_owned(),
            replicas,
            placement: PlacementMode::Spread.into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn snapshot_of(count: i32, replicas: Vec<Replica>) -> Snapshot {
    Snapshot {
        deployment: Some(deployment(count)),
        replicas,
        rollouts: Vec::new(),
    }
}

fn verdict(goal: Goal, snapshot: Snapshot) -> Convergence {
    Tracker::new(goal).handle_snapshot(snapshot)
}

fn why(verdict: Convergence) -> Failure {
    match verdict {
        Convergence::Stuck(failure) => {
            assert_eq!(failure.code, "not_converged");
            *failure
        }
        Convergence::Waiting | Convergence::Converged => panic!("{verdict:?}"),
    }
}

#[test]
fn revision_converges_when_every_replica_runs() {
    use ReplicaState::{Degraded, Pending, Pulling, Running, Updating};
    for (states, expected) in [
        (vec![Running, Running], Convergence::Converged),
        (vec![Running, Pulling], Convergence::Waiting),
        (vec![Running, Degraded], Convergence::Waiting),
        (vec![Running, Updating], Convergence::Waiting),
        (vec![Running, Pending], Convergence::Waiting),
        (vec![Running], Convergence::Waiting),
        (vec![], Convergence::Waiting),
    ] {
        let replicas: Vec<_> = states
            .iter()
            .enumerate()
            .map(|(at, &state)| seen(&format!("r{at}"), state))
            .collect();
        assert_eq!(
            verdict(goal(), snapshot_of(2, replicas)),
            expected,
            "{states:?}"
        );
    }
    assert_eq!(
        verdict(goal(), snapshot_of(0, vec![])),
        Convergence::Converged
    );
}

#[test]
fn old_generation_does_not_count() {
    let running = seen("r0", ReplicaState::Running);
    let old_image = Replica {
        image: "i:1".to_owned(),
        ..running.clone()
    };
    assert_eq!(
        verdict(goal(), snapshot_of(1, vec![old_image])),
        Convergence::Waiting
    );

    let old_report = Replica {
        seen: 30,
        ..running.clone()
    };
    assert_eq!(
        verdict(goal(), snapshot_of(1, vec![old_report])),
        Convergence::Waiting
    );

    let replaced = || Goal {
        replaced: [("r0".to_owned(), 40)].into(),
        ..goal()
    };
    assert_eq!(
        verdict(replaced(), snapshot_of(1, vec![running.clone()])),
        Convergence::Waiting
    );
    let new = Replica {
        wanted: 41,
        seen: 41,
        ..running.clone()
    };
    assert_eq!(
        verdict(replaced(), snapshot_of(1, vec![new])),
        Convergence::Converged
    );

    let removed = Goal {
        removed: ["r1".to_owned()].into(),
        ..goal()
    };
    let leaving = seen("r1", ReplicaState::Failed);
    assert_eq!(
        verdict(removed, snapshot_of(1, vec![running, leaving])),
        Convergence::Converged
    );
}

#[test]
fn failure_of_the_old_generation_is_ignored() {
    let failed = seen("r0", ReplicaState::Failed);
    let old_report = Replica {
        seen: 30,
        ..failed.clone()
    };
    assert_eq!(
        verdict(goal(), snapshot_of(1, vec![old_report])),
        Convergence::Waiting
    );
    let replaced = Goal {
        replaced: [("r0".to_owned(), 40)].into(),
        ..goal()
    };
    assert_eq!(
        verdict(replaced, snapshot_of(1, vec![failed])),
        Convergence::Waiting
    );
}

#[test]
fn failure_lists_every_replica_with_its_reason() {
    let failed = Replica {
        reason: Reason {
            code: "container_exited".to_owned(),
            details: [("exit_code".to_owned(), "1".to_owned())].into(),
            ..Reason::default()
        },
        ..seen("r0", ReplicaState::Failed)
    };
    let replicas = vec![
        failed,
        seen("r1", ReplicaState::Pulling),
        seen("r2", ReplicaState::Running),
    ];
    let failure = why(verdict(goal(), snapshot_of(4, replicas)));
    assert_eq!(
        failure.message,
        "deployment app revision 5 did not converge: replica r0 failed: container_exited (exit 1)"
    );
    let details: Vec<_> = failure
        .details
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    assert_eq!(
        details,
        [
            "r0=failed: container_exited (exit 1)",
            "r1=pulling",
            "service web=1 replica not scheduled"
        ]
    );
}

#[test]
fn deployment_state_decides_before_replicas() {
    let with = |edit: fn(&mut v1::Deployment)| {
        let mut deployment = deployment(1);
        edit(&mut deployment);
        let replicas = vec![seen("r0", ReplicaState::Running)];
        verdict(
            goal(),
            Snapshot {
                deployment: Some(deployment),
                replicas,
                rollouts: Vec::new(),
            },
        )
    };
    let pending = why(with(|d| {
        d.status = DeploymentStatus::Pending.into();
        d.status_details = [("reason".to_owned(), "image missing".to_owned())].into();
    }));
    assert!(pending.message.ends_with("it is pending: image missing"));
    let newer = why(with(|d| d.applied_revision = 6));
    assert!(
        newer
            .message
            .ends_with("revision 6 was applied in the meantime")
    );
    let back = why(with(|d| d.applied_revision = 4));
    assert!(back.message.ends_with("it was rolled back to revision 4"));
    let behind = with(|d| (d.applied_revision, d.highest_revision) = (4, 4));
    assert_eq!(behind, Convergence::Waiting);
}

#[test]
fn missing_deployment_fails_only_after_it_existed() {
    let mut tracker = Tracker::new(goal());
    assert_eq!(
        tracker.handle_snapshot(Snapshot::default()),
        Convergence::Waiting
    );
    assert_eq!(
        tracker.handle_snapshot(snapshot_of(1, vec![])),
        Convergence::Waiting
    );
    let gone = why(tracker.handle_snapshot(Snapshot::default()));
    assert!(gone.message.ends_with("it was deleted"));
}

fn rollout(state: RolloutState, revision: u64) -> v1::SubscribeEvent {
    let plan = v1::RolloutPlan {
        deployment: "app".to_owned(),
        service: "web".to_owned(),
        target_revision: revision,
        state: state.into(),
        failure_reason: "step_timeout".to_owned(),
        ..Default::default()
    };
    let event = v1::RolloutPlanEvent {
        after: Some(plan),
        ..Default::default()
    };
    v1::SubscribeEvent {
        payload: Some(v1::subscribe_event::Payload::RolloutPlan(event)),
    }
}

#[test]
fn rollout_of_the_revision_must_complete() {
    let running = || snapshot_of(1, vec![seen("r0", ReplicaState::Running)]);
    let mut tracker = Tracker::new(goal());
    tracker.handle_event(rollout(RolloutState::Aborted, REVISION - 1));
    tracker.handle_event(rollout(RolloutState::InProgress, REVISION));
    assert_eq!(tracker.handle_snapshot(running()), Convergence::Waiting);
    tracker.handle_event(rollout(RolloutState::Completed, REVISION));
    assert_eq!(tracker.handle_snapshot(running()), Convergence::Converged);
    tracker.handle_event(rollout(RolloutState::Aborted, REVISION));
    let failure = why(tracker.handle_snapshot(running()));
    assert!(
        failure
            .message
            .ends_with("the rollout of service web was aborted")
    );
    assert_eq!(failure.details["rollout"], "step_timeout");
}

/// The plan of a rollout of the goal's revision.
fn plan(state: RolloutState, paused: bool) -> v1::RolloutPlan {
    v1::RolloutPlan {
        deployment: "app".to_owned(),
        service: "web".to_owned(),
        target_revision: REVISION,
        state: state.into(),
        failure_reason: "r0: no such image".to_owned(),
        paused,
        ..Default::default()
    }
}

#[test]
fn rollout_decides_about_its_failed_replicas() {
    let snapshot = |paused| Snapshot {
        rollouts: vec![plan(RolloutState::InProgress, paused)],
        ..snapshot_of(1, vec![seen("r0", ReplicaState::Failed)])
    };
    assert_eq!(verdict(goal(), snapshot(false)), Convergence::Waiting);
    let paused = why(verdict(goal(), snapshot(true)));
    assert!(
        paused
            .message
            .ends_with("the rollout of service web was paused")
    );
    assert_eq!(paused.details["rollout"], "r0: no such image");
}

#[test]
fn rollback_has_its_own_code_and_status() {
    let snapshot = |failed_revision| {
        let mut snapshot = snapshot_of(1, vec![seen("r0", ReplicaState::Running)]);
        let deployment = snapshot.deployment.as_mut().unwrap();
        deployment.applied_revision = REVISION - 1;
        deployment.failed_revision = failed_revision;
        deployment.failure_reason = "r0: no such image".to_owned();
        snapshot
    };
    let Convergence::Stuck(failure) = verdict(goal(), snapshot(REVISION)) else {
        panic!("not rolled back");
    };
    assert_eq!(
        (failure.code.as_str(), failure.exit_status()),
        ("rolled_back", 3)
    );
    assert!(
        failure
            .message
            .ends_with("rolled back to revision 4: r0: no such image")
    );
    // An operator rolled it back, or an earlier revision had failed.
    let by_hand = why(verdict(goal(), snapshot(REVISION - 2)));
    assert_eq!(by_hand.exit_status(), 1);
    let timed_out = Tracker::new(goal()).timed_out("5m0s");
    assert_eq!(
        (timed_out.code.as_str(), timed_out.exit_status()),
        ("timed_out", 124)
    );
}

#[test]
fn global_service_waits_for_its_added_replicas() {
    let snapshot = |replicas| {
        let mut deployment = deployment(1);
        deployment.services[0].placement = PlacementMode::Global.into();
        Snapshot {
            deployment: Some(deployment),
            replicas,
            rollouts: Vec::new(),
        }
    };
    let announced = || Goal {
        added: ["r0".to_owned(), "r1".to_owned()].into(),
        ..goal()
    };
    let one = vec![seen("r0", ReplicaState::Running)];
    assert_eq!(
        verdict(announced(), snapshot(one.clone())),
        Convergence::Waiting
    );
    let both = [one, vec![seen("r1", ReplicaState::Running)]].concat();
    assert_eq!(verdict(announced(), snapshot(both)), Convergence::Converged);
}

#[test]
fn step_is_that_of_the_slowest_replica() {
    let step = |count, replicas| {
        let mut tracker = Tracker::new(goal());
        let _ = tracker.handle_snapshot(snapshot_of(count, replicas));
        let line = tracker.services().remove(0);
        format!("{}/{} {}", line.ready, line.total, line.step)
    };
    let running = seen("r0", ReplicaState::Running);
    let pulling = Replica {
        reason: code("pulling"),
        ..seen("r1", ReplicaState::Pulling)
    };
    let unpulled = Replica {
        reason: code("image_pull_failed"),
        ..seen("r2", ReplicaState::Pending)
    };
    let old = Replica {
        image: "i:1".to_owned(),
        ..seen("r3", ReplicaState::Running)
    };
    assert_eq!(step(1, vec![running.clone()]), "1/1 running");
    assert_eq!(step(2, vec![running.clone()]), "1/2 scheduling");
    assert_eq!(
        step(2, vec![running.clone(), pulling.clone()]),
        "1/2 pulling"
    );
    assert_eq!(
        step(2, vec![pulling.clone(), unpulled]),
        "0/2 pending (image_pull_failed)"
    );
    assert_eq!(step(3, vec![running, pulling, old]), "1/3 replacing");
}

#[test]
fn only_changed_replicas_are_reported() {
    let mut tracker = Tracker::new(goal());
    let pulling = seen("r0", ReplicaState::Pulling);
    let _ = tracker.handle_snapshot(snapshot_of(2, vec![pulling.clone()]));
    assert_eq!(tracker.poll_changes(), ["r0: pulling on one"]);
    assert!(tracker.poll_changes().is_empty());
    let _ = tracker.handle_snapshot(snapshot_of(
        2,
        vec![seen("r0", ReplicaState::Running), pulling],
    ));
    let _ = tracker.handle_snapshot(snapshot_of(
        2,
        vec![
            seen("r0", ReplicaState::Running),
            seen("r1", ReplicaState::Pulling),
        ],
    ));
    assert_eq!(
        tracker.poll_changes(),
        ["r0: running on one", "r1: pulling on one"]
    );
}

mod property {
    use proptest::prelude::*;

    use super::*;

    fn any_replica() -> impl Strategy<Value = Replica> {
        let state = (0..8_i32).prop_map(|state| ReplicaState::try_from(state).unwrap());
        let generations = prop::sample::select(vec![0, 30, 40, 41]);
        let image = prop::sample::select(vec!["i:1", "i:2"]);
        ("r[0-3]", state, generations, image).prop_map(|(id, state, generation, image)| Replica {
            seen: generation,
            image: image.to_owned(),
            ..seen(&id, state)
        })
    }

    proptest! {
        #[test]
        fn verdict_follows_the_replicas(
            replicas in prop::collection::vec(any_replica(), 0..5),
            count in 0..4_i32,
        ) {
            let reports = |replica: &Replica| {
                replica.image == "i:2" && (replica.seen == 0 || replica.seen >= 40)
            };
            let good = |replica: &&Replica| {
                reports(replica) && replica.state == ReplicaState::Running
            };
            let failed = replicas.iter().any(|r| reports(r) && r.state == ReplicaState::Failed);
            let ready = replicas.iter().filter(good).count();
            let all = ready == replicas.len() && ready >= usize::try_from(count).unwrap();
            match verdict(goal(), snapshot_of(count, replicas)) {
                Convergence::Stuck(_) => prop_assert!(failed),
                Convergence::Converged => prop_assert!(all && !failed),
                Convergence::Waiting => prop_assert!(!all && !failed),
            }
        }
    }
}
