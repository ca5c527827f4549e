//! Containers that the first listing of a row finds: adopted, started or replaced.

use super::*;

/// Adopts a container that runs since today, which a replicated report shows as running since `start`.
fn adopted(start: &str) -> Bench {
    let report = Report {
        started_at: Some(UNIX_EPOCH),
        ..Report::new(Running, 7)
    }
    .of("c1")
    .with("ip.jaco_shop__default", "10.244.0.2")
    .with(START, start);
    let mut bench = Bench::seeded(Seed {
        report: Some(report),
        failures: 0,
    });
    bench
        .assign(own(7))
        .found(vec![container("c1", 7, Status::Running)])
        .inspected(Ok(seen(Status::Running, None)));
    bench
}

#[test]
fn running_container_of_row_is_adopted() {
    let bench = adopted("today");
    assert_eq!(bench.states(), [], "the report is already replicated");
}

#[test]
fn report_about_an_earlier_start_proves_nothing() {
    assert_eq!(adopted("yesterday").states(), [Pending]);
}

#[test]
fn stopped_container_of_row_is_started() {
    let mut bench = Bench::new();
    bench
        .assign(own(7))
        .found(vec![container("c1", 7, Status::Exited)])
        .prepared(Ok(()))
        .started(Ok(()))
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.last().container_id, "c1");
}

#[test]
fn container_that_fails_to_start_is_recreated() {
    let mut bench = Bench::new();
    bench
        .assign(own(7))
        .found(vec![container("c1", 7, Status::Exited)])
        .prepared(Ok(()))
        .started(Err(refused()))
        .discarded(&["c1"])
        .found(vec![])
        .prepared(Ok(()))
        .pulled(Ok(()))
        .launched(Ok("c2"));
    assert_eq!(bench.states(), [Pulling]);
}

#[test]
fn container_that_never_started_is_recreated() {
    let mut bench = Bench::new();
    bench
        .assign(own(7))
        .found(vec![container("c1", 7, Status::Created)])
        .discarded(&["c1"]);
}

#[test]
fn container_of_other_row_is_replaced() {
    for index in [Some(6), None] {
        let mut bench = Bench::new();
        let mut old = container("c1", 0, Status::Running);
        old.raft_index = index;
        bench
            .assign(own(7))
            .found(vec![old])
            .pulled_ahead()
            .discarded(&["c1"])
            .found(vec![])
            .prepared(Ok(()));
        assert_eq!(bench.states(), [Pulling, Updating]);
        assert!(matches!(bench.asked, Some(Action::Launch(..))));
        assert_eq!(bench.published[0].raft_index, 7);
    }
}

#[test]
fn surplus_container_of_other_row_is_removed() {
    let mut bench = Bench::new();
    let both = vec![
        container("old", 6, Status::Running),
        container("new", 7, Status::Running),
    ];
    bench
        .assign(own(7))
        .found(both)
        .discarded(&["old"])
        .found(vec![container("new", 7, Status::Running)])
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.states(), [Pending]);
}

#[test]
fn reported_container_wins_among_duplicates() {
    let mut bench = Bench::new();
    bench.up(7, "c1").prove();
    let published = bench.published.len();
    bench
        .duplicates()
        .found(vec![
            container("copy", 7, Status::Running),
            container("c1", 7, Status::Running),
        ])
        .discarded(&["copy"])
        .found(vec![container("c1", 7, Status::Running)])
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.published.len(), published, "it runs, as before");
}
