//! Pull attempts, their failures, and the timeout of a stalled attempt.

use super::*;

impl Bench {
    /// The attempt in flight progresses.
    fn progress(&mut self) -> &mut Self {
        match self.asked {
            Some(Action::Pull(g)) => self.feed(|core, now| core.handle_pull_progress(now, g)),
            ref other => panic!("expected a pull, not {other:?}"),
        }
    }

    fn pass(&mut self, time: Duration) -> &mut Self {
        self.now.instant += time;
        self.now.wall += time;
        self.feed(Core::handle_timeout)
    }
}

#[test]
fn failed_pulls_are_retried_with_doubling_delay() {
    let mut bench = Bench::new();
    bench.pulling(7);
    for attempt in 1..=15u32 {
        bench.pulled(Err(refused()));
        let last = bench.last();
        assert_eq!(
            (last.state, last.code.as_str()),
            (Pending, "image_pull_failed")
        );
        assert_eq!(last.details["attempt"], attempt.to_string());
        assert_eq!(last.details["reason"], "web:1: no");
        assert!(last.details.contains_key("next_retry_at"));
        let expected = (1u64 << (attempt - 1)).min(3600);
        assert_eq!(bench.timeout(), Duration::from_secs(expected));
    }
    bench.pulled(Ok(())).launched(Ok("c1"));
    assert_eq!(bench.core.failures, 0);
}

#[test]
fn pull_policy_never_skips_the_pull() {
    let mut bench = Bench::new();
    let mut local = wanted(7);
    local.pull = false;
    bench
        .assign(Assignment::Own(local))
        .found(vec![])
        .prepared(Ok(()))
        .launched(Err(EngineError::NotFound("no such image".into())));
    assert_eq!(bench.last().code, "docker_error");
}

#[test]
fn superseded_pull_is_cancelled() {
    let mut bench = Bench::new();
    bench.pulling(7).pulling(8);
    assert_eq!(bench.cancelled, 1);
    assert_eq!(bench.last().raft_index, 8);
}

#[test]
fn restart_pulls_only_missing_image() {
    let mut bench = Bench::new();
    bench.up(7, "c1").crash_and_launch("c1");
    bench
        .launched(Err(EngineError::NotFound("no such image".into())))
        .pulled(Ok(()))
        .launched(Ok("c2"));
}

#[test]
fn attempt_without_progress_fails_and_is_retried() {
    let mut bench = Bench::new();
    bench.pulling(7);
    for attempt in 1..=4u32 {
        assert_eq!(bench.timeout(), PULL_PROGRESS_TIMEOUT);
        assert_eq!(bench.cancelled, attempt);
        let last = bench.last();
        assert_eq!(
            (last.state, last.code.as_str()),
            (Pending, "image_pull_failed")
        );
        assert_eq!(last.details["attempt"], attempt.to_string());
        assert_eq!(last.details["reason"], "web:1: no progress for 300 seconds");
        let retry = bench.now.wall + Duration::from_secs(1 << (attempt - 1));
        assert_eq!(
            last.details["next_retry_at"],
            Timestamp::from(retry).to_string()
        );
        // An outcome of the cancelled attempt does not affect the next one.
        let said = bench.published.len();
        bench.progress().pulled(Ok(()));
        assert_eq!((bench.asked.take(), bench.published.len()), (None, said));
        assert_eq!(bench.timeout(), Duration::from_secs(1 << (attempt - 1)));
    }
    bench.pulled(Ok(())).launched(Ok("c1"));
    assert_eq!(bench.core.failures, 0);
}

#[test]
fn progressing_attempt_may_last_for_hours() {
    let mut bench = Bench::new();
    bench.pulling(7);
    let pause = PULL_PROGRESS_TIMEOUT - Duration::from_secs(1);
    for _ in 0..50 {
        bench.pass(pause).progress();
    }
    assert_eq!(bench.states(), [Pulling]);
    assert_eq!(bench.timeout(), PULL_PROGRESS_TIMEOUT);
    assert_eq!(bench.last().code, "image_pull_failed");
}

#[test]
fn progress_of_older_attempt_is_ignored() {
    let mut bench = Bench::new();
    bench.pulling(7);
    let Some(Action::Pull(old)) = bench.asked else {
        panic!("expected a pull");
    };
    bench.pulled(Err(refused())).timeout();
    let due = bench.core.poll_timeout();
    bench.now.instant += Duration::from_secs(100);
    bench.feed(|core, now| core.handle_pull_progress(now, old));
    assert_eq!(bench.core.poll_timeout(), due);
}

#[test]
fn row_removed_during_pull_finishes_at_once() {
    for failed in [false, true] {
        let mut bench = Bench::new();
        bench.pulling(7);
        if failed {
            bench.pulled(Err(refused()));
        }
        bench.assign(Assignment::Gone).found(vec![]);
        assert_eq!(bench.cancelled, 1);
        assert!(bench.finished);
        assert_eq!(bench.core.poll_timeout(), None);
    }
}

#[test]
fn restarted_actor_resets_pull_backoff() {
    let mut earlier = Bench::new();
    earlier.pulling(7).pulled(Err(refused())).timeout();
    earlier.pulled(Err(refused()));
    let mut bench = Bench::seeded(Seed {
        report: Some(earlier.last().clone()),
        failures: 0,
    });
    bench.pulling(7);
    assert_eq!(bench.last().code, "pulling");
    bench.pulled(Err(refused()));
    assert_eq!(bench.last().details["attempt"], "1");
}

/// A container of row 7 that runs, while the image of row 8 is pulled.
fn pulling_ahead() -> Bench {
    let mut bench = Bench::new();
    bench.up(7, "c1").prove();
    let found = vec![container("c1", 7, Status::Running)];
    bench.assign(own(8)).found(found).prepared(Ok(()));
    assert!(bench.core.pulls_ahead());
    bench
}

#[test]
fn former_container_serves_during_the_pull() {
    let mut bench = pulling_ahead();
    let last = bench.last();
    assert_eq!((last.state, last.raft_index), (Pulling, 8));
    assert!(last.keeps_serving);
    let found = vec![container("c1", 7, Status::Running)];
    bench.pulled(Ok(())).found(found);
    assert_eq!(bench.last().state, Updating);
    assert!(!bench.last().keeps_serving);
    // The image is not pulled again.
    bench
        .discarded(&["c1"])
        .found(vec![])
        .prepared(Ok(()))
        .launched(Ok("c2"));
    assert_eq!(
        bench.core.last_report().map(|last| last.state),
        Some(Updating)
    );
}

#[test]
fn failed_pull_leaves_the_former_container() {
    let mut bench = pulling_ahead();
    for attempt in 1..=3u32 {
        bench.pulled(Err(refused()));
        let last = bench.last();
        assert_eq!(last.code, "image_pull_failed");
        assert_eq!(last.details["attempt"], attempt.to_string());
        assert!(last.keeps_serving);
        bench.timeout();
    }
    // The last report of the container that serves is the one to repeat.
    let last = bench.core.last_report().cloned().unwrap();
    assert_eq!((last.state, last.raft_index), (Running, 7));
    // Another row begins anew.
    let found = vec![container("c1", 7, Status::Running)];
    bench
        .assign(own(9))
        .found(found)
        .prepared(Ok(()))
        .pulled(Err(refused()));
    assert_eq!(bench.last().details["attempt"], "1");
}

#[test]
fn engine_failure_during_the_pull_takes_nothing_away() {
    let mut bench = pulling_ahead();
    let published = bench.published.len();
    bench.pulled(Err(down()));
    bench.timeout();
    bench.found(vec![container("c1", 7, Status::Running)]);
    assert!(bench.core.pulls_ahead());
    assert_eq!(bench.published.len(), published);
}

#[test]
fn end_of_the_former_container_is_noticed() {
    let mut bench = pulling_ahead();
    bench.engine_event();
    assert_eq!(bench.cancelled, 1);
    bench.found(vec![container("c1", 7, Status::Exited)]);
    assert_eq!(bench.last().state, Updating);
    bench.discarded(&["c1"]).found(vec![]).prepared(Ok(()));
    let last = bench.last();
    assert_eq!((last.state, last.keeps_serving), (Pulling, false));
}
