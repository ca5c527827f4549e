use std::sync::{Arc, OnceLock};

use proptest::prelude::*;

use super::*;

const ID: &str = "app-web-0";

fn now() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

/// Observation with the failure `state`/`code`, reported at second 10 for row 7.
fn seen(state: ReplicaState, code: &str) -> v1::ReplicaObserved {
    v1::ReplicaObserved {
        id: ID.into(),
        state: state.into(),
        code: code.into(),
        container_id: "c1".into(),
        last_health_at: Some(at(10)),
        desired_raft_index: 7,
        ..Default::default()
    }
}

fn exited() -> v1::ReplicaObserved {
    seen(ReplicaState::Failed, "container_exited")
}

fn state(seen: v1::ReplicaObserved) -> State {
    let mut state = State::default();
    let row = v1::ReplicaDesired {
        id: ID.into(),
        raft_index: 7,
        ..Default::default()
    };
    state.replicas_desired.insert(ID.into(), Arc::new(row));
    state.replicas_observed.insert(ID.into(), Arc::new(seen));
    state
}

/// Applies the changes like the state machine.
fn apply(state: &mut State, changes: &[Change]) {
    for change in changes {
        let id = change.replica_id.clone();
        match change.action {
            Action::Reset => {
                state.restart_counters.remove(&id);
            }
            Action::Increment(ts) => {
                let old = state
                    .restart_counters
                    .get(&id)
                    .map_or(0, |c| c.consecutive_failures);
                let counter = v1::RestartCounter {
                    replica_id: id.clone(),
                    consecutive_failures: old + 1,
                    last_attempt_at: Some(ts),
                };
                state.restart_counters.insert(id, Arc::new(counter));
            }
        }
    }
}

fn observe(state: &mut State, seen: v1::ReplicaObserved) {
    state.replicas_observed.insert(ID.into(), Arc::new(seen));
}

fn failures(state: &State) -> i32 {
    state
        .restart_counters
        .get(ID)
        .map_or(0, |counter| counter.consecutive_failures)
}

#[test]
fn only_container_failures_count() {
    let cases = [
        (ReplicaState::Failed, "container_exited", true),
        (ReplicaState::Failed, "inspect_failed", true),
        (ReplicaState::Failed, "no_state", true),
        (ReplicaState::Degraded, "", true),
        (ReplicaState::Failed, "restart_exhausted", false),
        (ReplicaState::Failed, "subnet_pool_exhausted", false),
        (ReplicaState::Failed, "docker_error", false),
        (ReplicaState::Failed, "image_pull_failed", false),
        (ReplicaState::Pending, "image_pull_failed", false),
        (ReplicaState::Pending, "", false),
        (ReplicaState::Pulling, "pulling", false),
        (ReplicaState::Updating, "", false),
        (ReplicaState::Stopped, "", false),
        (ReplicaState::Running, "", false),
    ];
    for (observed, code, counts) in cases {
        let changes = counter_changes(&state(seen(observed, code)), &mut Counted::default(), now());
        let increment = Change {
            replica_id: ID.into(),
            action: Action::Increment(at(10)),
        };
        let expected = if counts { vec![increment] } else { Vec::new() };
        assert_eq!(changes, expected, "{observed:?} {code}");
    }
}

#[test]
fn counter_goes_once_the_container_is_stable() {
    let mut state = state(exited());
    let counted = &mut Counted::default();
    let changes = counter_changes(&state, counted, now());
    apply(&mut state, &changes);
    let mut running = seen(ReplicaState::Running, "");
    running.started_at = Some(at(12));
    observe(&mut state, running.clone());
    assert_eq!(counter_changes(&state, counted, now()), []);
    assert_eq!(counted.poll_timeout(), Some(now() + STABLE_AFTER));
    // Another start begins anew, and so does another leader.
    running.started_at = Some(at(16));
    observe(&mut state, running);
    let later = now() + Duration::from_secs(4);
    assert_eq!(counter_changes(&state, counted, later), []);
    assert_eq!(counted.poll_timeout(), Some(later + STABLE_AFTER));
    let stable = later + STABLE_AFTER;
    assert_eq!(counter_changes(&state, &mut Counted::default(), stable), []);
    let changes = counter_changes(&state, counted, stable);
    let reset = Change {
        replica_id: ID.into(),
        action: Action::Reset,
    };
    assert_eq!(changes, [reset]);
    apply(&mut state, &changes);
    assert_eq!(counter_changes(&state, counted, stable), []);
    assert_eq!(counted.poll_timeout(), None);
}

#[test]
fn one_failure_counts_once_over_many_passes() {
    let mut state = state(exited());
    let counted = &mut Counted::default();
    for _ in 0..3 {
        let changes = counter_changes(&state, counted, now());
        apply(&mut state, &changes);
    }
    assert_eq!(failures(&state), 1);
}

#[test]
fn lost_proposal_is_repeated() {
    let state = state(exited());
    let counted = &mut Counted::default();
    assert_eq!(counter_changes(&state, counted, now()).len(), 1);
    assert_eq!(counter_changes(&state, counted, now()).len(), 1);
}

#[test]
fn new_leader_does_not_count_again() {
    let mut state = state(exited());
    let changes = counter_changes(&state, &mut Counted::default(), now());
    apply(&mut state, &changes);
    assert_eq!(counter_changes(&state, &mut Counted::default(), now()), []);
}

#[test]
fn repeated_report_of_dead_container_does_not_count() {
    let mut state = state(exited());
    let counted = &mut Counted::default();
    let changes = counter_changes(&state, counted, now());
    apply(&mut state, &changes);
    assert_eq!(counter_changes(&state, counted, now()), []);
    let mut again = seen(ReplicaState::Failed, "inspect_failed");
    again.last_health_at = Some(at(11));
    observe(&mut state, again);
    assert_eq!(counter_changes(&state, counted, now()), []);
}

#[test]
fn new_leader_recognizes_second_report_of_started_container() {
    let mut failed = exited();
    failed.started_at = Some(at(5));
    let mut state = state(failed.clone());
    let changes = counter_changes(&state, &mut Counted::default(), now());
    apply(&mut state, &changes);
    failed.last_health_at = Some(at(11));
    observe(&mut state, failed);
    assert_eq!(counter_changes(&state, &mut Counted::default(), now()), []);
}

#[test]
fn failure_of_another_run_counts() {
    for change in [
        |seen: &mut v1::ReplicaObserved| seen.container_id = "c2".into(),
        |seen: &mut v1::ReplicaObserved| seen.started_at = Some(at(15)),
    ] {
        let mut state = state(exited());
        let counted = &mut Counted::default();
        for _ in 0..2 {
            let changes = counter_changes(&state, counted, now());
            apply(&mut state, &changes);
        }
        let mut next = exited();
        next.last_health_at = Some(at(20));
        change(&mut next);
        observe(&mut state, next);
        for _ in 0..2 {
            let changes = counter_changes(&state, counted, now());
            apply(&mut state, &changes);
        }
        assert_eq!(failures(&state), 2);
    }
}

#[test]
fn failure_after_recovery_counts_again() {
    let mut state = state(exited());
    let counted = &mut Counted::default();
    for _ in 0..2 {
        let changes = counter_changes(&state, counted, now());
        apply(&mut state, &changes);
    }
    observe(&mut state, seen(ReplicaState::Pending, ""));
    assert_eq!(counter_changes(&state, counted, now()), []);
    let mut next = exited();
    next.last_health_at = Some(at(20));
    observe(&mut state, next);
    let changes = counter_changes(&state, counted, now());
    apply(&mut state, &changes);
    assert_eq!(failures(&state), 2);
}

#[test]
fn reports_for_earlier_rows_are_ignored() {
    for observed in [exited(), seen(ReplicaState::Running, "")] {
        let mut state = state(observed);
        apply(
            &mut state,
            &[Change {
                replica_id: ID.into(),
                action: Action::Increment(at(1)),
            }],
        );
        let row = v1::ReplicaDesired {
            id: ID.into(),
            raft_index: 8,
            ..Default::default()
        };
        state.replicas_desired.insert(ID.into(), Arc::new(row));
        assert_eq!(counter_changes(&state, &mut Counted::default(), now()), []);
        state.replicas_desired.remove(ID);
        assert_eq!(counter_changes(&state, &mut Counted::default(), now()), []);
    }
}

proptest! {
    /// A replica fails, recovers and is replaced; leaders change and proposals are lost. In any
    /// interleaving no failure counts twice, and every failure is counted once no more faults
    /// occur, until the replica has been running for long enough.
    #[test]
    fn each_failure_counts_exactly_once(
        steps in proptest::collection::vec((0..5_u8, any::<bool>(), any::<bool>()), 1..60),
    ) {
        let mut state = state(seen(ReplicaState::Pending, ""));
        let mut counted = Counted::default();
        let mut expected = 0;
        let (mut container, mut started) = (0, None);
        let (mut time, mut running_since) = (now(), None);
        for (step, (what, new_leader, lost)) in steps.into_iter().enumerate() {
            let second = i64::try_from(step).unwrap() + 1;
            let is_running = state.replicas_observed[ID].state() == ReplicaState::Running;
            match what {
                0 => {
                    container += 1;
                    (started, running_since) = (None, None);
                    expected += 1;
                    let mut failed = exited();
                    failed.container_id = format!("c{container}");
                    failed.last_health_at = Some(at(second));
                    observe(&mut state, failed);
                }
                1 if !is_running => {
                    // The container that failed is replaced.
                    container += 1;
                    (started, running_since) = (Some(at(second)), Some(time));
                    let mut running = seen(ReplicaState::Running, "");
                    running.container_id = format!("c{container}");
                    running.started_at = started;
                    running.last_health_at = Some(at(second));
                    observe(&mut state, running);
                }
                // A running container fails; without one there is no new failure to report.
                2 if is_running => {
                    expected += 1;
                    running_since = None;
                    let mut failed = seen(ReplicaState::Degraded, "");
                    failed.container_id = format!("c{container}");
                    failed.started_at = started;
                    failed.last_health_at = Some(at(second));
                    observe(&mut state, failed);
                }
                3 => time += STABLE_AFTER / 2,
                _ => {}
            }
            if new_leader {
                counted = Counted::default();
                running_since = running_since.map(|_| time);
            }
            if running_since.is_some_and(|since| since + STABLE_AFTER <= time) {
                expected = 0;
            }
            if lost {
                counter_changes(&state, &mut counted, time);
            }
            let changes = counter_changes(&state, &mut counted, time);
            apply(&mut state, &changes);
            prop_assert_eq!(failures(&state), expected);
            prop_assert_eq!(counter_changes(&state, &mut counted, time), Vec::new());
        }
    }
}
