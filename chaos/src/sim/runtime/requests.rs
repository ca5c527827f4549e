//! Requests to a node's engine, and their answers.

use std::collections::BTreeSet;

use jaco_engine::{EngineError, Found, Status};
use jaco_policy::runtime::replica::core::{StartCondition, StartError};

use super::{EngineRequest, Goal};
use crate::sim::{
    cluster::{Cluster, Event, Local},
    engine::{Answer, Request, latency},
    mutation::Mutation,
    oracle::CreatedContainer,
    time::MS,
};

impl Cluster {
    pub(super) fn ask_engine(&mut self, id: u64, request: EngineRequest) {
        let Some(run) = self.machines.get(&id).map(|machine| machine.run) else {
            return;
        };
        // A running container gets its signal now, and ends within its grace, also if the daemon is gone.
        if let (Goal::Discard(_), Request::Stop(container)) = (&request.goal, &request.call)
            && let Some(machine) = self.machines.get(&id)
            && machine.engine.running().any(|it| it.id == *container)
        {
            self.judge_stop(id, &request.replica, container);
            self.judge_image(id, &request.replica, container);
        }
        if request.call == Request::Pull {
            self.begin_pull(id, &request.replica);
        }
        let takes = latency(&request.call, &mut self.engine_chance);
        let event = Event::Engine(id, run, Box::new(request));
        self.agenda.add(self.now + takes, event);
    }

    /// Performs a request on the engine, even if the daemon that made it has ended.
    pub(in crate::sim) fn engine(&mut self, id: u64, run: u64, mut request: EngineRequest) {
        let share = self.engine_errors.values().max().copied().unwrap_or(0);
        let fails = self.engine_chance.within(0..1000) < share;
        let (late, kind) = (
            self.engine_chance.within(0..2),
            self.engine_chance.within(0..2),
        );
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        // A power cut loses requests on their way to the engine.
        if machine.daemon.is_none() && machine.run == 0 && self.engine_chance.within(0..2) == 0 {
            return;
        }
        // No process that was started before a power cut is left after it.
        if run <= machine.cut_run && matches!(request.call, Request::Start(_)) {
            return;
        }
        let mut outcome = Err(EngineError::Api {
            status: 500,
            message: "on purpose".into(),
        });
        if !fails || late == 1 {
            let before = machine.engine.running().count();
            outcome = machine.engine.perform(&request.replica, &request.call);
            if let (Ok(Answer::Created(container)), Request::Create(raft_index, _)) =
                (&outcome, &request.call)
            {
                let created = CreatedContainer {
                    replica: request.replica.clone(),
                    host: machine.host.clone(),
                    raft_index: *raft_index,
                };
                self.oracle.check_created(container, created);
                *self.counts.entry("containers made").or_default() += 1;
            }
            let after = machine.engine.running().count();
            self.note(&[30, id, before as u64, after as u64], || {
                format!(
                    "engine of n{id}: {:?} for {}: {outcome:?}",
                    request.call, request.replica
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
        self.update_orphans(id);
        if let Ok(Answer::Evicted(replicas)) = &outcome {
            for replica in replicas {
                self.schedule_local(id, MS, Local::EngineEvent(replica.clone()));
            }
        }
        if let (Request::Start(container), true) = (&request.call, !fails || late == 1) {
            self.schedule_end(id, container);
            self.schedule_opening(id, container);
            self.schedule_death(id, container);
        }
        match request.call {
            Request::Start(_) | Request::EnsureNetwork(..) | Request::RemoveNetwork(_) => {
                self.judge(id);
            }
            _ => {}
        }
        request.outcome = Some(outcome);
        self.agenda.add(
            self.now,
            Event::Node(id, run, Local::Engine(Box::new(request))),
        );
    }

    pub(in crate::sim) fn engine_answered(&mut self, id: u64, mut request: EngineRequest) {
        let Some(outcome) = request.outcome.take() else {
            return;
        };
        let replica = request.replica.clone();
        let runtime = self.daemon(id).map(|daemon| &daemon.runtime);
        let actor = runtime.and_then(|runtime| runtime.replicas.get(&replica));
        // The requests of an actor end with it, even half-way through a sequence.
        if request.instance != 0 && actor.is_none_or(|t| t.instance != request.instance) {
            return;
        }
        let done = outcome.clone().map(drop);
        match request.goal {
            Goal::Inspect(_) | Goal::Sweep(_) | Goal::Reclaim | Goal::Undo | Goal::Network(..) => {}
            Goal::Lookup(_)
            | Goal::Pull(_)
            | Goal::Launch(..)
            | Goal::Start(_)
            | Goal::Discard(_) => self.refresh(id, &replica),
        }
        match request.goal {
            Goal::Lookup(g) => {
                let found = self.listing(id, &replica, outcome);
                let running = |found: &&Found| found.status == Status::Running;
                for found in found.iter().flatten().filter(running) {
                    self.note_ran(id, &replica, &found.id);
                }
                self.drive_replica(id, &replica, |core, now| core.handle_found(now, g, found));
            }
            Goal::Pull(g) => {
                self.drive_replica(id, &replica, |core, now| core.handle_pulled(now, g, done));
            }
            Goal::Start(g) => {
                if let (Ok(()), Request::Start(container)) = (&done, &request.call) {
                    self.note_ran(id, &replica, container);
                }
                let started = done.map_err(StartError::Engine);
                self.drive_replica(id, &replica, |core, now| {
                    core.handle_started(now, g, started)
                });
            }
            Goal::Inspect(g) => {
                let mut open = BTreeSet::new();
                let seen = outcome.and_then(|answer| match answer {
                    Answer::Inspected(seen, accepted) => {
                        open = accepted;
                        Ok(seen)
                    }
                    _ => Err(EngineError::NotFound("no answer".into())),
                });
                if let Ok(seen) = &seen
                    && seen.status == Some(Status::Running)
                {
                    self.note_ran(id, &replica, &seen.id);
                }
                let is_seen = seen.is_ok();
                self.drive_replica(id, &replica, |core, now| {
                    core.handle_inspected(now, g, seen, open);
                });
                if is_seen {
                    self.show_report(id, &replica);
                }
            }
            Goal::Launch(g, condition) => {
                self.launch_answered(id, request, (g, condition), outcome);
            }
            Goal::Discard(g) => match (done, request.rest.pop()) {
                (Ok(()), Some(next)) => {
                    request.call = next;
                    self.ask_engine(id, request);
                }
                (done, _) => {
                    self.drive_replica(id, &replica, |core, now| {
                        core.handle_discarded(now, g, done);
                    });
                }
            },
            Goal::Sweep(contact) => self.listed(id, contact, outcome),
            Goal::Reclaim => match (done, request.rest.pop()) {
                (Ok(()), Some(next)) => {
                    request.call = next;
                    self.ask_engine(id, request);
                }
                (done, _) => self.reclaimed(id, &request, done.is_ok()),
            },
            Goal::Undo => {}
            Goal::Network(network, job) => {
                self.network_answered(id, (&network, job), &request.call, outcome);
            }
        }
    }

    /// Handles the answer to one of the two requests of a launch: create, then start.
    fn launch_answered(
        &mut self,
        id: u64,
        mut request: EngineRequest,
        (generation, condition): (u64, StartCondition),
        outcome: Result<Answer, EngineError>,
    ) {
        let replica = request.replica.clone();
        let launched = match (&request.call, outcome) {
            (Request::Create(..), Ok(Answer::Created(container))) => {
                if self.existing_start_holds(id, &replica, condition) {
                    self.check_existing_start(id, &replica, &container);
                    request.call = Request::Start(container);
                    return self.ask_engine(id, request);
                }
                self.undo_create(id, &replica, container);
                Err(StartError::Revoked)
            }
            (Request::Start(container), Ok(_)) => {
                self.note_ran(id, &replica, container);
                Ok(container.clone())
            }
            (call, Err(error)) => {
                if let Request::Start(container) = call {
                    self.undo_create(id, &replica, container.clone());
                }
                Err(StartError::Engine(error))
            }
            (_, Ok(_)) => return,
        };
        self.drive_replica(id, &replica, |core, now| {
            core.handle_launched(now, generation, launched);
        });
    }

    /// Removes the container of a launch that cannot go on.
    fn undo_create(&mut self, id: u64, replica: &str, container: String) {
        self.ask_engine(
            id,
            EngineRequest {
                replica: replica.to_owned(),
                instance: 0,
                call: Request::Remove(container),
                goal: Goal::Undo,
                rest: Vec::new(),
                outcome: None,
            },
        );
    }

    /// The listing that a lookup returns to the replica.
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
}
