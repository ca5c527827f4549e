//! Polls of a container, its failures, and the budget of its restarts.

use super::*;

#[test]
fn row_without_ports_runs_after_a_second() {
    let mut bench = Bench::new();
    bench.up(7, "c1").prove();
    assert_eq!(bench.states(), [Pulling, Pending, Running]);
    let last = bench.last();
    assert_eq!((last.raft_index, last.container_id.as_str()), (7, "c1"));
    assert_eq!(last.details["ip.jaco_shop__default"], "10.244.0.2");
    assert_eq!(last.started_at, Some(UNIX_EPOCH + UPTIME));
}

#[test]
fn steady_container_is_polled_slowly_without_reports() {
    let mut bench = Bench::new();
    bench.up(7, "c1").prove();
    let before = bench.published.len();
    for _ in 0..10 {
        assert_eq!(bench.timeout(), POLL_SAFETY);
        bench.inspected(Ok(seen(Status::Running, None)));
    }
    assert_eq!(bench.published.len(), before);
    bench.event_stream(false);
    bench.timeout();
    bench.inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.timeout(), POLL_RUNNING);
}

#[test]
fn fourth_consecutive_failure_exhausts_budget() {
    let mut bench = Bench::new();
    bench.up(7, "c1");
    for (seconds, (id, next)) in [(1, ("c1", "c2")), (2, ("c2", "c3")), (4, ("c3", "c4"))] {
        assert_eq!(
            bench.crash_and_restart(id, next),
            Duration::from_secs(seconds)
        );
    }
    bench.crash();
    let last = bench.last().clone();
    assert_eq!(
        (last.state, last.code.as_str()),
        (Failed, "restart_exhausted")
    );
    assert_eq!(last.details["consecutive_failures"], "4");
    assert_eq!(last.details["cause"], "container");
    assert_eq!(last.container_id, "c4");
    for _ in 0..5 {
        assert_eq!(bench.timeout(), POLL_SAFETY);
        bench.inspected(Ok(seen(Status::Exited, None)));
    }
    assert_eq!(*bench.last(), last, "the container is left as it is");
}

#[test]
fn running_resets_restart_budget() {
    let mut bench = Bench::new();
    bench.up(7, "c1");
    bench.crash_and_restart("c1", "c2");
    bench.crash_and_restart("c2", "c3");
    bench.prove();
    assert_eq!(bench.timeout(), STABLE_AFTER);
    bench.inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.timeout(), POLL_SAFETY);
    bench.inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.crash_and_restart("c3", "c4"), Duration::from_secs(1));
}

#[test]
fn container_that_always_fails_soon_is_given_up() {
    let mut bench = Bench::new();
    bench.up(7, "c1").prove();
    for (seconds, (id, next)) in [(1, ("c1", "c2")), (2, ("c2", "c3")), (4, ("c3", "c4"))] {
        let delay = bench.crash_and_restart(id, next);
        assert_eq!(delay, Duration::from_secs(seconds));
        bench.prove();
        assert_eq!(bench.last().state, Running);
    }
    bench.crash();
    assert_eq!(bench.last().code, "restart_exhausted");
}

#[test]
fn stable_run_resets_budget_without_a_poll() {
    let mut bench = Bench::new();
    bench.up(7, "c1");
    bench.crash_and_restart("c1", "c2");
    bench.prove();
    // The event of its end is handled before the poll that is due.
    bench.now.instant += STABLE_AFTER;
    assert_eq!(bench.crash_and_restart("c2", "c3"), Duration::from_secs(1));
}

/// A service whose containers accept connections on these ports.
fn serves(ports: &[u16]) -> Assignment {
    Assignment::Own(DesiredReplica {
        readiness: Readiness::of_ports(ports.iter().copied().collect()),
        ..wanted(7)
    })
}

#[test]
fn container_is_running_once_its_ports_accept() {
    let mut bench = Bench::new();
    bench
        .assign(serves(&[80, 443]))
        .found(vec![])
        .prepared(Ok(()))
        .pulled(Ok(()))
        .launched(Ok("c1"))
        .probed(&[], &[]);
    assert_eq!(bench.last().message, "port 80 accepts no connection yet");
    assert_eq!(bench.timeout(), FIRST_PROBE);
    bench.probed(&[80, 443], &[80]);
    // An event leads to no connection.
    bench.engine_event().probed(&[], &[]);
    assert_eq!(bench.states(), [Pulling, Pending]);
    assert_eq!(bench.timeout(), FIRST_PROBE * 2);
    bench.probed(&[443], &[443]);
    assert_eq!(bench.states(), [Pulling, Pending, Running]);
    bench.timeout();
    bench.probed(&[], &[]);
    // Another start of the same container has to accept again.
    let again = Inspected {
        started_at: "tomorrow".into(),
        ..seen(Status::Running, None)
    };
    bench.engine_event().inspected(Ok(again));
    assert_eq!(bench.last().state, Pending);
    bench.timeout();
    assert!(matches!(&bench.asked, Some(Action::Inspect(_, _, ports)) if ports.len() == 2));
}

#[test]
fn budget_continues_from_replicated_counter() {
    let mut bench = Bench::seeded(Seed {
        report: None,
        failures: 3,
    });
    bench.up(7, "c1").crash();
    assert_eq!(bench.last().code, "restart_exhausted");
}

#[test]
fn unhealthy_container_is_degraded_and_restarted() {
    let mut bench = Bench::new();
    let mut checked = wanted(7);
    checked.readiness = Readiness::Healthcheck;
    bench
        .assign(Assignment::Own(checked))
        .found(vec![])
        .prepared(Ok(()))
        .pulled(Ok(()))
        .launched(Ok("c1"))
        .inspected(Ok(seen(Status::Running, Some(Health::Starting))))
        .engine_event()
        .inspected(Ok(seen(Status::Running, Some(Health::Healthy))))
        .engine_event()
        .inspected(Ok(seen(Status::Running, Some(Health::Unhealthy))));
    assert_eq!(bench.states(), [Pulling, Pending, Running, Degraded]);
    assert_eq!(bench.timeout(), Duration::from_secs(1));
    bench.discarded(&["c1"]);
}

#[test]
fn exhausted_replica_recovers_by_running_or_new_row() {
    let exhausted = Report::new(Failed, 7)
        .because("restart_exhausted", "")
        .of("c1");
    let seed = || Seed {
        report: Some(exhausted.clone()),
        failures: 4,
    };
    let stopped = || vec![container("c1", 7, Status::Exited)];

    let mut bench = Bench::seeded(seed());
    bench
        .assign(own(7))
        .found(stopped())
        .inspected(Ok(seen(Status::Exited, None)))
        .engine_event()
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.states(), [], "up, but not yet running");
    bench.prove();
    assert_eq!(bench.states(), [Running]);

    let mut bench = Bench::seeded(seed());
    bench.assign(own(9)).found(stopped()).discarded(&["c1"]);
    assert_eq!(bench.states(), [Updating]);
    assert_eq!(bench.core.failures, 0);
}

#[test]
fn exhausted_replica_without_container_stays_ended() {
    let mut bench = Bench::new();
    bench.up(7, "c1");
    for (id, next) in [("c1", "c2"), ("c2", "c3"), ("c3", "c4")] {
        bench.crash_and_restart(id, next);
    }
    bench.crash();
    assert_eq!(bench.last().code, "restart_exhausted");
    let before = bench.published.len();
    bench.duplicates().found(vec![]);
    assert_eq!((&bench.asked, bench.core.poll_timeout()), (&None, None));
    assert_eq!(bench.published.len(), before);
    bench.assign(own(9)).found(vec![]).prepared(Ok(()));
    assert_eq!(bench.last().state, Pulling);
}

#[test]
fn vanished_container_counts_as_failure_and_is_recreated() {
    let mut bench = Bench::new();
    bench
        .up(7, "c1")
        .engine_event()
        .inspected(Err(EngineError::NotFound("no such container".into())));
    assert_eq!(bench.last().code, "inspect_failed");
    assert_eq!(bench.timeout(), Duration::from_secs(1));
    bench.discarded(&["c1"]).found(vec![]).prepared(Ok(()));
}

/// A running container whose lender has ended.
fn cut_off() -> Inspected {
    Inspected {
        namespace: NetworkNamespace::Lost,
        addresses: Default::default(),
        ..seen(Status::Running, None)
    }
}

#[test]
fn borrower_reports_the_container_of_its_namespace() {
    let mut bench = Bench::new();
    bench.up(7, "c1");
    let lent = Inspected {
        namespace: NetworkNamespace::Lent("l1".to_owned()),
        ..seen(Status::Running, None)
    };
    bench.engine_event().inspected(Ok(lent));
    assert_eq!(
        bench.last().details[crate::runtime::replica::report::LENDER],
        "l1"
    );
}

#[test]
fn borrower_is_replaced_without_counting_a_failure() {
    let mut bench = Bench::new();
    bench.up(7, "c1").prove();
    for (old, new) in [
        ("c1", "c2"),
        ("c2", "c3"),
        ("c3", "c4"),
        ("c4", "c5"),
        ("c5", "c6"),
    ] {
        bench.engine_event().inspected(Ok(cut_off()));
        assert_eq!(bench.last().state, Pending);
        assert!(bench.last().details.is_empty(), "no address is left");
        // The lender has not started again yet; its borrower waits for it without a pull.
        let missing = PrepareError::Retry("no running same-host replica".into());
        bench.discarded(&[old]).found(vec![]).prepared(Err(missing));
        bench.timeout();
        bench.found(vec![]).prepared(Ok(())).launched(Ok(new));
        bench.inspected(Ok(seen(Status::Running, None))).prove();
        assert_eq!(bench.last().state, Running);
    }
}

#[test]
fn exited_borrower_is_restarted_like_any_container() {
    let mut bench = Bench::new();
    bench.up(7, "c1").prove();
    let exited = Inspected {
        namespace: NetworkNamespace::Lost,
        ..seen(Status::Exited, None)
    };
    bench.engine_event().inspected(Ok(exited));
    assert_eq!(bench.last().code, "container_exited");
    assert_eq!(bench.timeout(), Duration::from_secs(1));
}
