//! Failures outside the container: of the engine, the networks and a create.

use super::*;

#[test]
fn exhausted_address_pool_fails_replica_and_is_retried() {
    let mut bench = Bench::new();
    bench
        .assign(own(7))
        .found(vec![])
        .prepared(Err(PrepareError::PoolExhausted {
            network: "front".into(),
        }));
    let last = bench.last();
    assert_eq!(
        (last.state, last.code.as_str()),
        (Failed, "subnet_pool_exhausted")
    );
    assert_eq!(last.details["network"], "front");
    assert_eq!(last.details["host"], "node-1");
    assert_eq!(bench.timeout(), RETRY);
    bench.found(vec![]).prepared(Ok(()));
    assert_eq!(bench.last().state, Pulling);
}

#[test]
fn failed_preparation_is_retried_with_backoff() {
    let mut bench = Bench::new();
    bench.assign(own(7));
    for seconds in [1, 2, 4, 8, 16, 30, 30] {
        bench
            .found(vec![])
            .prepared(Err(PrepareError::Retry("no leader".into())));
        assert_eq!(bench.timeout(), Duration::from_secs(seconds));
    }
    // Published once, from the second setback on.
    assert_eq!(bench.states(), [Pending]);
    assert_eq!(bench.last().details["reason"], "no leader");
}

#[test]
fn failed_create_is_retried_without_using_budget() {
    let mut bench = Bench::new();
    bench.assign(own(7));
    for _ in 0..6 {
        bench
            .found(vec![])
            .prepared(Ok(()))
            .pulled(Ok(()))
            .launched(Err(refused()));
        let last = bench.last();
        assert_eq!((last.state, last.code.as_str()), (Failed, "docker_error"));
        assert_eq!(last.details["reason"], "no");
        assert_eq!(bench.timeout(), RETRY);
    }
}

#[test]
fn name_conflict_triggers_new_lookup() {
    let mut bench = Bench::new();
    let conflict = || Err(EngineError::Conflict("name in use".into()));
    bench.pulling(7).pulled(Ok(())).launched(conflict());
    assert_eq!(bench.timeout(), Duration::from_secs(1));
    bench.found(vec![container("c1", 7, Status::Running)]);
    assert!(matches!(bench.asked, Some(Action::Inspect(..))));
    assert_eq!(bench.states(), [Pulling]);
}

#[test]
fn persistent_name_conflict_is_reported() {
    let mut bench = Bench::new();
    bench.assign(own(7));
    for _ in 0..4 {
        bench
            .found(vec![])
            .prepared(Ok(()))
            .pulled(Ok(()))
            .launched(Err(EngineError::Conflict("name in use".into())));
        bench.timeout();
    }
    assert_eq!(bench.last().code, "docker_error");
}

#[test]
fn unreachable_engine_is_reported_and_recovers() {
    let mut bench = Bench::new();
    bench
        .up(7, "c1")
        .prove()
        .engine_event()
        .inspected(Err(down()));
    let last = bench.last();
    assert_eq!(last.state, Pending);
    assert!(last.details["reason"].contains("connection refused"));
    for seconds in [1, 2, 4] {
        assert_eq!(bench.timeout(), Duration::from_secs(seconds));
        match bench.asked.take() {
            Some(Action::Lookup(g)) => {
                bench.feed(|core, now| core.handle_found(now, g, Err(down())))
            }
            other => panic!("expected a lookup, not {other:?}"),
        };
    }
    bench
        .event_stream(false)
        .event_stream(true)
        .found(vec![container("c1", 7, Status::Exited)])
        .prepared(Ok(()))
        .started(Ok(()))
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.last().container_id, "c1");
    assert_eq!(bench.core.failures, 0);
}
