//! A container engine that outlives its daemon, fails now and then, and loses answers.

use std::collections::BTreeMap;

use jaco_engine::{EngineError, Found, Inspected, Status};

use super::time::{MS, SECOND, Time};
use crate::Rng;

/// Time that a container is given to stop by itself.
pub(super) const GRACE: Time = 10 * SECOND;

/// A container.
#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) replica: String,
    /// Index of the row it was made from, from its label.
    pub(super) raft_index: u64,
    pub(super) status: Status,
    address: u64,
}

/// A request to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Find,
    List,
    Inspect(String),
    /// Create from the row of this index.
    Create(u64),
    Start(String),
    Stop(String),
    Remove(String),
    Pull,
    /// Create networks and volumes.
    Prepare,
}

/// An answer of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Found(Vec<Found>),
    Inspected(Inspected),
    Created(String),
    Done,
}

/// The engine of one machine.
#[derive(Debug)]
pub(super) struct Engine {
    machine: u64,
    containers: BTreeMap<String, Container>,
    made: u64,
    /// Whether the engine is unreachable.
    pub(super) away: bool,
    /// Time of the last failed request.
    pub(super) refused: Option<Time>,
}

impl Engine {
    pub(super) fn new(machine: u64) -> Self {
        Self {
            machine,
            containers: BTreeMap::new(),
            made: 0,
            away: false,
            refused: None,
        }
    }

    pub(super) fn containers(&self) -> impl Iterator<Item = &Container> {
        self.containers.values()
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Container> {
        let running = |container: &&Container| container.status == Status::Running;
        self.containers().filter(running)
    }

    /// Performs a request for `replica`.
    pub(super) fn perform(
        &mut self,
        replica: &str,
        request: &Request,
    ) -> Result<Answer, EngineError> {
        if self.away {
            return Err(EngineError::Unreachable("the engine is away".into()));
        }
        match request {
            Request::Find => Ok(Answer::Found(self.list(|c| c.replica == replica))),
            Request::List => Ok(Answer::Found(self.list(|_| true))),
            Request::Inspect(id) => {
                let container = self.get(id)?;
                Ok(Answer::Inspected(Inspected {
                    id: id.clone(),
                    status: Some(container.status),
                    exit_code: i64::from(container.status == Status::Exited),
                    oom_killed: false,
                    health: None,
                    addresses: [("jaco".to_owned(), format!("10.0.0.{}", container.address))]
                        .into(),
                }))
            }
            Request::Create(raft_index) => self.create(replica, *raft_index),
            Request::Start(id) => {
                self.get(id)?.status = Status::Running;
                Ok(Answer::Done)
            }
            Request::Stop(id) => {
                if let Some(container) = self.containers.get_mut(id) {
                    container.status = Status::Exited;
                }
                Ok(Answer::Done)
            }
            Request::Remove(id) => {
                self.containers.remove(id);
                Ok(Answer::Done)
            }
            Request::Pull | Request::Prepare => Ok(Answer::Done),
        }
    }

    fn list(&self, wanted: impl Fn(&Container) -> bool) -> Vec<Found> {
        let found = |container: &Container| Found {
            id: container.id.clone(),
            replica_id: Some(container.replica.clone()),
            raft_index: Some(container.raft_index),
            status: container.status,
        };
        self.containers().filter(|c| wanted(c)).map(found).collect()
    }

    fn get(&mut self, id: &str) -> Result<&mut Container, EngineError> {
        let missing = || EngineError::NotFound(format!("no container {id}"));
        self.containers.get_mut(id).ok_or_else(missing)
    }

    /// The container name is derived from the replica, so a second one conflicts.
    fn create(&mut self, replica: &str, raft_index: u64) -> Result<Answer, EngineError> {
        if self.containers().any(|c| c.replica == replica) {
            return Err(EngineError::Conflict("the name is in use".into()));
        }
        self.made += 1;
        let id = format!("m{}c{}", self.machine, self.made);
        let container = Container {
            id: id.clone(),
            replica: replica.to_owned(),
            raft_index,
            status: Status::Created,
            address: self.made % 250 + 2,
        };
        self.containers.insert(id.clone(), container);
        Ok(Answer::Created(id))
    }

    /// Ends the process of one running container; returns its replica.
    pub(super) fn kill_one(&mut self, chance: &mut Rng) -> Option<String> {
        let running: Vec<String> = self.running().map(|c| c.id.clone()).collect();
        let id = chance.choose(&running)?;
        let container = self.containers.get_mut(id)?;
        container.status = Status::Exited;
        Some(container.replica.clone())
    }

    /// Stops all containers, as a power cut does.
    pub(super) fn power_cut(&mut self) {
        for container in self.containers.values_mut() {
            if container.status == Status::Running {
                container.status = Status::Exited;
            }
        }
    }
}

/// Duration of a request.
pub(super) fn latency(request: &Request, chance: &mut Rng) -> Time {
    match request {
        Request::Find | Request::List | Request::Inspect(_) => chance.within(MS..20 * MS),
        Request::Create(_) => chance.within(30 * MS..400 * MS),
        Request::Start(_) => chance.within(30 * MS..300 * MS),
        // One container in four uses its whole grace.
        Request::Stop(_) => match chance.within(0..4) {
            0 => GRACE,
            _ => chance.within(20 * MS..1_000 * MS),
        },
        Request::Remove(_) => chance.within(20 * MS..200 * MS),
        // One pull in twelve is slow.
        Request::Pull => match chance.within(0..12) {
            0 => chance.within(3 * SECOND..30 * SECOND),
            _ => chance.within(100 * MS..3 * SECOND),
        },
        Request::Prepare => chance.within(5 * MS..200 * MS),
    }
}
