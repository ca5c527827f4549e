//! Containers that have ended and, by the policy of their service, do not start again.

use super::*;

fn policy(condition: RestartCondition) -> Restart {
    Restart {
        condition,
        ..Restart::default()
    }
}

fn job(raft_index: u64, restart: Restart) -> Assignment {
    Assignment::Own(DesiredReplica {
        restart,
        ..wanted(raft_index)
    })
}

fn ended(exit_code: i64) -> Inspected {
    Inspected {
        exit_code,
        ..seen(Status::Exited, None)
    }
}

/// A job whose container has just ended.
fn finished(exit_code: i64) -> Bench {
    let mut bench = Bench::new();
    bench
        .assign(job(7, policy(RestartCondition::Never)))
        .found(vec![])
        .prepared(Ok(()))
        .pulled(Ok(()))
        .launched(Ok("c1"))
        .inspected(Ok(ended(exit_code)));
    bench
}

#[test]
fn end_is_reported_with_exit_code() {
    for exit_code in [0, 3] {
        let mut bench = finished(exit_code);
        let last = bench.last();
        assert_eq!(last.state, Stopped);
        assert_eq!(last.finished(), Some(exit_code));
        assert_eq!(last.container_id, "c1");
        assert_eq!(bench.timeout(), POLL_SAFETY, "nothing restarts it");
    }
}

#[test]
fn only_failures_restart_on_failure() {
    let mut bench = Bench::new();
    bench
        .assign(job(7, policy(RestartCondition::OnFailure)))
        .found(vec![])
        .prepared(Ok(()))
        .pulled(Ok(()))
        .launched(Ok("c1"))
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.crash_and_restart("c1", "c2"), Duration::from_secs(1));
    bench.engine_event().inspected(Ok(ended(0)));
    assert_eq!(bench.last().finished(), Some(0));
}

#[test]
fn service_sets_attempts_and_delay() {
    let restart = Restart {
        condition: RestartCondition::OnFailure,
        attempts: Some(2),
        delay: Some(Duration::from_secs(9)),
    };
    let mut bench = Bench::new();
    bench
        .assign(job(7, restart))
        .found(vec![])
        .prepared(Ok(()))
        .pulled(Ok(()))
        .launched(Ok("c1"))
        .inspected(Ok(seen(Status::Running, None)));
    for (id, next) in [("c1", "c2"), ("c2", "c3")] {
        assert_eq!(bench.crash_and_restart(id, next), Duration::from_secs(9));
    }
    bench.crash();
    assert_eq!(bench.last().code, "restart_exhausted");
}

#[test]
fn unhealthy_job_is_left_running() {
    let mut bench = Bench::new();
    let assignment = Assignment::Own(DesiredReplica {
        restart: policy(RestartCondition::Never),
        readiness: Readiness::Healthcheck,
        ..wanted(7)
    });
    bench
        .assign(assignment)
        .found(vec![container("c1", 7, Status::Running)])
        .inspected(Ok(seen(Status::Running, Some(Health::Unhealthy))));
    assert_eq!(bench.last().state, Degraded);
    assert_eq!(bench.timeout(), POLL_SAFETY);
}

#[test]
fn finished_replica_stays_over_actor_restarts() {
    let seed = || Seed {
        report: Some(finished(0).last().clone()),
        failures: 0,
    };
    // Also while dependencies or the contact with the cluster are missing.
    for gate in [
        StartGate::Open,
        StartGate::NotCaughtUp,
        StartGate::Deferred("db".into()),
        StartGate::IsolationMissing,
    ] {
        let assignment = || {
            Assignment::Own(DesiredReplica {
                restart: policy(RestartCondition::Never),
                gate: gate.clone(),
                ..wanted(7)
            })
        };
        let mut bench = Bench::seeded(seed());
        bench
            .assign(assignment())
            .found(vec![container("c1", 7, Status::Exited)])
            .inspected(Ok(ended(0)));
        assert_eq!(bench.timeout(), POLL_SAFETY);
        // Its container may have been removed, now or before.
        bench.inspected(Err(EngineError::NotFound("c1".into())));
        assert_eq!(bench.timeout(), POLL_SAFETY);
        let mut bench = Bench::seeded(seed());
        bench.assign(assignment()).found(vec![]);
        assert_eq!(bench.core.poll_timeout(), None);
        assert_eq!(bench.states(), []);
        assert_eq!(bench.core.deferred(), None);
    }
}

#[test]
fn engine_failure_hides_no_end() {
    let mut bench = finished(0);
    bench.timeout();
    bench.inspected(Err(down()));
    assert_eq!(bench.last().finished(), Some(0));
    bench.timeout();
    bench.found(vec![]);
    assert_eq!(bench.core.poll_timeout(), None);
}

#[test]
fn stopped_container_of_unknown_end_is_judged_first() {
    let mut bench = Bench::new();
    bench
        .assign(job(7, policy(RestartCondition::OnFailure)))
        .found(vec![container("c1", 7, Status::Exited)])
        .inspected(Ok(ended(0)));
    assert_eq!(bench.last().finished(), Some(0));
}

#[test]
fn new_row_runs_job_again() {
    let mut bench = finished(0);
    bench
        .assign(job(8, policy(RestartCondition::Never)))
        .found(vec![container("c1", 7, Status::Exited)])
        .discarded(&["c1"])
        .found(vec![])
        .prepared(Ok(()))
        .pulled(Ok(()))
        .launched(Ok("c2"));
}

#[test]
fn other_policy_restarts_finished_replica() {
    let mut bench = finished(0);
    bench
        .assign(own(7))
        .found(vec![container("c1", 7, Status::Exited)])
        .prepared(Ok(()))
        .started(Ok(()));
}

fn on_failure(gate: StartGate) -> Assignment {
    Assignment::Own(DesiredReplica {
        restart: policy(RestartCondition::OnFailure),
        gate,
        ..wanted(7)
    })
}

/// A job on failure whose container is found ended, with the gate `gate` after its inspection.
fn found_failed(gate: StartGate) -> Bench {
    let mut bench = Bench::new();
    bench
        .assign(on_failure(StartGate::Open))
        .found(vec![container("c1", 7, Status::Exited)])
        .inspected(Ok(ended(1)))
        .assign(on_failure(gate));
    bench
}

#[test]
fn failed_job_found_ended_waits_for_cluster() {
    let mut bench = found_failed(StartGate::NotCaughtUp);
    // Each change of the contact looks at the container again.
    for _ in 0..5 {
        assert_eq!(bench.timeout(), Duration::from_secs(1));
        bench.found(vec![container("c1", 7, Status::Exited)]);
        assert_eq!((&bench.asked, bench.core.poll_timeout()), (&None, None));
        bench
            .assign(on_failure(StartGate::Open))
            .found(vec![container("c1", 7, Status::Exited)])
            .assign(on_failure(StartGate::NotCaughtUp));
    }
    assert_eq!(bench.core.failures, 1, "counted once");
    assert_eq!(bench.states(), [Failed]);
}

#[test]
fn failed_job_found_ended_restarts() {
    let mut bench = found_failed(StartGate::Deferred("db".into()));
    assert_eq!(bench.timeout(), Duration::from_secs(1));
    // As a restart: neither a pull nor its dependencies hold it back.
    bench
        .discarded(&["c1"])
        .found(vec![])
        .prepared(Ok(()))
        .launched(Ok("c2"))
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.crash_and_restart("c2", "c3"), Duration::from_secs(2));
}
