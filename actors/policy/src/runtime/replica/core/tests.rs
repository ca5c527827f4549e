//! One test per rule of a replica's lifecycle.

use std::time::UNIX_EPOCH;

use jaco_engine::{Found, Health, Inspected, NetworkNamespace, Status};
use jaco_proto::manifest::compose::{Restart, RestartCondition};
use prost_types::Timestamp;

use super::*;
use crate::runtime::replica::{
    readiness::{FIRST_PROBE, Readiness, UPTIME},
    report::{POST_START, START},
};
use ReplicaState::{Degraded, Failed, Pending, Pulling, Running, Stopped, Updating};

mod adoption;
mod engine_failures;
mod finished;
mod gate;
mod post_start;
mod pulls;
mod restarts;
mod rows;
mod withdrawal;

struct Bench {
    core: Core,
    start: Instant,
    now: Now,
    published: Vec<Report>,
    /// Last action that expects an outcome.
    asked: Option<Action>,
    cancelled: u32,
    finished: bool,
    /// Last listing.
    listing: Vec<Found>,
}

fn wanted(raft_index: u64) -> DesiredReplica {
    DesiredReplica {
        raft_index,
        deployment: "shop".into(),
        image: "web:1".into(),
        pull: true,
        readiness: Readiness::Uptime,
        restart: Restart::default(),
        has_post_start: false,
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
        started_at: "today".into(),
        exit_code: i64::from(status == Status::Exited),
        oom_killed: false,
        health,
        namespace: Default::default(),
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
            listing: Vec::new(),
        }
    }

    /// Reports an event to the core and records its actions.
    fn feed(&mut self, handle: impl FnOnce(&mut Core, Now)) -> &mut Self {
        handle(&mut self.core, self.now);
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Publish(report) => self.published.push(*report),
                Action::Cancel => self.cancelled += 1,
                Action::Finished => self.finished = true,
                Action::Lookup(_)
                | Action::Prepare(_)
                | Action::Pull(_)
                | Action::Launch(..)
                | Action::Start(..)
                | Action::Inspect(..)
                | Action::PostStart(..)
                | Action::Withdraw(_)
                | Action::Discard(..) => self.asked = Some(action),
            }
        }
        let due = self.core.poll_timeout();
        assert!(due.is_none_or(|due| due >= self.now.instant));
        self
    }

    fn assign(&mut self, assignment: Assignment) -> &mut Self {
        self.feed(|core, _| core.handle_assignment(assignment))
    }

    fn engine_event(&mut self) -> &mut Self {
        self.feed(|core, _| core.handle_engine_event())
    }

    fn event_stream(&mut self, up: bool) -> &mut Self {
        self.feed(|core, now| core.handle_event_stream(now, up))
    }

    fn duplicates(&mut self) -> &mut Self {
        self.feed(|core, _| core.handle_duplicates())
    }

    /// Answers the last action, which must be a lookup.
    fn found(&mut self, found: Vec<Found>) -> &mut Self {
        self.listing.clone_from(&found);
        match self.asked.take() {
            Some(Action::Lookup(g)) => self.feed(|core, now| core.handle_found(now, g, Ok(found))),
            other => panic!("expected a lookup, not {other:?}"),
        }
    }

    fn prepared(&mut self, result: Result<(), PrepareError>) -> &mut Self {
        match self.asked.take() {
            Some(Action::Prepare(g)) => self.feed(|core, now| core.handle_prepared(now, g, result)),
            other => panic!("expected a prepare, not {other:?}"),
        }
    }

    fn pulled(&mut self, result: Result<(), EngineError>) -> &mut Self {
        match self.asked.take() {
            Some(Action::Pull(g)) => self.feed(|core, now| core.handle_pulled(now, g, result)),
            other => panic!("expected a pull, not {other:?}"),
        }
    }

    fn launched(&mut self, result: Result<&str, EngineError>) -> &mut Self {
        match self.asked.take() {
            Some(Action::Launch(g, _)) => {
                let result = result.map(str::to_owned).map_err(StartError::Engine);
                self.feed(|core, now| core.handle_launched(now, g, result))
            }
            other => panic!("expected a launch, not {other:?}"),
        }
    }

    /// The driver finds that the condition of the last start no longer holds.
    fn revoked(&mut self) -> &mut Self {
        let revoked = StartError::Revoked;
        match self.asked.take() {
            Some(Action::Launch(g, _)) => {
                self.feed(|core, now| core.handle_launched(now, g, Err(revoked)))
            }
            Some(Action::Start(g, ..)) => {
                self.feed(|core, now| core.handle_started(now, g, Err(revoked)))
            }
            other => panic!("expected a start, not {other:?}"),
        }
    }

    fn started(&mut self, result: Result<(), EngineError>) -> &mut Self {
        match self.asked.take() {
            Some(Action::Start(g, ..)) => {
                let result = result.map_err(StartError::Engine);
                self.feed(|core, now| core.handle_started(now, g, result))
            }
            other => panic!("expected a start, not {other:?}"),
        }
    }

    fn inspected(&mut self, result: Result<Inspected, EngineError>) -> &mut Self {
        match self.asked.take() {
            Some(Action::Inspect(g, _, _)) => {
                self.feed(|core, now| core.handle_inspected(now, g, result, BTreeSet::new()))
            }
            other => panic!("expected an inspect, not {other:?}"),
        }
    }

    /// Answers the last action, which must be an inspection that connects to `tried`; those of
    /// `accepted` succeed.
    fn probed(&mut self, tried: &[u16], accepted: &[u16]) -> &mut Self {
        match self.asked.take() {
            Some(Action::Inspect(g, _, ports)) => {
                assert_eq!(ports, tried.iter().copied().collect());
                let accepted = accepted.iter().copied().collect();
                let up = Ok(seen(Status::Running, None));
                self.feed(|core, now| core.handle_inspected(now, g, up, accepted))
            }
            other => panic!("expected an inspect, not {other:?}"),
        }
    }

    fn post_started(&mut self, result: Result<(), PostStartError>) -> &mut Self {
        match self.asked.take() {
            Some(Action::PostStart(g, _)) => {
                self.feed(|core, now| core.handle_post_started(now, g, result))
            }
            other => panic!("expected commands, not {other:?}"),
        }
    }

    /// Drives the pull of an image beside a container that serves, and lists the same containers.
    fn pulled_ahead(&mut self) -> &mut Self {
        self.prepared(Ok(())).pulled(Ok(()));
        self.found(self.listing.clone())
    }

    /// Answers the last action, which must be a withdrawal, and then lists the same containers.
    fn withdrawn(&mut self) -> &mut Self {
        match self.asked.take() {
            Some(Action::Withdraw(g)) => self.feed(|core, _| core.handle_withdrawn(g)),
            other => panic!("expected a withdrawal, not {other:?}"),
        };
        self.found(self.listing.clone())
    }

    /// Answers the last action, which must be a discard, perhaps after a withdrawal.
    fn discarded(&mut self, containers: &[&str]) -> &mut Self {
        if matches!(self.asked, Some(Action::Withdraw(_))) {
            self.withdrawn();
        }
        match self.asked.take() {
            Some(Action::Discard(g, which)) => {
                assert_eq!(which, containers);
                self.feed(|core, now| core.handle_discarded(now, g, Ok(())))
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
        self.feed(Core::handle_timeout);
        passed
    }

    /// Drives a new row to its first pull attempt.
    fn pulling(&mut self, raft_index: u64) -> &mut Self {
        self.assign(own(raft_index)).found(vec![]).prepared(Ok(()))
    }

    /// Drives a new row to a watched, just created container.
    fn up(&mut self, raft_index: u64, id: &str) -> &mut Self {
        self.pulling(raft_index)
            .pulled(Ok(()))
            .launched(Ok(id))
            .inspected(Ok(seen(Status::Running, None)))
    }

    /// Waits until the container counts as running.
    fn prove(&mut self) -> &mut Self {
        assert_eq!(self.timeout(), UPTIME);
        self.inspected(Ok(seen(Status::Running, None)))
    }

    /// The watched container exits, and the engine reports it.
    fn crash(&mut self) -> &mut Self {
        self.engine_event()
            .inspected(Ok(seen(Status::Exited, None)))
    }

    /// The container `id` exits; drives its restart to the launch and returns the delay.
    fn crash_and_launch(&mut self, id: &str) -> Duration {
        let delay = self.crash().timeout();
        self.discarded(&[id]).found(vec![]).prepared(Ok(()));
        delay
    }

    /// The container `id` exits and is replaced by `next`; returns the delay of the restart.
    fn crash_and_restart(&mut self, id: &str, next: &str) -> Duration {
        let delay = self.crash_and_launch(id);
        self.launched(Ok(next))
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
