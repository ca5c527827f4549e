//! Simulation of the core against a model of an engine that fails, loses responses and kills
//! containers, on a node that the state and the contact with the cluster change under.

use std::{collections::VecDeque, time::UNIX_EPOCH};

use jaco_engine::{Found, Inspected, Status};
use jaco_proto::manifest::compose::{Restart, RestartCondition};
use proptest::prelude::*;

use super::*;
use crate::runtime::replica::readiness::{PROBE_LIMIT, Readiness, UPTIME};

mod interrupted;

/// Step of the simulation.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The driver sends the request of the action in flight, if its condition holds.
    Send,
    /// The action in flight completes.
    Answer,
    /// The action in flight fails, before or after it took place.
    Fail { late: bool, kind: u8 },
    /// Time passes until the core's deadline.
    Timeout,
    /// Every running container dies.
    Crash,
    /// Every running container ends with exit code 0.
    End,
    /// Containers that have ended are removed behind the daemon.
    Prune,
    /// A port of the containers accepts connections.
    Open(u16),
    /// A new row replaces the row.
    Reissue,
    /// The row is removed, or comes back.
    Toggle,
    /// The start gate changes.
    Gate(u8),
    /// The start gate changes; the core gets the assignment later.
    UnseenGate(u8),
    /// A new row replaces the row; the core gets the assignment later.
    UnseenReissue,
    /// The actor is killed; its actions in flight may still take place.
    Kill { late: bool },
    /// The engine sends an event.
    EngineEvent,
    /// A listing shows several containers.
    DuplicateContainers,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Send),
        12 => Just(Step::Answer),
        3 => (any::<bool>(), 0u8..4).prop_map(|(late, kind)| Step::Fail { late, kind }),
        8 => Just(Step::Timeout),
        3 => Just(Step::Crash),
        1 => Just(Step::End),
        1 => Just(Step::Prune),
        2 => (1u16..3).prop_map(Step::Open),
        1 => Just(Step::Reissue),
        1 => Just(Step::Toggle),
        3 => (0u8..6).prop_map(Step::Gate),
        2 => (0u8..6).prop_map(Step::UnseenGate),
        1 => Just(Step::UnseenReissue),
        1 => any::<bool>().prop_map(|late| Step::Kill { late }),
        2 => Just(Step::EngineEvent),
        1 => Just(Step::DuplicateContainers),
    ]
}

/// Steps in any order, among them restarts whose launch fails after the gate changed: single steps
/// rarely come to that.
fn history() -> impl Strategy<Value = Vec<Step>> {
    let interrupted_restart = (0u8..6, any::<bool>(), 0u8..4).prop_map(|(gate, late, kind)| {
        let restart = [Step::Crash, Step::Answer, Step::Timeout];
        let launch = [Step::Answer, Step::Answer, Step::Answer, Step::Send];
        let end = [Step::Gate(gate), Step::Fail { late, kind }];
        [&restart[..], &launch, &end].concat()
    });
    let part = prop_oneof![
        30 => step().prop_map(|step| vec![step]),
        2 => Just(vec![Step::Answer; 6]),
        2 => interrupted_restart,
    ];
    proptest::collection::vec(part, 0..80).prop_map(|parts| parts.concat())
}

/// Outcome of an action of this generation.
enum Outcome {
    Found(u64, Result<Vec<Found>, EngineError>),
    Prepared(u64, Result<(), PrepareError>),
    Pulled(u64, Result<(), EngineError>),
    Launched(u64, Result<String, StartError>),
    Started(u64, Result<(), StartError>),
    /// The last are the ports that accepted a connection.
    Inspected(u64, Result<Inspected, EngineError>, BTreeSet<u16>),
    Discarded(u64, Result<(), EngineError>),
    PostStarted(u64, Result<(), PostStartError>),
    Withdrawn(u64),
}

impl Outcome {
    /// Whether the actor learns from this that `container` runs or has run.
    fn shows_running(&self, container: &str) -> bool {
        match self {
            Self::Found(_, Ok(found)) => {
                let mut found = found.iter();
                found.any(|it| it.id == container && it.status == Status::Running)
            }
            Self::Inspected(_, Ok(seen), _) => {
                seen.id == container && seen.status == Some(Status::Running)
            }
            Self::Launched(_, Ok(_)) | Self::Started(_, Ok(())) => true,
            Self::Found(..)
            | Self::Prepared(..)
            | Self::Pulled(..)
            | Self::Launched(..)
            | Self::Started(..)
            | Self::Inspected(..)
            | Self::Discarded(..)
            | Self::PostStarted(..)
            | Self::Withdrawn(_) => false,
        }
    }

    fn report(self, core: &mut Core, now: Now) {
        match self {
            Self::Found(g, result) => core.handle_found(now, g, result),
            Self::Prepared(g, result) => core.handle_prepared(now, g, result),
            Self::Pulled(g, result) => core.handle_pulled(now, g, result),
            Self::Launched(g, result) => core.handle_launched(now, g, result),
            Self::Started(g, result) => core.handle_started(now, g, result),
            Self::Inspected(g, result, ports) => core.handle_inspected(now, g, result, ports),
            Self::Discarded(g, result) => core.handle_discarded(now, g, result),
            Self::PostStarted(g, result) => core.handle_post_started(now, g, result),
            Self::Withdrawn(g) => core.handle_withdrawn(g),
        }
    }
}

/// Model of an engine that holds containers of one replica; the unique name allows only one.
#[derive(Default)]
struct Engine {
    container: Option<Found>,
    made: u64,
    starts: u64,
    exit_code: i64,
    /// Time of the last start.
    started: Option<Instant>,
    /// Ports that accept connections.
    open: BTreeSet<u16>,
    /// Starts whose commands of `post_start` have succeeded.
    prepared: BTreeSet<u64>,
}

impl Engine {
    /// Executes an action and returns its outcome.
    fn perform(&mut self, action: &Action, raft_index: u64) -> Option<Outcome> {
        Some(match action {
            Action::Lookup(g) => Outcome::Found(*g, Ok(self.container.iter().cloned().collect())),
            Action::Prepare(g) => Outcome::Prepared(*g, Ok(())),
            Action::Pull(g) => Outcome::Pulled(*g, Ok(())),
            Action::Launch(g, _) => {
                let launched = self.launch(raft_index);
                Outcome::Launched(*g, launched.map_err(StartError::Engine))
            }
            Action::Start(g, id, _) => {
                Outcome::Started(*g, self.start(id).map_err(StartError::Engine))
            }
            Action::Inspect(g, id, ports) => {
                let accepted = ports.intersection(&self.open).copied().collect();
                Outcome::Inspected(*g, self.inspect(id), accepted)
            }
            Action::Discard(g, ids) => {
                if self.container.as_ref().is_some_and(|c| ids.contains(&c.id)) {
                    self.container = None;
                }
                Outcome::Discarded(*g, Ok(()))
            }
            Action::PostStart(g, _) => {
                self.prepared.insert(self.starts);
                Outcome::PostStarted(*g, Ok(()))
            }
            Action::Withdraw(g) => Outcome::Withdrawn(*g),
            Action::Cancel | Action::Publish(_) | Action::Finished => return None,
        })
    }

    fn launch(&mut self, raft_index: u64) -> Result<String, EngineError> {
        if self.container.is_some() {
            return Err(EngineError::Conflict("name in use".into()));
        }
        self.made += 1;
        self.starts += 1;
        let id = format!("c{}", self.made);
        self.container = Some(Found {
            id: id.clone(),
            replica_id: None,
            raft_index: Some(raft_index),
            status: Status::Running,
        });
        Ok(id)
    }

    fn start(&mut self, id: &str) -> Result<(), EngineError> {
        match &mut self.container {
            Some(container) if container.id == id => {
                container.status = Status::Running;
                self.starts += 1;
                Ok(())
            }
            Some(_) | None => Err(EngineError::NotFound("gone".into())),
        }
    }

    fn inspect(&self, id: &str) -> Result<Inspected, EngineError> {
        match &self.container {
            Some(container) if container.id == id => Ok(Inspected {
                id: id.to_owned(),
                status: Some(container.status),
                started_at: format!("start {}", self.starts),
                exit_code: self.exit_code,
                oom_killed: false,
                health: None,
                namespace: Default::default(),
                addresses: [("net".to_owned(), "10.0.0.2".to_owned())].into(),
            }),
            Some(_) | None => Err(EngineError::NotFound("gone".into())),
        }
    }
}

/// Action that the driver carries out.
struct InFlight {
    action: Action,
    /// The engine has its request.
    sent: bool,
}

struct Simulation {
    core: Core,
    engine: Engine,
    now: Now,
    inflight: VecDeque<InFlight>,
    raft_index: u64,
    wanted: bool,
    gate: StartGate,
    /// Last published observation.
    observed: Option<Report>,
    /// Launches of one row since it was last running for long enough.
    launches: u32,
    /// Since when the container is reported as running.
    running_since: Option<Instant>,
    /// Start of the engine that was last reported as running.
    served: Option<u64>,
    finished: bool,
    /// Action that the gate or the routing forbids.
    violation: Option<String>,
    /// Container to which clients are led.
    routed: Option<String>,
    /// Container that is being withdrawn from routing, and since when.
    leaving: Option<(String, Instant)>,
    restart: Restart,
    has_post_start: bool,
    readiness: Readiness,
    /// Starts of the engine when the container of the row ended for good.
    ended: Option<u64>,
    /// Row whose container this actor has seen run.
    seen_running: Option<u64>,
}

impl Simulation {
    fn new() -> Self {
        Self::of(Restart::default(), false, 0)
    }

    /// A simulation of a service with this number of TCP ports.
    fn of(restart: Restart, has_post_start: bool, ports: u16) -> Self {
        let mut simulation = Self {
            core: Core::new("node-1", Seed::default(), true),
            engine: Engine::default(),
            now: Now {
                instant: Instant::now(),
                wall: UNIX_EPOCH,
            },
            inflight: VecDeque::new(),
            raft_index: 1,
            wanted: true,
            gate: StartGate::Open,
            observed: None,
            launches: 0,
            running_since: None,
            served: None,
            finished: false,
            violation: None,
            routed: None,
            leaving: None,
            restart,
            has_post_start,
            readiness: Readiness::of_ports((1..=ports).collect()),
            ended: None,
            seen_running: None,
        };
        simulation.dispatch();
        simulation
    }

    fn feed(&mut self, handle: impl FnOnce(&mut Core, Now)) {
        handle(&mut self.core, self.now);
        while let Some(action) = self.core.poll_action() {
            if self.is_forbidden(&action) {
                self.violation = Some(format!("{action:?} with {:?}", self.gate));
            }
            if self.cuts_off_clients(&action) {
                self.violation = Some(format!("{action:?} without a withdrawal"));
            }
            if matches!(action, Action::Withdraw(_))
                && let Some(container) = self.routed.take()
            {
                self.leaving = Some((container, self.now.instant));
            }
            match action {
                Action::Publish(report) => {
                    if report.state == ReplicaState::Running {
                        let prepared = self.engine.prepared.contains(&self.engine.starts);
                        if self.has_post_start && !prepared {
                            self.violation = Some("running before post_start has ended".into());
                        }
                        if !self.is_ready(&report) {
                            self.violation = Some("running before it is ready".into());
                        }
                        self.served = Some(self.engine.starts);
                        self.running_since.get_or_insert(self.now.instant);
                        self.routed = Some(report.container_id.clone());
                        self.leaving = None;
                    } else if let Some(container) = self.routed.take()
                        && matches!(report.state, ReplicaState::Updating | ReplicaState::Stopped)
                    {
                        // Not every node has applied the report yet.
                        self.leaving = Some((container, self.now.instant));
                    }
                    if report.state != ReplicaState::Running
                        && let Some(since) = self.running_since.take()
                        && since + STABLE_AFTER <= self.now.instant
                    {
                        self.launches = 0;
                    }
                    self.observed = Some(*report);
                }
                Action::Cancel => {
                    self.inflight.retain(|it| !cancellable(&it.action));
                }
                Action::Finished => self.finished = true,
                Action::Lookup(_)
                | Action::Prepare(_)
                | Action::Pull(_)
                | Action::Launch(..)
                | Action::Start(..)
                | Action::Inspect(..)
                | Action::PostStart(..)
                | Action::Withdraw(_)
                | Action::Discard(..) => self.inflight.push_back(InFlight {
                    action,
                    sent: false,
                }),
            }
        }
    }

    /// Whether a container that is reported as running accepts connections, or has been up for long
    /// enough.
    fn is_ready(&self, report: &Report) -> bool {
        let container = self.engine.container.as_ref();
        // It may have ended, or been replaced, since it was inspected.
        let shown = container
            .is_some_and(|it| it.id == report.container_id && it.status == Status::Running);
        let Some(since) = self.engine.started.filter(|_| shown) else {
            return true;
        };
        let up = self.now.instant - since;
        // One that has served need not show it again after its actor was killed.
        self.served == Some(self.engine.starts)
            || match &self.readiness {
                Readiness::Ports(ports) => self.engine.open.is_superset(ports) || up >= PROBE_LIMIT,
                Readiness::Healthcheck | Readiness::Uptime | Readiness::Unknown => up >= UPTIME,
            }
    }

    /// Whether the gate forbids this action. Restarts continue unless the node cannot isolate
    /// deployments; without contact to the cluster, only those of a container that this actor has
    /// seen run.
    fn is_forbidden(&self, action: &Action) -> bool {
        let restarting = self.core.restarting;
        let shut = self.wanted
            && match self.gate {
                StartGate::Open => false,
                StartGate::Deferred(_) => !restarting,
                StartGate::NotCaughtUp => !restarting || self.seen_running != Some(self.raft_index),
                StartGate::IsolationMissing => true,
            };
        let deferred = matches!(self.gate, StartGate::Deferred(_));
        match action {
            // Dependencies are checked once, before the first start is prepared.
            Action::Prepare(_) => shut && !(deferred && self.prepares_existing()),
            Action::Pull(_) | Action::Launch(..) | Action::Start(..) => shut && !deferred,
            Action::Discard(_, ids) => {
                let keeps_serving = |container: &Found| {
                    container.status == Status::Running
                        && container.raft_index != Some(self.raft_index)
                        && ids.contains(&container.id)
                };
                shut && !restarting && self.engine.container.as_ref().is_some_and(keeps_serving)
            }
            Action::Lookup(_)
            | Action::Inspect(..)
            | Action::PostStart(..)
            | Action::Withdraw(_)
            | Action::Cancel
            | Action::Publish(_)
            | Action::Finished => false,
        }
    }

    /// Whether a container is stopped that clients may still be led to, or were until less than the
    /// time limit of a withdrawal ago.
    fn cuts_off_clients(&self, action: &Action) -> bool {
        let Action::Discard(_, ids) = action else {
            return false;
        };
        let running = self.engine.container.as_ref();
        let running = running.filter(|container| container.status == Status::Running);
        let Some(stopped) = running.filter(|container| ids.contains(&container.id)) else {
            return false;
        };
        let leaving = self.leaving.as_ref();
        self.routed.as_ref() == Some(&stopped.id)
            || leaving.is_some_and(|(id, since)| {
                *id == stopped.id && self.now.instant < *since + WITHDRAWAL_TIMEOUT
            })
    }

    fn prepares_existing(&self) -> bool {
        matches!(self.core.phase, Phase::Preparing(Some(_)))
    }

    fn assignment(&self) -> Assignment {
        if self.wanted {
            Assignment::Own(DesiredReplica {
                raft_index: self.raft_index,
                deployment: "d".into(),
                image: "i".into(),
                pull: true,
                readiness: self.readiness.clone(),
                restart: self.restart.clone(),
                has_post_start: self.has_post_start,
                gate: self.gate.clone(),
            })
        } else {
            Assignment::Gone
        }
    }

    fn dispatch(&mut self) {
        let assignment = self.assignment();
        self.finished = false;
        self.feed(|core, _| core.handle_assignment(assignment));
    }

    /// Sends the request of the oldest action as the driver does: a start only if its condition
    /// holds at this moment.
    fn send(&mut self) {
        let assignment = self.assignment();
        let Some(front) = self.inflight.front_mut() else {
            return;
        };
        if std::mem::replace(&mut front.sent, true) {
            return;
        }
        let action = front.action.clone();
        let (condition, revoked) = match &action {
            Action::Launch(g, condition) => {
                let revoked = Outcome::Launched(*g, Err(StartError::Revoked));
                (*condition, revoked)
            }
            Action::Start(g, _, condition) => {
                let revoked = Outcome::Started(*g, Err(StartError::Revoked));
                (*condition, revoked)
            }
            Action::Lookup(_)
            | Action::Prepare(_)
            | Action::Pull(_)
            | Action::Inspect(..)
            | Action::PostStart(..)
            | Action::Withdraw(_)
            | Action::Discard(..)
            | Action::Cancel
            | Action::Publish(_)
            | Action::Finished => return,
        };
        if !condition.holds(&assignment) {
            self.inflight.pop_front();
            return self.report(revoked);
        }
        let outdated = !self.wanted || condition.raft_index != self.raft_index;
        if outdated || self.is_forbidden(&action) {
            let gate = &self.gate;
            self.violation = Some(format!(
                "sends {action:?} with {gate:?}, wanted: {}",
                self.wanted
            ));
        }
    }

    /// Takes the oldest action once its request is sent.
    fn take_sent(&mut self) -> Option<Action> {
        self.send();
        // A revoked start is no longer in flight, and the action after it is not sent yet.
        if !self.inflight.front()?.sent {
            return None;
        }
        self.inflight.pop_front().map(|front| front.action)
    }

    /// Reports an outcome as the driver does: after the assignment of this moment.
    fn report(&mut self, outcome: Outcome) {
        if !matches!(outcome, Outcome::Inspected(..)) {
            self.dispatch();
        }
        if let Some(container) = &self.engine.container
            && outcome.shows_running(&container.id)
        {
            self.seen_running = container.raft_index;
        }
        self.feed(|core, now| outcome.report(core, now));
    }

    fn perform(&mut self, action: &Action) -> Option<Outcome> {
        let (before, starts) = (self.engine.made, self.engine.starts);
        // A create uses the row that was read when it was prepared.
        let raft_index = self.core.target.unwrap_or(self.raft_index);
        let outcome = self.engine.perform(action, raft_index);
        if self.engine.made > before {
            self.launches += 1;
        }
        if self.engine.starts > starts {
            self.engine.started = Some(self.now.instant);
            self.engine.open.clear();
        }
        if matches!(action, Action::Withdraw(_)) {
            self.leaving = None;
        }
        outcome
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send => self.send(),
            Step::Answer => {
                if let Some(action) = self.take_sent()
                    && let Some(outcome) = self.perform(&action)
                {
                    self.report(outcome);
                }
            }
            Step::Fail { late, kind } => {
                if let Some(action) = self.take_sent() {
                    if matches!(action, Action::Inspect(..)) {
                        self.forget_unseen_end();
                    }
                    if late {
                        self.perform(&action);
                    }
                    if let Some(outcome) = failure(&action, kind) {
                        self.report(outcome);
                    }
                }
            }
            Step::Timeout => {
                if let Some(due) = self.core.poll_timeout() {
                    self.now.instant = self.now.instant.max(due);
                    self.dispatch();
                    self.feed(Core::handle_timeout);
                    let next = self.core.poll_timeout();
                    assert!(
                        next.is_none_or(|next| next > self.now.instant),
                        "would spin"
                    );
                }
            }
            Step::Crash => self.end(1),
            Step::End => self.end(0),
            Step::Prune => {
                let container = self.engine.container.as_ref();
                if container.is_some_and(|it| it.status == Status::Exited) {
                    self.engine.container = None;
                    self.forget_unseen_end();
                }
            }
            Step::Open(port) => {
                self.engine.open.insert(port);
            }
            Step::Reissue => {
                self.reissue();
                self.dispatch();
            }
            Step::UnseenReissue => self.reissue(),
            Step::Toggle => {
                self.wanted = !self.wanted;
                self.reissue();
                self.dispatch();
            }
            Step::Gate(kind) => {
                self.gate = gate(kind);
                self.dispatch();
            }
            Step::UnseenGate(kind) => self.gate = gate(kind),
            Step::Kill { late } => {
                if late {
                    self.send();
                }
                for it in std::mem::take(&mut self.inflight) {
                    if late && it.sent {
                        self.perform(&it.action);
                    }
                }
                // Restarts of the actor count against its supervisor's budget, not the container's.
                (self.launches, self.running_since) = (0, None);
                let seed = Seed {
                    report: self.observed.clone(),
                    failures: 0,
                };
                self.core = Core::new("node-1", seed, true);
                self.seen_running = None;
                self.dispatch();
            }
            Step::EngineEvent => self.feed(|core, _| core.handle_engine_event()),
            Step::DuplicateContainers => self.feed(|core, _| core.handle_duplicates()),
        }
    }

    fn end(&mut self, exit_code: i64) {
        if let Some(container) = &mut self.engine.container
            && container.status == Status::Running
        {
            container.status = Status::Exited;
            self.engine.exit_code = exit_code;
            let is_current = container.raft_index == Some(self.raft_index);
            // One that is being replaced after a failure ends with its successor.
            let is_watched = matches!(self.core.phase, Phase::Watching(_));
            if is_current && is_watched && !self.restart.restarts_after(exit_code) {
                self.ended = Some(self.engine.starts);
            }
        }
        (self.routed, self.leaving) = (None, None);
        self.feed(|core, _| core.handle_engine_event());
    }

    /// An end that was not reported before its container was gone, or could not be read, is none.
    fn forget_unseen_end(&mut self) {
        let observed = self.observed.as_ref();
        if observed.and_then(Report::finished).is_none() {
            self.ended = None;
        }
    }

    fn reissue(&mut self) {
        self.ended = None;
        self.raft_index += 1;
        (self.launches, self.running_since) = (0, None);
        self.observed = None;
    }

    fn check(&self) -> Result<(), String> {
        if self.inflight.len() > 2 {
            return Err(format!("{} actions in flight", self.inflight.len()));
        }
        let starts = self.engine.starts;
        if self.ended.is_some_and(|ended| starts > ended) {
            return Err("started again after its end".to_owned());
        }
        self.violation.clone().map_or(Ok(()), Err)
    }

    /// Checks the state of an idle simulation.
    fn assert_converged(&self) {
        if !self.wanted {
            assert!(self.engine.container.is_none());
            assert!(self.finished);
            return;
        }
        let observed = self.observed.clone().expect("a report was published");
        if observed.code == code::RESTART_EXHAUSTED {
            return;
        }
        let container = self.engine.container.clone();
        if observed.finished().is_some() {
            let status = container.map(|container| container.status);
            assert!(status.is_none_or(|status| status == Status::Exited));
            return;
        }
        let container = container.expect("a container");
        assert_eq!(observed.state, ReplicaState::Running);
        assert_eq!(container.status, Status::Running);
        assert_eq!(container.raft_index, Some(self.raft_index));
        assert_eq!(observed.container_id, container.id);
        assert_eq!(observed.raft_index, self.raft_index);
    }

    /// Runs without faults until everything in flight has completed.
    fn run_until_idle(&mut self) {
        self.step(Step::Gate(0));
        for _ in 0..400 {
            while !self.inflight.is_empty() {
                self.step(Step::Answer);
            }
            self.step(Step::Timeout);
        }
        while !self.inflight.is_empty() {
            self.step(Step::Answer);
        }
    }
}

/// Gate of this number; half of them are open.
fn gate(kind: u8) -> StartGate {
    match kind {
        0..=2 => StartGate::Open,
        3 => StartGate::Deferred("db has not started".into()),
        4 => StartGate::NotCaughtUp,
        _ => StartGate::IsolationMissing,
    }
}

/// Whether [`Action::Cancel`] ends an action.
fn cancellable(action: &Action) -> bool {
    matches!(
        action,
        Action::Prepare(_) | Action::Pull(_) | Action::Withdraw(_)
    )
}

/// Outcome of an action that fails; `None` if it then has none.
fn failure(action: &Action, kind: u8) -> Option<Outcome> {
    let error = match kind {
        0 => EngineError::Unreachable("down".into()),
        1 => EngineError::NotFound("no".into()),
        2 => EngineError::Conflict("busy".into()),
        _ => EngineError::Api {
            status: 500,
            message: "no".into(),
        },
    };
    Some(match action {
        // A node that does not answer holds it up.
        Action::Withdraw(_) => return None,
        Action::Lookup(g) => Outcome::Found(*g, Err(error)),
        Action::Prepare(g) => Outcome::Prepared(*g, Err(PrepareError::Engine(error))),
        Action::Pull(g) => Outcome::Pulled(*g, Err(error)),
        Action::Launch(g, _) => Outcome::Launched(*g, Err(StartError::Engine(error))),
        Action::Start(g, ..) => Outcome::Started(*g, Err(StartError::Engine(error))),
        Action::Inspect(g, ..) => Outcome::Inspected(*g, Err(error), BTreeSet::new()),
        Action::Discard(g, _) => Outcome::Discarded(*g, Err(error)),
        Action::PostStart(g, _) => Outcome::PostStarted(*g, Err(PostStartError::Engine(error))),
        Action::Cancel | Action::Publish(_) | Action::Finished => {
            unreachable!("expects no outcome")
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_history_converges_to_the_assignment(
        steps in history(),
        condition in prop_oneof![
            2 => Just(RestartCondition::Always),
            1 => Just(RestartCondition::OnFailure),
            1 => Just(RestartCondition::Never),
        ],
        has_post_start: bool,
        ports in 0u16..3,
    ) {
        let restart = Restart { condition, ..Restart::default() };
        let mut simulation = Simulation::of(restart, has_post_start, ports);
        for step in steps {
            simulation.step(step);
            prop_assert_eq!(simulation.check(), Ok(()));
        }
        simulation.run_until_idle();
        prop_assert_eq!(simulation.check(), Ok(()));
        simulation.assert_converged();
    }

    #[test]
    fn crashes_never_exceed_restart_budget(crash_after in proptest::collection::vec(0u8..4, 1..40)) {
        let mut simulation = Simulation::new();
        for polls in crash_after {
            for _ in 0..polls {
                while !simulation.inflight.is_empty() {
                    simulation.step(Step::Answer);
                }
                simulation.step(Step::Timeout);
            }
            simulation.step(Step::Crash);
            prop_assert!(simulation.launches <= 1 + RESTARTS, "{} launches", simulation.launches);
        }
    }
}
