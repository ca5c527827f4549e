//! The containers of one node: the replica cores, and the shells around them as the real manager,
//! replica actor and publisher perform them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jaco_actors::runtime::{
    Documents, assignment,
    engine::{EngineError, Found},
    replica::{
        core::{Assignment, Core, Effect, Gate, Input, Now, PrepareError, Seed},
        report::Report,
    },
};
use jaco_proto::v1::{self, ReplicaObserved, ReplicaState, command::Payload};
use jaco_raftnode::{State, command};

use super::{
    calls::{Ask, Reply, Who},
    documents,
    engine::{Answer, Request, latency},
    mutation::Mutation,
    oracle::Made,
    time::{MS, SECOND, Time},
    world::{Event, Local, World},
};

/// Wait after an observation that could not be written.
const RETRY: Time = 500 * MS;
/// Time between looks for containers that no row wants.
pub(super) const SWEEP: Time = 30 * SECOND;

/// A request to the engine, and what for.
#[derive(Clone, Debug)]
pub(super) struct Doing {
    pub(super) replica: String,
    /// Instance of the actor that asked.
    instance: u64,
    request: Request,
    goal: Goal,
    /// What is left to do after it, last first.
    rest: Vec<Request>,
    outcome: Option<Result<Answer, EngineError>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Lookup(u64),
    Prepare(u64),
    Pull(u64),
    /// Create, then start.
    Launch(u64),
    Start(u64),
    Inspect(u64),
    /// Stop and remove one after the other.
    Discard(u64),
    /// A listing of the sweep, in this stretch of being caught up.
    Sweep(u64),
    /// A container that no row wants goes.
    Reclaim,
    /// What a failed launch made goes.
    Undo,
}

struct Replica {
    core: Core,
    instance: u64,
    /// Row that the next create is made of.
    prepared: u64,
    due: Option<Time>,
}

/// The runtime of one daemon.
pub(super) struct Runtime {
    replicas: BTreeMap<String, Replica>,
    instances: u64,
    documents: Documents,
    waiting: BTreeMap<String, ReplicaObserved>,
    /// Observations with a proposal under way.
    under_way: BTreeMap<String, ReplicaObserved>,
    paused: bool,
    current: bool,
    settled: bool,
    stretch: u64,
    listing: bool,
    reclaiming: BTreeSet<String>,
}

impl Runtime {
    pub(super) fn new(_state: &Arc<State>) -> Self {
        Self {
            replicas: BTreeMap::new(),
            instances: 0,
            documents: Documents::reading_with(documents::project),
            waiting: BTreeMap::new(),
            under_way: BTreeMap::new(),
            paused: false,
            current: false,
            settled: false,
            stretch: 0,
            listing: false,
            reclaiming: BTreeSet::new(),
        }
    }

    /// Starts the actor of a replica, unless there is one.
    fn tend(&mut self, state: &State, host: &str, replica: String) {
        let instances = &mut self.instances;
        self.replicas.entry(replica).or_insert_with_key(|replica| {
            *instances += 1;
            Replica {
                core: Core::new(host, seed(state, host, replica), true),
                instance: *instances,
                prepared: 0,
                due: None,
            }
        });
    }

    /// Whether, since the node caught up, no container is left whose row moved away.
    pub(super) fn settled(&self) -> bool {
        self.settled
    }

    /// Whether an actor tends this replica.
    pub(super) fn holds(&self, replica: &str) -> bool {
        self.replicas.contains_key(replica)
    }

    /// Whether nothing waits to be written.
    pub(super) fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }
}

impl World {
    /// The state changed: rows may be new, other or gone.
    pub(super) fn dispatch(&mut self, id: u64) {
        let keeps = self.has(Mutation::KeepMovedContainers);
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let host = machine.host.clone();
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let state = Arc::clone(&daemon.state);
        if state.cluster.is_none() {
            return;
        }
        let runtime = &mut daemon.runtime;
        for replica in assignment::here(&state, &host) {
            runtime.tend(&state, &host, replica);
        }
        let assignments: Vec<(String, Assignment)> = runtime
            .replicas
            .keys()
            .map(|replica| {
                let mut wanted = assignment::of(&state, &runtime.documents, &host, replica);
                if let Assignment::Own(wanted) = &mut wanted
                    && !runtime.settled
                {
                    wanted.gate = Gate::Behind;
                }
                if keeps && wanted == Assignment::Gone {
                    wanted = Assignment::Kept { checked: false };
                }
                (replica.clone(), wanted)
            })
            .collect();
        for (replica, wanted) in assignments {
            if matches!(wanted, Assignment::Kept { .. }) {
                self.count("containers kept for a move");
            }
            self.replica(id, &replica, Input::Assign(wanted));
        }
    }

    /// Gives the core of a replica something to handle.
    fn replica(&mut self, id: u64, replica: &str, input: Input) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let clock = machine.clock;
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let Some(tended) = daemon.runtime.replicas.get_mut(replica) else {
            return;
        };
        let point = Now {
            instant: clock.instant(now),
            wall: clock.wall(now),
        };
        let effects = tended.core.handle(point, input);
        for effect in effects {
            self.effect(id, replica, effect);
        }
        let tended = self
            .daemon(id)
            .and_then(|daemon| daemon.runtime.replicas.get_mut(replica));
        if let Some(tended) = tended {
            let due = tended.core.poll_timeout().map(|at| clock.when(now, at));
            if due != tended.due {
                tended.due = due;
                if let Some(at) = due {
                    self.later(id, at - now, Local::Due(replica.to_owned()));
                }
            }
        }
    }

    pub(super) fn replica_due(&mut self, id: u64, replica: &str) {
        let now = self.now;
        let tended = self
            .daemon(id)
            .and_then(|daemon| daemon.runtime.replicas.get_mut(replica));
        if let Some(tended) = tended
            && tended.due.is_some_and(|due| due <= now)
        {
            tended.due = None;
            self.replica(id, replica, Input::Timeout);
        }
    }

    pub(super) fn replica_hint(&mut self, id: u64, replica: &str) {
        self.replica(id, replica, Input::Hint);
    }

    fn effect(&mut self, id: u64, replica: &str, effect: Effect) {
        let state = self.daemon(id).map(|daemon| Arc::clone(&daemon.state));
        let row = state.and_then(|s| s.replicas_desired.get(replica).map(|r| r.raft_index));
        let runtime = self.daemon(id).map(|daemon| &mut daemon.runtime);
        let tended = runtime.and_then(|runtime| runtime.replicas.get_mut(replica));
        let instance = tended.as_ref().map_or(0, |tended| tended.instance);
        let mut rest = Vec::new();
        let (request, goal) = match effect {
            Effect::Lookup(g) => (Request::Find, Goal::Lookup(g)),
            Effect::Prepare(g) => {
                // A create carries the row that was read when it was prepared.
                if let Some(tended) = tended {
                    tended.prepared = row.unwrap_or(0);
                }
                (Request::Prepare, Goal::Prepare(g))
            }
            Effect::Pull(g) => (Request::Pull, Goal::Pull(g)),
            Effect::Launch(g) => {
                let prepared = tended.map_or(0, |tended| tended.prepared);
                (Request::Create(prepared), Goal::Launch(g))
            }
            Effect::Start(g, container) => (Request::Start(container), Goal::Start(g)),
            Effect::Inspect(g, container) => (Request::Inspect(container), Goal::Inspect(g)),
            Effect::Discard(g, containers) => {
                for container in containers.into_iter().rev() {
                    rest.push(Request::Remove(container.clone()));
                    rest.push(Request::Stop(container));
                }
                let first = rest.pop().unwrap_or(Request::Find);
                (first, Goal::Discard(g))
            }
            // The outcome comes with an old generation.
            Effect::Cancel => return,
            Effect::Publish(report) => return self.publish(id, replica, &report),
            Effect::Finished => return self.replica_finished(id, replica),
        };
        self.ask_engine(
            id,
            Doing {
                replica: replica.to_owned(),
                instance,
                request,
                goal,
                rest,
                outcome: None,
            },
        );
    }

    fn ask_engine(&mut self, id: u64, doing: Doing) {
        let Some(run) = self.machines.get(&id).map(|machine| machine.run) else {
            return;
        };
        let takes = latency(&doing.request, &mut self.engine_chance);
        let event = Event::Engine(id, run, doing);
        self.agenda.add(self.now + takes, event);
    }

    /// The engine carries a request out, whatever has become of the daemon that made it.
    pub(super) fn engine(&mut self, id: u64, run: u64, mut doing: Doing) {
        let share = self.engine_errors.values().max().copied().unwrap_or(0);
        let fails = self.engine_chance.within(0..1000) < share;
        let (late, kind) = (
            self.engine_chance.within(0..2),
            self.engine_chance.within(0..2),
        );
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        // A request that was on its way when the machine lost its power is gone.
        if machine.daemon.is_none() && machine.run == 0 && self.engine_chance.within(0..2) == 0 {
            return;
        }
        let mut outcome = Err(EngineError::Api {
            status: 500,
            message: "on purpose".into(),
        });
        if !fails || late == 1 {
            let before = machine.engine.running().count();
            outcome = machine.engine.perform(&doing.replica, &doing.request);
            if let (Ok(Answer::Created(container)), Request::Create(raft_index)) =
                (&outcome, &doing.request)
            {
                let made = Made {
                    replica: doing.replica.clone(),
                    host: machine.host.clone(),
                    raft_index: *raft_index,
                };
                self.oracle.creates(container, made);
                *self.counts.entry("containers made").or_default() += 1;
            }
            let after = machine.engine.running().count();
            self.note(&[30, id, before as u64, after as u64], || {
                format!(
                    "engine of n{id}: {:?} for {}: {outcome:?}",
                    doing.request, doing.replica
                )
            });
        }
        let refused = fails || matches!(outcome, Err(EngineError::Unreachable(_)));
        if refused && let Some(machine) = self.machines.get_mut(&id) {
            machine.engine.refused = Some(self.now);
        }
        if fails {
            outcome = Err(match kind {
                0 => EngineError::Unreachable("on purpose".into()),
                _ => EngineError::Api {
                    status: 500,
                    message: "on purpose".into(),
                },
            });
        }
        self.look_at(id);
        doing.outcome = Some(outcome);
        self.agenda
            .add(self.now, Event::Node(id, run, Local::Engine(doing)));
    }

    pub(super) fn engine_answered(&mut self, id: u64, mut doing: Doing) {
        let Some(outcome) = doing.outcome.take() else {
            return;
        };
        let replica = doing.replica.clone();
        let runtime = self.daemon(id).map(|daemon| &daemon.runtime);
        let tended = runtime.and_then(|runtime| runtime.replicas.get(&replica));
        // What an actor was doing ends with it, half-way or not.
        if doing.instance != 0 && tended.is_none_or(|t| t.instance != doing.instance) {
            return;
        }
        let done = outcome.clone().map(drop);
        let input = match doing.goal {
            Goal::Lookup(g) => Input::Found(g, self.listing(id, &replica, outcome)),
            Goal::Prepare(g) => Input::Prepared(g, done.map_err(PrepareError::Engine)),
            Goal::Pull(g) => Input::Pulled(g, done),
            Goal::Start(g) => Input::Started(g, done),
            Goal::Inspect(g) => Input::Inspected(
                g,
                outcome.and_then(|answer| match answer {
                    Answer::Inspected(seen) => Ok(seen),
                    _ => Err(EngineError::NotFound("no answer".into())),
                }),
            ),
            Goal::Launch(g) => match (&doing.request, outcome) {
                (Request::Create(_), Ok(Answer::Created(container))) => {
                    doing.request = Request::Start(container);
                    return self.ask_engine(id, doing);
                }
                (Request::Start(container), Ok(_)) => Input::Launched(g, Ok(container.clone())),
                (request, Err(error)) => {
                    if let Request::Start(container) = request {
                        self.ask_engine(
                            id,
                            Doing {
                                replica: replica.clone(),
                                instance: 0,
                                request: Request::Remove(container.clone()),
                                goal: Goal::Undo,
                                rest: Vec::new(),
                                outcome: None,
                            },
                        );
                    }
                    Input::Launched(g, Err(error))
                }
                (_, Ok(_)) => return,
            },
            Goal::Discard(g) => match (done, doing.rest.pop()) {
                (Ok(()), Some(next)) => {
                    doing.request = next;
                    return self.ask_engine(id, doing);
                }
                (done, _) => Input::Discarded(g, done),
            },
            Goal::Sweep(stretch) => return self.listed(id, stretch, outcome),
            Goal::Reclaim => match (done, doing.rest.pop()) {
                (Ok(()), Some(next)) => {
                    doing.request = next;
                    return self.ask_engine(id, doing);
                }
                (done, _) => return self.reclaimed(id, &doing, done.is_ok()),
            },
            Goal::Undo => return,
        };
        self.replica(id, &replica, input);
    }

    /// What a lookup shows the replica.
    fn listing(
        &mut self,
        id: u64,
        replica: &str,
        outcome: Result<Answer, EngineError>,
    ) -> Result<Vec<Found>, EngineError> {
        let blind = self.has(Mutation::AdoptAnyRow);
        let row = self
            .daemon(id)
            .and_then(|d| d.state.replicas_desired.get(replica).map(|r| r.raft_index));
        let mut found = match outcome? {
            Answer::Found(found) => found,
            _ => Vec::new(),
        };
        if blind {
            for found in &mut found {
                found.raft_index = row.or(found.raft_index);
            }
        }
        Ok(found)
    }

    fn replica_finished(&mut self, id: u64, replica: &str) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let host = machine.host.clone();
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        if !assignment::here(&daemon.state, &host).contains(replica) {
            daemon.runtime.replicas.remove(replica);
            self.look_again(id, 0);
        }
    }

    // ---- the sweep, and the way back ----

    /// Thirty seconds passed.
    pub(super) fn runtime_tick(&mut self, id: u64) {
        self.later(id, SWEEP, Local::Sweep);
        self.sweep(id);
        self.dispatch(id);
        self.say_again(id);
    }

    /// Whether the node is caught up may have changed.
    pub(super) fn caught_up_changed(&mut self, id: u64) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let current = daemon.control.is_current();
        let runtime = &mut daemon.runtime;
        if std::mem::replace(&mut runtime.current, current) == current {
            return;
        }
        runtime.stretch += 1;
        if !current {
            runtime.settled = false;
        }
        self.note(&[31, id, u64::from(current)], || {
            format!("n{id} has caught up: {current}")
        });
        self.sweep(id);
    }

    fn sweep(&mut self, id: u64) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let runtime = &mut daemon.runtime;
        if runtime.listing || !runtime.current || daemon.state.cluster.is_none() {
            return;
        }
        runtime.listing = true;
        let stretch = runtime.stretch;
        self.ask_engine(
            id,
            Doing {
                replica: String::new(),
                instance: 0,
                request: Request::List,
                goal: Goal::Sweep(stretch),
                rest: Vec::new(),
                outcome: None,
            },
        );
    }

    fn look_again(&mut self, id: u64, after: Time) {
        if let Some(daemon) = self.daemon(id)
            && !daemon.runtime.settled
        {
            self.later(id, after, Local::LookAgain);
        }
    }

    pub(super) fn looks_again(&mut self, id: u64) {
        if self.daemon(id).is_some_and(|d| !d.runtime.settled) {
            self.sweep(id);
        }
    }

    fn listed(&mut self, id: u64, stretch: u64, outcome: Result<Answer, EngineError>) {
        let keeps = self.has(Mutation::KeepMovedContainers);
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let host = machine.host.clone();
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let state = Arc::clone(&daemon.state);
        let runtime = &mut daemon.runtime;
        runtime.listing = false;
        if stretch != runtime.stretch {
            return self.sweep(id);
        }
        let Ok(Answer::Found(found)) = outcome else {
            return self.look_again(id, SECOND);
        };
        let here = assignment::here(&state, &host);
        let mut settles = false;
        if !runtime.settled && runtime.current {
            let wanted = |replica: &String| here.contains(replica);
            let clean = found.iter().flat_map(|f| &f.replica_id).all(wanted)
                && runtime.replicas.keys().all(wanted);
            settles = clean || keeps;
            runtime.settled = settles;
        }
        let mut orphans = Vec::new();
        for container in found {
            let replica = container.replica_id.unwrap_or_default();
            let tended = here.contains(&replica) || runtime.replicas.contains_key(&replica);
            if !tended && !keeps && runtime.reclaiming.insert(container.id.clone()) {
                orphans.push((replica, container.id));
            }
        }
        if settles {
            self.dispatch(id);
        } else {
            self.look_again(id, SECOND);
        }
        for (replica, container) in orphans {
            self.ask_engine(
                id,
                Doing {
                    replica,
                    instance: 0,
                    request: Request::Stop(container.clone()),
                    goal: Goal::Reclaim,
                    rest: vec![Request::Remove(container)],
                    outcome: None,
                },
            );
        }
    }

    fn reclaimed(&mut self, id: u64, doing: &Doing, done: bool) {
        if let Some(daemon) = self.daemon(id)
            && let Request::Stop(container) | Request::Remove(container) = &doing.request
        {
            daemon.runtime.reclaiming.remove(container);
        }
        self.look_again(id, if done { 0 } else { SECOND });
    }

    // ---- observations ----

    fn publish(&mut self, id: u64, replica: &str, report: &Report) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let (host, ts) = (machine.host.clone(), machine.clock.timestamp(now));
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let row = report.observed(replica, &host, ts);
        daemon.runtime.waiting.insert(replica.to_owned(), row);
        self.note(&[32, id, report.raft_index], || {
            format!("n{id} says of {replica}: {report:?}")
        });
        self.flush_reports(id);
    }

    fn flush_reports(&mut self, id: u64) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let ts = machine.clock.timestamp(now);
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let runtime = &mut daemon.runtime;
        if runtime.paused {
            return;
        }
        let (busy, rows): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut runtime.waiting)
            .into_iter()
            .partition(|(replica, _)| runtime.under_way.contains_key(replica));
        runtime.waiting = busy;
        runtime.under_way.extend(rows.clone());
        for (replica, row) in rows {
            let update = v1::ReplicaObservedUpdate { replica: Some(row) };
            let payload = Payload::ReplicaObservedUpdate(update);
            let command = command("runtime", ts, payload);
            self.submit(id, Who::Publisher(replica), Ask::Command(command));
        }
    }

    /// The observation of `replica` is written, or not.
    pub(super) fn published(&mut self, id: u64, replica: &str, reply: &Reply) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let runtime = &mut daemon.runtime;
        let Some(row) = runtime.under_way.remove(replica) else {
            return;
        };
        match reply {
            Reply::Done(_) | Reply::Rejected(_) => {}
            Reply::NotAppended | Reply::Unknown => {
                runtime.waiting.entry(row.id.clone()).or_insert(row);
                if !std::mem::replace(&mut runtime.paused, true) {
                    self.later(id, RETRY, Local::Publish);
                }
            }
        }
        self.flush_reports(id);
    }

    pub(super) fn publish_again(&mut self, id: u64) {
        if let Some(daemon) = self.daemon(id) {
            daemon.runtime.paused = false;
        }
        self.flush_reports(id);
    }

    /// Repeats reports that the state does not show.
    fn say_again(&mut self, id: u64) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let Some(daemon) = &machine.daemon else {
            return;
        };
        let state = &daemon.state;
        let unheard = daemon.runtime.replicas.iter().filter_map(|(id, tended)| {
            let row = state.replicas_desired.get(id)?;
            let report = tended.core.last_report()?;
            let known = state.replicas_observed.get(id);
            let unheard = if row.host == machine.host {
                let heard =
                    known.is_some_and(|k| Report::from(k.as_ref()).says_the_same_as(report));
                !heard && report.raft_index >= row.raft_index
            } else {
                let silent = known.is_none_or(|seen| seen.state() != ReplicaState::Running);
                row.previous_host == machine.host && report.state == ReplicaState::Running && silent
            };
            unheard.then(|| (id.clone(), report.clone()))
        });
        for (replica, report) in unheard.collect::<Vec<_>>() {
            self.publish(id, &replica, &report);
        }
    }

    /// The actor of one replica of node `id` crashes, and looks at the world when it is back.
    pub(super) fn kill_replica_actor(&mut self, id: u64) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let host = machine.host.clone();
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let tended: Vec<String> = daemon.runtime.replicas.keys().cloned().collect();
        let Some(replica) = self.engine_chance.choose(&tended) else {
            return;
        };
        daemon.runtime.replicas.remove(replica);
        let state = Arc::clone(&daemon.state);
        daemon.runtime.tend(&state, &host, replica.clone());
        self.note(&[34, id], || {
            format!("the actor of {replica} crashes on n{id}")
        });
        self.dispatch(id);
    }

    /// The publisher of node `id` crashes with all it held, and asks for it again.
    pub(super) fn kill_publisher(&mut self, id: u64) {
        self.note(&[35, id], || format!("the publisher crashes on n{id}"));
        if let Some(daemon) = self.daemon(id) {
            daemon.runtime.waiting.clear();
            daemon.runtime.under_way.clear();
            daemon.runtime.paused = false;
        }
        self.say_again(id);
    }

    /// One container of node `id` dies.
    pub(super) fn kill_container(&mut self, id: u64) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        if let Some(replica) = machine.engine.kill_one(&mut self.engine_chance) {
            self.note(&[33, id], || {
                format!("a container of {replica} dies on n{id}")
            });
            let after = self.engine_chance.within(MS..50 * MS);
            self.later(id, after, Local::Hint(replica));
        }
    }
}

/// What the cluster knew of the replica when its actor starts.
fn seed(state: &State, host: &str, replica: &str) -> Seed {
    let observed = state.replicas_observed.get(replica);
    let failures = state.restart_counters.get(replica);
    Seed {
        report: observed
            .filter(|row| row.host == host)
            .map(|row| Report::from(row.as_ref())),
        failures: failures
            .and_then(|counter| u32::try_from(counter.consecutive_failures).ok())
            .unwrap_or(0),
    }
}
