//! Gates that hold back a start, and the work that continues meanwhile.

use super::*;

fn gated(raft_index: u64, gate: StartGate) -> Assignment {
    Assignment::Own(DesiredReplica {
        gate,
        ..wanted(raft_index)
    })
}

fn deferred() -> StartGate {
    StartGate::Deferred("db is not running".into())
}

#[test]
fn unmet_dependencies_defer_start_without_report() {
    let mut bench = Bench::new();
    bench.assign(gated(7, deferred())).found(vec![]);
    assert_eq!((bench.states().len(), bench.core.poll_timeout()), (0, None));
    assert_eq!(bench.core.deferred(), Some("db is not running"));
    bench.pulling(7);
    assert_eq!(bench.states(), [Pulling]);
}

#[test]
fn node_without_isolation_reports_and_starts_nothing() {
    let mut bench = Bench::new();
    bench
        .assign(gated(7, StartGate::IsolationMissing))
        .found(vec![]);
    assert_eq!(bench.last().code, "isolation_unavailable");
    assert_eq!(bench.last().state, Pending);
    assert_eq!(bench.timeout(), RETRY);
}

#[test]
fn closing_gate_cancels_start_before_create() {
    for (gate, published) in [
        (StartGate::NotCaughtUp, vec![Pulling]),
        (StartGate::IsolationMissing, vec![Pulling, Pending]),
    ] {
        let stages: [fn(&mut Bench); 3] = [
            |_| {},
            |bench| {
                bench.prepared(Ok(()));
            },
            |bench| {
                bench.prepared(Ok(())).pulled(Err(refused()));
            },
        ];
        for (number, stage) in stages.into_iter().enumerate() {
            let mut bench = Bench::new();
            bench.assign(own(7)).found(vec![]);
            stage(&mut bench);
            bench.assign(gated(7, gate.clone()));
            assert_eq!(bench.cancelled, 1, "{gate:?} in stage {number}");
            bench.found(vec![]);
            assert_eq!(bench.asked, None, "{gate:?} in stage {number}");
            if let Some(due) = bench.core.poll_timeout() {
                bench.now.instant = due;
                bench.feed(Core::handle_timeout).found(vec![]);
                assert_eq!(bench.asked, None, "{gate:?} in stage {number}");
            }
            bench.assign(own(7)).found(vec![]);
            assert!(matches!(bench.asked, Some(Action::Prepare(_))));
        }
        let mut bench = Bench::new();
        bench.pulling(7).assign(gated(7, gate)).found(vec![]);
        assert_eq!(bench.states(), published);
    }
}

#[test]
fn start_condition_holds_for_same_row_and_gate() {
    use StartGate::{IsolationMissing, NotCaughtUp, Open};
    for (restart, holds) in [
        (false, [true, true, false, false]),
        (true, [true, true, true, false]),
    ] {
        let condition = StartCondition {
            raft_index: 7,
            restart,
        };
        let gates = [Open, deferred(), NotCaughtUp, IsolationMissing];
        for (gate, expected) in gates.into_iter().zip(holds) {
            let now = gated(7, gate);
            assert_eq!(condition.holds(&now), expected, "{condition:?} {now:?}");
        }
        let kept = Assignment::Kept {
            readiness: Readiness::Uptime,
        };
        for other in [own(8), own(6), kept, Assignment::Gone] {
            assert!(!condition.holds(&other), "{other:?}");
        }
    }
}

#[test]
fn stopped_container_waits_for_isolation() {
    let stopped = || vec![container("c1", 7, Status::Exited)];
    let mut bench = Bench::new();
    bench
        .assign(gated(7, StartGate::IsolationMissing))
        .found(stopped());
    assert_eq!(bench.asked, None);
    assert_eq!(bench.last().code, "isolation_unavailable");
    // The node isolates again, but the ruleset does not include the networks in time.
    bench
        .assign(own(7))
        .found(stopped())
        .prepared(Err(PrepareError::Retry("not in force".into())))
        .timeout();
    bench
        .found(stopped())
        .prepared(Ok(()))
        .started(Ok(()))
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.last().container_id, "c1");
}

#[test]
fn start_of_stopped_container_ends_with_isolation() {
    let stopped = || vec![container("c1", 7, Status::Exited)];
    let missing = || gated(7, StartGate::IsolationMissing);
    let mut bench = Bench::new();
    bench.assign(own(7)).found(stopped()).assign(missing());
    assert_eq!(bench.cancelled, 1);
    bench.found(stopped());
    assert_eq!(bench.asked, None);
    // The node loses its isolation after the core's decision.
    bench
        .assign(own(7))
        .found(stopped())
        .prepared(Ok(()))
        .assign(missing())
        .revoked()
        .found(stopped());
    assert_eq!(bench.asked, None);
}

#[test]
fn exhausted_container_stays_failed_without_isolation() {
    let mut bench = Bench::seeded(Seed {
        report: Some(
            Report::new(Failed, 7)
                .of("c1")
                .because(code::RESTART_EXHAUSTED, ""),
        ),
        failures: RESTARTS + 1,
    });
    bench
        .assign(gated(7, StartGate::IsolationMissing))
        .found(vec![container("c1", 7, Status::Exited)]);
    assert!(matches!(bench.asked, Some(Action::Inspect(..))));
    assert_eq!(bench.states(), []);
}

#[test]
fn revoked_start_is_decided_anew() {
    let mut bench = Bench::new();
    bench.pulling(7).pulled(Ok(()));
    let fresh = StartCondition {
        raft_index: 7,
        restart: false,
    };
    assert!(matches!(bench.asked, Some(Action::Launch(_, condition)) if condition == fresh));
    bench
        .assign(gated(7, StartGate::NotCaughtUp))
        .revoked()
        .found(vec![]);
    assert_eq!(
        (bench.asked.take(), bench.core.poll_timeout()),
        (None, None)
    );
    assert_eq!(bench.states(), [Pulling], "no failure to report");
    bench.assign(own(7)).found(vec![]).prepared(Ok(()));

    let mut bench = Bench::new();
    bench
        .assign(own(7))
        .found(vec![container("c1", 7, Status::Exited)])
        .prepared(Ok(()))
        .revoked()
        .assign(Assignment::Gone)
        .found(vec![container("c1", 7, Status::Exited)])
        .discarded(&["c1"]);
}

#[test]
fn restart_without_isolation_pulls_nothing() {
    let mut bench = Bench::new();
    bench.up(7, "c1").crash_and_launch("c1");
    bench
        .assign(gated(7, StartGate::IsolationMissing))
        .launched(Err(EngineError::NotFound("no such image".into())))
        .found(vec![]);
    assert_eq!(bench.asked.take(), None);
    assert_eq!(bench.last().code, "isolation_unavailable");
}

#[test]
fn dependencies_are_checked_once() {
    let mut bench = Bench::new();
    bench
        .pulling(7)
        .assign(gated(7, deferred()))
        .pulled(Ok(()))
        .launched(Ok("c1"));
    assert_eq!(bench.cancelled, 0);
}

#[test]
fn restart_continues_while_node_is_disconnected() {
    let mut bench = Bench::new();
    bench
        .up(7, "c1")
        .prove()
        .assign(gated(7, StartGate::NotCaughtUp))
        .crash()
        .timeout();
    bench
        .discarded(&["c1"])
        .found(vec![])
        .prepared(Err(PrepareError::Retry("the bridge did not answer".into())))
        .timeout();
    // Neither an unreachable engine nor a failed create turns a restart into a new start.
    bench
        .found(vec![])
        .prepared(Err(PrepareError::Engine(down())))
        .timeout();
    bench
        .found(vec![])
        .prepared(Ok(()))
        .launched(Err(refused()))
        .timeout();
    bench
        .found(vec![])
        .prepared(Ok(()))
        .launched(Err(EngineError::NotFound("no such image".into())))
        .pulled(Ok(()))
        .launched(Ok("c2"))
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.last().container_id, "c2");
}

#[test]
fn unavailable_image_is_not_pulled_in_a_loop() {
    let gone = || Err(EngineError::NotFound("no such image".into()));
    let mut bench = Bench::new();
    bench.up(7, "c1").crash_and_launch("c1");
    bench.launched(gone()).pulled(Ok(())).launched(gone());
    assert_eq!(bench.last().code, "docker_error");
    assert_eq!(bench.timeout(), RETRY);
}

/// A container of row 6 serves while row 7 has to wait.
fn serving(gate: StartGate) -> Bench {
    let mut bench = Bench::new();
    bench
        .up(6, "c1")
        .prove()
        .assign(gated(7, gate))
        .found(vec![container("c1", 6, Status::Running)])
        .inspected(Ok(seen(Status::Running, None)));
    bench.published.clear();
    bench
}

#[test]
fn outdated_container_serves_until_successor_may_start() {
    for gate in [
        deferred(),
        StartGate::NotCaughtUp,
        StartGate::IsolationMissing,
    ] {
        let mut bench = serving(gate.clone());
        assert_eq!(bench.timeout(), POLL_SAFETY, "{gate:?}");
        bench.inspected(Ok(seen(Status::Running, None)));
        assert_eq!(bench.states(), [], "the report is already replicated");
        let waits = (gate == deferred()).then_some("db is not running");
        assert_eq!(bench.core.deferred(), waits);
        bench
            .assign(own(7))
            .found(vec![container("c1", 6, Status::Running)])
            .pulled_ahead()
            .discarded(&["c1"])
            .found(vec![])
            .prepared(Ok(()));
        assert_eq!(bench.states(), [Pulling, Updating]);
    }
}

#[test]
fn exit_of_outdated_container_is_reported_for_successor() {
    for gate in [
        deferred(),
        StartGate::NotCaughtUp,
        StartGate::IsolationMissing,
    ] {
        let mut bench = serving(gate);
        bench.crash();
        let last = bench.last();
        assert_eq!((last.state, last.raft_index), (Pending, 7));
        assert_eq!(last.code, "container_exited");
        assert_eq!(bench.timeout(), POLL_SAFETY, "it is not restarted");
        assert_eq!(bench.core.failures, 0);
    }
    // The actor was down when the container exited.
    for left in [vec![], vec![container("c1", 6, Status::Exited)]] {
        let mut bench = Bench::seeded(Seed {
            report: Some(Report::new(Running, 6).of("c1")),
            failures: 0,
        });
        bench.assign(gated(7, deferred())).found(left);
        assert_eq!(bench.states(), [Pending]);
        assert_eq!((bench.last().raft_index, bench.asked.take()), (7, None));
    }
}

#[test]
fn brief_engine_outage_keeps_outdated_container_serving() {
    let mut bench = serving(deferred());
    bench.engine_event().inspected(Err(down())).timeout();
    bench
        .found(vec![container("c1", 6, Status::Running)])
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.states(), []);
}

#[test]
fn outdated_container_is_kept_for_moving_row() {
    for gate in [deferred(), StartGate::NotCaughtUp] {
        let mut bench = serving(gate);
        bench
            .assign(Assignment::Kept {
                readiness: Readiness::Uptime,
            })
            .engine_event()
            .inspected(Ok(seen(Status::Running, None)));
        assert_eq!((bench.states(), bench.asked.take()), (vec![], None));
        // The same holds if the row moves during a lookup.
        let mut bench = serving(deferred());
        bench
            .duplicates()
            .assign(Assignment::Kept {
                readiness: Readiness::Uptime,
            })
            .found(vec![container("c1", 6, Status::Running)]);
        assert!(matches!(bench.asked, Some(Action::Inspect(..))));
    }
}
