//! One test per rule of a replica's lifecycle.

use std::time::UNIX_EPOCH;

use jaco_engine::{Found, Health, Inspected, Status};
use prost_types::Timestamp;

use super::*;
use ReplicaState::{Degraded, Failed, Pending, Pulling, Running, Stopped, Updating};

mod gate;
mod pulls;

struct Bench {
    core: Core,
    start: Instant,
    now: Now,
    published: Vec<Report>,
    /// Last effect that expects an outcome.
    asked: Option<Effect>,
    cancelled: u32,
    finished: bool,
}

fn wanted(raft_index: u64) -> DesiredReplica {
    DesiredReplica {
        raft_index,
        deployment: "shop".into(),
        image: "web:1".into(),
        pull: true,
        has_healthcheck: false,
        gate: StartGate::Open,
    }
}

fn own(raft_index: u64) -> Assignment {
    Assignment::Own(wanted(raft_index))
}

fn container(id: &str, raft_index: u64, status: Status) -> Found {
    Found {
        id: id.into(),
        replica_id: Some("shop-web-0".into()),
        raft_index: Some(raft_index),
        status,
    }
}

fn seen(status: Status, health: Option<Health>) -> Inspected {
    Inspected {
        id: String::new(),
        status: Some(status),
        exit_code: i64::from(status == Status::Exited),
        oom_killed: false,
        health,
        addresses: [("jaco_shop__default".to_owned(), "10.244.0.2".to_owned())].into(),
    }
}

fn refused() -> EngineError {
    EngineError::Api {
        status: 500,
        message: "no".into(),
    }
}

fn down() -> EngineError {
    EngineError::Unreachable("connection refused".into())
}

impl Bench {
    fn new() -> Self {
        Self::seeded(Seed::default())
    }

    fn seeded(seed: Seed) -> Self {
        let start = Instant::now();
        Self {
            core: Core::new("node-1", seed, true),
            start,
            now: Now {
                instant: start,
                wall: UNIX_EPOCH,
            },
            published: Vec::new(),
            asked: None,
            cancelled: 0,
            finished: false,
        }
    }

    fn give(&mut self, input: Input) -> &mut Self {
        for effect in self.core.handle(self.now, input) {
            match effect {
                Effect::Publish(report) => self.published.push(*report),
                Effect::Cancel => self.cancelled += 1,
                Effect::Finished => self.finished = true,
                Effect::Lookup(_)
                | Effect::Prepare(_)
                | Effect::Pull(_)
                | Effect::Launch(_)
                | Effect::Start(..)
                | Effect::Inspect(..)
                | Effect::Discard(..) => self.asked = Some(effect),
            }
        }
        let due = self.core.poll_timeout();
        assert!(due.is_none_or(|due| due >= self.now.instant));
        self
    }

    /// Answers the last effect, which must be a lookup.
    fn found(&mut self, found: Vec<Found>) -> &mut Self {
        match self.asked.take() {
            Some(Effect::Lookup(g)) => self.give(Input::Found(g, Ok(found))),
            other => panic!("expected a lookup, not {other:?}"),
        }
    }

    fn prepared(&mut self, result: Result<(), PrepareError>) -> &mut Self {
        match self.asked.take() {
            Some(Effect::Prepare(g)) => self.give(Input::Prepared(g, result)),
            other => panic!("expected a prepare, not {other:?}"),
        }
    }

    fn pulled(&mut self, result: Result<(), EngineError>) -> &mut Self {
        match self.asked.take() {
            Some(Effect::Pull(g)) => self.give(Input::Pulled(g, result)),
            other => panic!("expected a pull, not {other:?}"),
        }
    }

    fn launched(&mut self, result: Result<&str, EngineError>) -> &mut Self {
        match self.asked.take() {
            Some(Effect::Launch(g)) => self.give(Input::Launched(g, result.map(str::to_owned))),
            other => panic!("expected a launch, not {other:?}"),
        }
    }

    fn started(&mut self, result: Result<(), EngineError>) -> &mut Self {
        match self.asked.take() {
            Some(Effect::Start(g, _)) => self.give(Input::Started(g, result)),
            other => panic!("expected a start, not {other:?}"),
        }
    }

    fn inspected(&mut self, result: Result<Inspected, EngineError>) -> &mut Self {
        match self.asked.take() {
            Some(Effect::Inspect(g, _)) => self.give(Input::Inspected(g, result)),
            other => panic!("expected an inspect, not {other:?}"),
        }
    }

    fn discarded(&mut self, containers: &[&str]) -> &mut Self {
        match self.asked.take() {
            Some(Effect::Discard(g, which)) => {
                assert_eq!(which, containers);
                self.give(Input::Discarded(g, Ok(())))
            }
            other => panic!("expected a discard, not {other:?}"),
        }
    }

    /// Advances time to the core's deadline and returns the elapsed time.
    fn timeout(&mut self) -> Duration {
        let due = self.core.poll_timeout().expect("a deadline");
        let passed = due - self.now.instant;
        self.now.instant = due;
        self.now.wall = UNIX_EPOCH + (due - self.start);
        self.give(Input::Timeout);
        passed
    }

    /// Drives a new row to a watched, just created container.
    fn up(&mut self, raft_index: u64, id: &str) -> &mut Self {
        self.give(Input::Assign(own(raft_index)))
            .found(vec![])
            .prepared(Ok(()))
            .pulled(Ok(()))
            .launched(Ok(id))
            .inspected(Ok(seen(Status::Running, None)))
    }

    /// Polls until the container counts as running.
    fn prove(&mut self) -> &mut Self {
        for _ in 0..5 {
            self.timeout();
            self.inspected(Ok(seen(Status::Running, None)));
        }
        self
    }

    /// Ends the container; returns the delay until its restart.
    fn crash(&mut self, id: &str, next: &str) -> Duration {
        self.give(Input::EngineEvent)
            .inspected(Ok(seen(Status::Exited, None)));
        let delay = self.timeout();
        self.discarded(&[id])
            .found(vec![])
            .prepared(Ok(()))
            .launched(Ok(next))
            .inspected(Ok(seen(Status::Running, None)));
        delay
    }

    fn last(&self) -> &Report {
        self.published.last().expect("a report")
    }

    fn states(&self) -> Vec<ReplicaState> {
        self.published.iter().map(|report| report.state).collect()
    }
}

#[test]
fn new_row_is_running_after_five_seconds() {
    let mut bench = Bench::new();
    bench.up(7, "c1").prove();
    assert_eq!(bench.states(), [Pulling, Pending, Running]);
    let last = bench.last();
    assert_eq!((last.raft_index, last.container_id.as_str()), (7, "c1"));
    assert_eq!(last.details["ip.jaco_shop__default"], "10.244.0.2");
    assert_eq!(last.started_at, Some(UNIX_EPOCH + Duration::from_secs(5)));
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
    bench.give(Input::Events(false));
    bench.timeout();
    bench.inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.timeout(), POLL_RUNNING);
}

#[test]
fn running_container_of_row_is_adopted() {
    let report = Report {
        started_at: Some(UNIX_EPOCH),
        ..Report::new(Running, 7)
    }
    .of("c1")
    .with("ip.jaco_shop__default", "10.244.0.2");
    let mut bench = Bench::seeded(Seed {
        report: Some(report),
        failures: 0,
    });
    bench
        .give(Input::Assign(own(7)))
        .found(vec![container("c1", 7, Status::Running)])
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.states(), [], "the report is already replicated");
}

#[test]
fn stopped_container_of_row_is_started() {
    let mut bench = Bench::new();
    bench
        .give(Input::Assign(own(7)))
        .found(vec![container("c1", 7, Status::Exited)])
        .started(Ok(()))
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.last().container_id, "c1");
}

#[test]
fn container_that_fails_to_start_is_recreated() {
    let mut bench = Bench::new();
    bench
        .give(Input::Assign(own(7)))
        .found(vec![container("c1", 7, Status::Exited)])
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
        .give(Input::Assign(own(7)))
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
            .give(Input::Assign(own(7)))
            .found(vec![old])
            .discarded(&["c1"])
            .found(vec![])
            .prepared(Ok(()));
        assert_eq!(bench.states(), [Updating, Pulling]);
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
        .give(Input::Assign(own(7)))
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
        .give(Input::DuplicateContainers)
        .found(vec![
            container("copy", 7, Status::Running),
            container("c1", 7, Status::Running),
        ])
        .discarded(&["copy"])
        .found(vec![container("c1", 7, Status::Running)])
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.published.len(), published, "it runs, as before");
}

#[test]
fn exhausted_address_pool_fails_replica_and_is_retried() {
    let mut bench = Bench::new();
    bench
        .give(Input::Assign(own(7)))
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
    bench.give(Input::Assign(own(7)));
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
    bench.give(Input::Assign(own(7)));
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
    bench
        .give(Input::Assign(own(7)))
        .found(vec![])
        .prepared(Ok(()))
        .pulled(Ok(()))
        .launched(conflict());
    assert_eq!(bench.timeout(), Duration::from_secs(1));
    bench.found(vec![container("c1", 7, Status::Running)]);
    assert!(matches!(bench.asked, Some(Effect::Inspect(..))));
    assert_eq!(bench.states(), [Pulling]);
}

#[test]
fn persistent_name_conflict_is_reported() {
    let mut bench = Bench::new();
    bench.give(Input::Assign(own(7)));
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
fn fourth_consecutive_failure_exhausts_budget() {
    let mut bench = Bench::new();
    bench.up(7, "c1");
    for (seconds, (id, next)) in [(1, ("c1", "c2")), (2, ("c2", "c3")), (4, ("c3", "c4"))] {
        assert_eq!(bench.crash(id, next), Duration::from_secs(seconds));
    }
    bench
        .give(Input::EngineEvent)
        .inspected(Ok(seen(Status::Exited, None)));
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
    bench.crash("c1", "c2");
    bench.crash("c2", "c3");
    bench.prove();
    assert_eq!(bench.crash("c3", "c4"), Duration::from_secs(1));
}

#[test]
fn budget_continues_from_replicated_counter() {
    let mut bench = Bench::seeded(Seed {
        report: None,
        failures: 3,
    });
    bench
        .up(7, "c1")
        .give(Input::EngineEvent)
        .inspected(Ok(seen(Status::Exited, None)));
    assert_eq!(bench.last().code, "restart_exhausted");
}

#[test]
fn unhealthy_container_is_degraded_and_restarted() {
    let mut bench = Bench::new();
    let mut has_healthcheck = wanted(7);
    has_healthcheck.has_healthcheck = true;
    bench
        .give(Input::Assign(Assignment::Own(has_healthcheck)))
        .found(vec![])
        .prepared(Ok(()))
        .pulled(Ok(()))
        .launched(Ok("c1"))
        .inspected(Ok(seen(Status::Running, Some(Health::Starting))))
        .give(Input::EngineEvent)
        .inspected(Ok(seen(Status::Running, Some(Health::Healthy))))
        .give(Input::EngineEvent)
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
        .give(Input::Assign(own(7)))
        .found(stopped())
        .inspected(Ok(seen(Status::Exited, None)))
        .give(Input::EngineEvent)
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.states(), [], "up, but not yet running");
    bench.timeout();
    for _ in 0..4 {
        bench.inspected(Ok(seen(Status::Running, None))).timeout();
    }
    bench.inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.states(), [Running]);

    let mut bench = Bench::seeded(seed());
    bench
        .give(Input::Assign(own(9)))
        .found(stopped())
        .discarded(&["c1"]);
    assert_eq!(bench.states(), [Updating]);
    assert_eq!(bench.core.failures, 0);
}

#[test]
fn vanished_container_counts_as_failure_and_is_recreated() {
    let mut bench = Bench::new();
    bench
        .up(7, "c1")
        .give(Input::EngineEvent)
        .inspected(Err(EngineError::NotFound("no such container".into())));
    assert_eq!(bench.last().code, "inspect_failed");
    assert_eq!(bench.timeout(), Duration::from_secs(1));
    bench.discarded(&["c1"]).found(vec![]).prepared(Ok(()));
}

#[test]
fn unreachable_engine_is_reported_and_recovers() {
    let mut bench = Bench::new();
    bench
        .up(7, "c1")
        .prove()
        .give(Input::EngineEvent)
        .inspected(Err(down()));
    let last = bench.last();
    assert_eq!(last.state, Pending);
    assert!(last.details["reason"].contains("connection refused"));
    for seconds in [1, 2, 4] {
        assert_eq!(bench.timeout(), Duration::from_secs(seconds));
        match bench.asked.take() {
            Some(Effect::Lookup(g)) => bench.give(Input::Found(g, Err(down()))),
            other => panic!("expected a lookup, not {other:?}"),
        };
    }
    bench
        .give(Input::Events(false))
        .give(Input::Events(true))
        .found(vec![container("c1", 7, Status::Exited)])
        .started(Ok(()))
        .inspected(Ok(seen(Status::Running, None)));
    assert_eq!(bench.last().container_id, "c1");
    assert_eq!(bench.core.failures, 0);
}

#[test]
fn unchanged_assignment_has_no_effect() {
    let mut bench = Bench::new();
    bench
        .give(Input::Assign(own(7)))
        .found(vec![])
        .prepared(Ok(()))
        .give(Input::Assign(own(7)))
        .pulled(Ok(()))
        .give(Input::Assign(own(7)))
        .launched(Ok("c1"));
    assert_eq!(bench.cancelled, 0);
}

#[test]
fn superseded_create_is_removed() {
    let mut bench = Bench::new();
    bench
        .give(Input::Assign(own(7)))
        .found(vec![])
        .prepared(Ok(()))
        .pulled(Ok(()))
        .give(Input::Assign(own(8)))
        .launched(Ok("c1"))
        .found(vec![container("c1", 7, Status::Running)])
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
        .give(Input::Assign(Assignment::Gone))
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
        .give(Input::Assign(Assignment::Kept {
            has_healthcheck: false,
        }))
        .give(Input::EngineEvent)
        .inspected(Ok(seen(Status::Exited, None)));
    assert_eq!(bench.last().code, "container_exited");
    assert_eq!(
        bench.timeout(),
        POLL_SAFETY,
        "neither restarted nor removed"
    );
    bench
        .inspected(Ok(seen(Status::Exited, None)))
        .give(Input::Assign(Assignment::Gone))
        .found(vec![container("c1", 7, Status::Exited)])
        .discarded(&["c1"]);
}

#[test]
fn row_moved_during_start_leaves_no_container() {
    let mut bench = Bench::new();
    bench
        .give(Input::Assign(own(7)))
        .found(vec![])
        .prepared(Ok(()))
        .pulled(Ok(()))
        .give(Input::Assign(Assignment::Kept {
            has_healthcheck: false,
        }))
        .launched(Ok("c1"))
        .found(vec![container("c1", 7, Status::Running)])
        .discarded(&["c1"])
        .found(vec![]);
    assert!(bench.finished);
}

#[test]
fn outcomes_of_older_generations_are_ignored() {
    let mut bench = Bench::new();
    bench.give(Input::Assign(own(7)));
    let Some(Effect::Lookup(old)) = bench.asked.take() else {
        panic!("expected a lookup");
    };
    let stale = vec![container("x", 3, Status::Running)];
    bench.give(Input::Found(old - 1, Ok(stale)));
    assert_eq!(bench.asked, None);
}
