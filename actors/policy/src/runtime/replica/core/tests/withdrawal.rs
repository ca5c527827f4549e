//! Withdrawal from routing before the stop signal.

use super::*;

fn running(id: &str, raft_index: u64) -> Vec<Found> {
    vec![container(id, raft_index, Status::Running)]
}

fn serving() -> Bench {
    let mut bench = Bench::new();
    bench.up(7, "c1").prove();
    bench
}

#[test]
fn serving_container_is_withdrawn_before_its_stop() {
    for (next, mark) in [(Assignment::Gone, Stopped), (own(8), Updating)] {
        let mut bench = serving();
        bench.assign(next).found(running("c1", 7));
        if mark == Updating {
            bench.pulled_ahead();
        }
        assert_eq!(bench.last().state, mark);
        assert!(matches!(bench.asked, Some(Action::Withdraw(_))));
        bench.withdrawn().discarded(&["c1"]);
    }
}

#[test]
fn stop_follows_two_seconds_without_answer() {
    let mut bench = serving();
    bench.assign(Assignment::Gone).found(running("c1", 7));
    let Some(Action::Withdraw(late)) = bench.asked else {
        panic!("expected a withdrawal");
    };
    assert_eq!(bench.timeout(), WITHDRAWAL_TIMEOUT);
    assert_eq!(bench.cancelled, 1);
    bench.feed(|core, _| core.handle_withdrawn(late));
    bench.found(running("c1", 7));
    assert!(matches!(bench.asked, Some(Action::Discard(..))));
}

#[test]
fn exited_container_is_stopped_at_once() {
    for exited in [Status::Exited, Status::Created] {
        let mut bench = serving();
        bench
            .assign(Assignment::Gone)
            .found(vec![container("c1", 7, exited)]);
        assert!(matches!(bench.asked, Some(Action::Discard(..))));
    }
}

#[test]
fn restart_after_failure_needs_no_withdrawal() {
    let mut bench = serving();
    bench.crash().timeout();
    assert!(matches!(bench.asked, Some(Action::Discard(..))));
}

#[test]
fn actor_that_died_withdraws_again() {
    for mark in [Updating, Stopped, Running] {
        let mut bench = Bench::seeded(Seed {
            report: Some(Report::new(mark, 8)),
            failures: 0,
        });
        bench.assign(own(8)).found(running("c1", 7)).pulled_ahead();
        assert!(matches!(bench.asked, Some(Action::Withdraw(_))), "{mark:?}");
    }
    let mut bench = Bench::new();
    bench.assign(Assignment::Gone).found(running("c1", 7));
    assert!(matches!(bench.asked, Some(Action::Withdraw(_))));
}

#[test]
fn gate_that_closes_meanwhile_keeps_the_container() {
    let mut bench = serving();
    bench.assign(own(8)).found(running("c1", 7)).pulled_ahead();
    let closed = Assignment::Own(DesiredReplica {
        gate: StartGate::NotCaughtUp,
        ..wanted(8)
    });
    bench.assign(closed).withdrawn();
    assert!(matches!(bench.asked, Some(Action::Inspect(..))));
    // It serves again, so a later stop needs a withdrawal of its own.
    bench
        .inspected(Ok(seen(Status::Running, None)))
        .assign(own(8))
        .found(running("c1", 7));
    assert!(matches!(bench.asked, Some(Action::Withdraw(_))));
}

#[test]
fn surplus_container_is_stopped_at_once() {
    let mut bench = serving();
    bench.duplicates().found(vec![
        container("c1", 7, Status::Running),
        container("c2", 7, Status::Running),
    ]);
    assert!(matches!(bench.asked, Some(Action::Discard(..))));
}
