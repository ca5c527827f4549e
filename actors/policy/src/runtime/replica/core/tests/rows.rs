//! Changes of the row: superseded, removed and moved.

use super::*;

#[test]
fn unchanged_assignment_has_no_effect() {
    let mut bench = Bench::new();
    bench
        .pulling(7)
        .assign(own(7))
        .pulled(Ok(()))
        .assign(own(7))
        .launched(Ok("c1"));
    assert_eq!(bench.cancelled, 0);
}

#[test]
fn superseded_create_is_removed() {
    let mut bench = Bench::new();
    bench
        .pulling(7)
        .pulled(Ok(()))
        .assign(own(8))
        .launched(Ok("c1"))
        .found(vec![container("c1", 7, Status::Running)])
        .pulled_ahead()
        .discarded(&["c1"])
        .found(vec![])
        .prepared(Ok(()));
    assert_eq!(bench.cancelled, 0, "a create is never dropped half-way");
}

#[test]
fn removed_row_stops_and_removes_container() {
    let mut bench = Bench::new();
    bench
        .up(7, "c1")
        .prove()
        .assign(Assignment::Gone)
        .found(vec![container("c1", 7, Status::Running)])
        .discarded(&["c1"])
        .found(vec![]);
    assert!(bench.finished);
    assert_eq!(bench.last().state, Stopped);
    assert_eq!(bench.core.poll_timeout(), None);
}

#[test]
fn moved_row_keeps_container_until_released() {
    let mut bench = Bench::new();
    bench
        .up(7, "c1")
        .prove()
        .assign(Assignment::Kept {
            readiness: Readiness::Uptime,
        })
        .crash();
    assert_eq!(bench.last().code, "container_exited");
    assert_eq!(
        bench.timeout(),
        POLL_SAFETY,
        "neither restarted nor removed"
    );
    bench
        .inspected(Ok(seen(Status::Exited, None)))
        .assign(Assignment::Gone)
        .found(vec![container("c1", 7, Status::Exited)])
        .discarded(&["c1"]);
}

#[test]
fn row_moved_during_start_leaves_no_container() {
    let mut bench = Bench::new();
    bench
        .pulling(7)
        .pulled(Ok(()))
        .assign(Assignment::Kept {
            readiness: Readiness::Uptime,
        })
        .launched(Ok("c1"))
        .found(vec![container("c1", 7, Status::Running)])
        .discarded(&["c1"])
        .found(vec![]);
    assert!(bench.finished);
}

#[test]
fn outcomes_of_older_generations_are_ignored() {
    let mut bench = Bench::new();
    bench.assign(own(7));
    let Some(Action::Lookup(old)) = bench.asked.take() else {
        panic!("expected a lookup");
    };
    let stale = vec![container("x", 3, Status::Running)];
    bench.feed(|core, now| core.handle_found(now, old - 1, Ok(stale)));
    assert_eq!(bench.asked, None);
}
