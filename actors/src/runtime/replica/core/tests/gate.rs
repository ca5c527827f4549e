//! What keeps a start waiting, and what goes on meanwhile.

use super::*;

fn gated(raft_index: u64, gate: Gate) -> Assignment {
    Assignment::Own(Wanted {
        gate,
        ..wanted(raft_index)
    })
}

fn deferred() -> Gate {
    Gate::Deferred("db is not running".into())
}

#[test]
fn unmet_dependencies_defer_silently_until_they_are_met() {
    let mut bench = Bench::new();
    bench
        .give(Input::Assign(gated(7, deferred())))
        .found(vec![]);
    assert_eq!((bench.states().len(), bench.core.poll_timeout()), (0, None));
    assert_eq!(bench.core.deferred(), Some("db is not running"));
    bench
        .give(Input::Assign(own(7)))
        .found(vec![])
        .prepared(Ok(()));
    assert_eq!(bench.states(), [Pulling]);
}

#[test]
fn an_unisolated_node_starts_nothing_and_says_so() {
    let mut bench = Bench::new();
    bench
        .give(Input::Assign(gated(7, Gate::Isolated)))
        .found(vec![]);
    assert_eq!(bench.last().code, "isolation_unavailable");
    assert_eq!(bench.last().state, Pending);
    assert_eq!(bench.timeout(), RETRY);
}

#[test]
fn a_gate_that_closes_ends_a_start_before_it_makes_something() {
    for (gate, published) in [
        (Gate::Behind, vec![Pulling]),
        (Gate::Isolated, vec![Pulling, Pending]),
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
            bench.give(Input::Assign(own(7))).found(vec![]);
            stage(&mut bench);
            bench.give(Input::Assign(gated(7, gate.clone())));
            assert_eq!(bench.cancelled, 1, "{gate:?} in stage {number}");
            bench.found(vec![]);
            assert_eq!(bench.asked, None, "{gate:?} in stage {number}");
            if let Some(due) = bench.core.poll_timeout() {
                bench.now.instant = due;
                bench.give(Input::Timeout).found(vec![]);
                assert_eq!(bench.asked, None, "{gate:?} in stage {number}");
            }
            bench.give(Input::Assign(own(7))).found(vec![]);
            assert!(matches!(bench.asked, Some(Effect::Prepare(_))));
        }
        let mut bench = Bench::new();
        bench
            .give(Input::Assign(own(7)))
            .found(vec![])
            .prepared(Ok(()))
            .give(Input::Assign(gated(7, gate)))
            .found(vec![]);
        assert_eq!(bench.states(), published);
    }
}

#[test]
fn dependencies_are_looked_at_once() {
    let mut bench = Bench::new();
    bench
        .give(Input::Assign(own(7)))
        .found(vec![])
        .prepared(Ok(()))
        .give(Input::Assign(gated(7, deferred())))
        .pulled(Ok(()))
        .launched(Ok("c1"));
    assert_eq!(bench.cancelled, 0);
}

#[test]
fn a_restart_goes_on_though_the_node_is_cut_off() {
    let mut bench = Bench::new();
    bench
        .up(7, "c1")
        .prove()
        .give(Input::Assign(gated(7, Gate::Behind)))
        .give(Input::Hint)
        .inspected(Ok(seen(Status::Exited, None)))
        .timeout();
    bench
        .discarded(&["c1"])
        .found(vec![])
        .prepared(Err(PrepareError::Retry("the bridge did not answer".into())))
        .timeout();
    // Neither an engine that is gone for a moment nor one that refuses makes it another start.
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
fn an_image_that_a_pull_does_not_bring_back_is_not_pulled_in_a_loop() {
    let gone = || Err(EngineError::NotFound("no such image".into()));
    let mut bench = Bench::new();
    bench
        .up(7, "c1")
        .give(Input::Hint)
        .inspected(Ok(seen(Status::Exited, None)))
        .timeout();
    bench
        .discarded(&["c1"])
        .found(vec![])
        .prepared(Ok(()))
        .launched(gone())
        .pulled(Ok(()))
        .launched(gone());
    assert_eq!(bench.last().code, "docker_error");
    assert_eq!(bench.timeout(), RETRY);
}

/// A container of row 6 serves, and row 7 has to wait.
fn serving(gate: Gate) -> Bench {
    let mut bench = Bench::new();
    bench
        .up(6, "c1")
        .prove()
        .give(Input::Assign(gated(7, gate)))
        .found(vec![container("c1", 6, Status::Running)])
        .inspected(Ok(seen(Status::Running, None)));
    bench.published.clear();
    bench
}

#[test]
fn an_outdated_container_serves_until_its_successor_may_start() {
    for gate in [deferred(), Gate::Behind, Gate::Isolated] {
        let mut bench = serving(gate.clone());
        assert_eq!(bench.timeout(), POLL_SAFETY, "{gate:?}");
        bench.inspected(Ok(seen(Status::Running, None)));
        assert_eq!(bench.states(), [], "the cluster knows all of it already");
        let waits = (gate == deferred()).then_some("db is not running");
        assert_eq!(bench.core.deferred(), waits);
        bench
            .give(Input::Assign(own(7)))
            .found(vec![container("c1", 6, Status::Running)])
            .discarded(&["c1"])
            .found(vec![])
            .prepared(Ok(()));
        assert_eq!(bench.states(), [Updating, Pulling]);
    }
}

#[test]
fn the_end_of_an_outdated_container_is_said_of_its_successor() {
    for gate in [deferred(), Gate::Behind, Gate::Isolated] {
        let mut bench = serving(gate);
        bench
            .give(Input::Hint)
            .inspected(Ok(seen(Status::Exited, None)));
        let last = bench.last();
        assert_eq!((last.state, last.raft_index), (Pending, 7));
        assert_eq!(last.code, "container_exited");
        assert_eq!(bench.timeout(), POLL_SAFETY, "it is not restarted");
        assert_eq!(bench.core.failures, 0);
    }
    // The actor was away when it happened.
    for left in [vec![], vec![container("c1", 6, Status::Exited)]] {
        let mut bench = Bench::seeded(Seed {
            report: Some(Report::new(Running, 6).of("c1")),
            failures: 0,
        });
        bench.give(Input::Assign(gated(7, deferred()))).found(left);
        assert_eq!(bench.states(), [Pending]);
        assert_eq!((bench.last().raft_index, bench.asked.take()), (7, None));
    }
}

#[test]
fn an_engine_that_is_gone_for_a_moment_takes_nothing_out_of_service() {
    let mut bench = serving(deferred());
    bench.give(Input::Hint).inspected(Err(down())).timeout();
    bench
        .found(vec![container("c1", 6, Status::Running)])
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.states(), []);
}

#[test]
fn an_outdated_container_is_kept_for_a_row_that_moves_before_its_start() {
    for gate in [deferred(), Gate::Behind] {
        let mut bench = serving(gate);
        bench
            .give(Input::Assign(Assignment::Kept { checked: false }))
            .give(Input::Hint)
            .inspected(Ok(seen(Status::Running, None)));
        assert_eq!((bench.states(), bench.asked.take()), (vec![], None));
        // Nor if the row moves while the core looks.
        let mut bench = serving(deferred());
        bench
            .give(Input::Crowded)
            .give(Input::Assign(Assignment::Kept { checked: false }))
            .found(vec![container("c1", 6, Status::Running)]);
        assert!(matches!(bench.asked, Some(Effect::Inspect(..))));
    }
}
