//! Commands run after each start, before the replica counts as running.

use super::*;

fn hooked() -> Assignment {
    Assignment::Own(DesiredReplica {
        has_post_start: true,
        ..wanted(7)
    })
}

fn failed() -> PostStartError {
    PostStartError::Failed {
        command: 1,
        reason: "exit code 2".into(),
    }
}

/// A container that was just started.
fn launched() -> Bench {
    let mut bench = Bench::new();
    bench
        .assign(hooked())
        .found(vec![])
        .prepared(Ok(()))
        .pulled(Ok(()))
        .launched(Ok("c1"))
        .inspected(Ok(seen(Status::Running, None)));
    bench
}

#[test]
fn replica_runs_after_its_commands() {
    let mut bench = launched();
    assert_eq!(bench.last().state, Pending);
    assert_eq!(bench.last().details["ip.jaco_shop__default"], "10.244.0.2");
    assert_eq!(bench.core.poll_timeout(), None, "no poll beside them");
    bench
        .post_started(Ok(()))
        .inspected(Ok(seen(Status::Running, None)))
        .prove();
    assert_eq!(bench.last().state, Running);
    assert_eq!(bench.last().details[POST_START], "today");
}

#[test]
fn failed_command_is_failed_start() {
    let mut bench = launched();
    bench
        .post_started(Err(failed()))
        .inspected(Ok(seen(Status::Running, None)));
    let last = bench.last();
    assert_eq!(
        (last.state, last.code.as_str()),
        (Failed, "post_start_failed")
    );
    assert!(last.message.contains("exit code 2"), "{}", last.message);
    assert_eq!(bench.timeout(), Duration::from_secs(1));
    bench.discarded(&["c1"]).found(vec![]).prepared(Ok(()));
}

#[test]
fn end_of_container_explains_failed_command() {
    let mut bench = launched();
    bench
        .post_started(Err(failed()))
        .inspected(Ok(seen(Status::Exited, None)));
    assert_eq!(bench.last().code, "container_exited");
}

#[test]
fn engine_failure_repeats_commands() {
    let mut bench = launched();
    bench.post_started(Err(PostStartError::Engine(down())));
    bench.timeout();
    bench
        .found(vec![container("c1", 7, Status::Running)])
        .inspected(Ok(seen(Status::Running, None)))
        .post_started(Ok(()));
}

#[test]
fn commands_run_once_for_each_start() {
    let mut bench = launched();
    bench
        .post_started(Ok(()))
        .inspected(Ok(seen(Status::Running, None)))
        .prove();
    let report = bench.last().clone();
    let adopt = || {
        let mut bench = Bench::seeded(Seed {
            report: Some(report.clone()),
            failures: 0,
        });
        bench
            .assign(hooked())
            .found(vec![container("c1", 7, Status::Running)]);
        bench
    };
    adopt().inspected(Ok(seen(Status::Running, None))).timeout();
    let again = Inspected {
        started_at: "later".into(),
        ..seen(Status::Running, None)
    };
    adopt().inspected(Ok(again)).post_started(Ok(()));
}

#[test]
fn events_during_commands_wait() {
    let mut bench = launched();
    bench.asked = None;
    bench.engine_event();
    assert_eq!(bench.asked, None);
}

#[test]
fn removed_replica_does_not_wait_for_its_commands() {
    let mut bench = launched();
    bench
        .assign(Assignment::Gone)
        .found(vec![container("c1", 7, Status::Running)])
        .discarded(&["c1"]);
}

#[test]
fn outdated_container_does_not_run_without_its_commands() {
    let deferred = || {
        Assignment::Own(DesiredReplica {
            has_post_start: true,
            gate: StartGate::Deferred("db".into()),
            ..wanted(8)
        })
    };
    let outdated = || vec![container("c1", 7, Status::Running)];
    let running = || Ok(seen(Status::Running, None));
    // They are in flight when the row is replaced.
    let mut bench = launched();
    bench.assign(deferred()).found(outdated());
    bench.inspected(running()).prove();
    assert!(!bench.states().contains(&Running), "{:?}", bench.states());
    // They have succeeded, or the container has served without any.
    let mut bench = launched();
    bench.post_started(Ok(())).inspected(running());
    bench.assign(deferred()).found(outdated());
    bench.inspected(running()).prove();
    assert_eq!(bench.last().state, Running);
    let mut bench = Bench::new();
    bench.up(7, "c1").prove();
    bench.assign(deferred()).found(outdated());
    bench.inspected(running());
    assert_eq!(bench.last().state, Running);
}
