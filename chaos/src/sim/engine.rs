//! A container engine that outlives its daemon, fails now and then, and loses answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use jaco_engine::{EngineError, Found, Inspected, Status, cidr::Cidr};
use jaco_policy::network::{bridge::Removal, names::NetworkId};

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
    /// Number of its starts.
    pub(super) starts: u64,
    pub(super) exit_code: i64,
    /// Networks that it joins.
    pub(super) networks: Vec<NetworkId>,
    /// Time of its last start.
    pub(super) started: Time,
    /// Whether it accepts connections.
    pub(super) is_open: bool,
    /// Its address in each network while it runs.
    pub(super) addresses: BTreeMap<NetworkId, Ipv4Addr>,
}

impl Container {
    /// Ends its process; it keeps no address.
    fn end(&mut self, exit_code: i64) {
        self.status = Status::Exited;
        self.exit_code = exit_code;
        self.is_open = false;
        self.addresses.clear();
    }
}

fn api(message: String) -> EngineError {
    EngineError::Api {
        status: 500,
        message,
    }
}

/// A request to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Find,
    List,
    /// Inspect, and connect to these ports.
    Inspect(String, BTreeSet<u16>),
    /// Create from the row of this index, in these networks.
    Create(u64, Vec<NetworkId>),
    Start(String),
    Stop(String),
    Remove(String),
    Pull,
    /// Ensure a network with this block.
    EnsureNetwork(NetworkId, Cidr),
    /// Remove a network unless a container is attached.
    RemoveNetwork(NetworkId),
}

/// An answer of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Found(Vec<Found>),
    /// The last are the ports that accepted a connection.
    Inspected(Inspected, BTreeSet<u16>),
    Created(String),
    /// Replicas whose containers were removed from a network with another block.
    Evicted(Vec<String>),
    Removed(Removal),
    Done,
}

/// The engine of one machine.
#[derive(Debug)]
pub(super) struct Engine {
    machine: u64,
    containers: BTreeMap<String, Container>,
    networks: BTreeMap<NetworkId, Cidr>,
    /// Image of the last pull of each replica, and those that are there.
    pulls: BTreeMap<String, String>,
    images: BTreeSet<String>,
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
            networks: BTreeMap::new(),
            pulls: BTreeMap::new(),
            images: BTreeSet::new(),
            made: 0,
            away: false,
            refused: None,
        }
    }

    pub(super) fn containers(&self) -> impl Iterator<Item = &Container> {
        self.containers.values()
    }

    /// Notes which image the pull that begins for a replica is for.
    pub(super) fn begin_pull(&mut self, replica: &str, image: &str) {
        self.pulls.insert(replica.to_owned(), image.to_owned());
    }

    pub(super) fn has_image(&self, image: &str) -> bool {
        self.images.contains(image)
    }

    pub(super) fn networks(&self) -> &BTreeMap<NetworkId, Cidr> {
        &self.networks
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
            Request::Inspect(id, ports) => {
                let container = self.get(id)?;
                let accepted = if container.is_open {
                    ports.clone()
                } else {
                    BTreeSet::new()
                };
                let seen = Inspected {
                    id: id.clone(),
                    status: Some(container.status),
                    started_at: container.starts.to_string(),
                    exit_code: container.exit_code,
                    oom_killed: false,
                    health: None,
                    namespace: Default::default(),
                    addresses: container
                        .addresses
                        .iter()
                        .map(|(network, address)| (network.engine_name(), address.to_string()))
                        .collect(),
                };
                Ok(Answer::Inspected(seen, accepted))
            }
            Request::Create(raft_index, networks) => self.create(replica, *raft_index, networks),
            Request::Start(id) => self.start(id),
            Request::Stop(id) => {
                if let Some(container) = self.containers.get_mut(id) {
                    container.end(1);
                }
                Ok(Answer::Done)
            }
            Request::Remove(id) => {
                self.containers.remove(id);
                Ok(Answer::Done)
            }
            Request::Pull => {
                self.images.extend(self.pulls.get(replica).cloned());
                Ok(Answer::Done)
            }
            Request::EnsureNetwork(network, cidr) => self.ensure_network(network, *cidr),
            Request::RemoveNetwork(network) => Ok(Answer::Removed(self.remove_network(network))),
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
    fn create(
        &mut self,
        replica: &str,
        raft_index: u64,
        networks: &[NetworkId],
    ) -> Result<Answer, EngineError> {
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
            starts: 0,
            exit_code: 0,
            networks: networks.to_vec(),
            started: 0,
            is_open: false,
            addresses: BTreeMap::new(),
        };
        self.containers.insert(id.clone(), container);
        Ok(Answer::Created(id))
    }

    /// Starts a container; it gets the lowest free address of each of its networks.
    fn start(&mut self, id: &str) -> Result<Answer, EngineError> {
        let container = self.get(id)?.clone();
        if container.status == Status::Running {
            return Ok(Answer::Done);
        }
        let mut addresses = BTreeMap::new();
        for network in container.networks {
            let Some(cidr) = self.networks.get(&network) else {
                return Err(api(format!("network {network} not found")));
            };
            let used = self.containers().filter_map(|c| c.addresses.get(&network));
            let used: BTreeSet<Ipv4Addr> = used.copied().collect();
            let base = u32::from(cidr.gateway());
            let free = (base + 1..base + 250).map(Ipv4Addr::from);
            let free = { free }.find(|address| !used.contains(address));
            let free = free.ok_or_else(|| api("no address left".to_owned()))?;
            addresses.insert(network, free);
        }
        let container = self.get(id)?;
        (container.status, container.addresses) = (Status::Running, addresses);
        container.starts += 1;
        container.is_open = false;
        Ok(Answer::Done)
    }

    /// Notes the time of a start; returns the container if it runs.
    pub(super) fn note_start(&mut self, id: &str, now: Time) -> Option<&Container> {
        let container = self.containers.get_mut(id)?;
        if container.status != Status::Running {
            return None;
        }
        container.started = now;
        Some(container)
    }

    /// Lets this start of a container accept connections, if it runs.
    pub(super) fn open(&mut self, id: &str, start: u64) {
        if let Some(container) = self.containers.get_mut(id)
            && container.status == Status::Running
            && container.starts == start
        {
            container.is_open = true;
        }
    }

    /// Creates a network. One with another block goes first, with its containers.
    fn ensure_network(&mut self, network: &NetworkId, cidr: Cidr) -> Result<Answer, EngineError> {
        if self.networks.get(network) == Some(&cidr) {
            return Ok(Answer::Done);
        }
        let mut evicted = Vec::new();
        self.containers.retain(|_, container| {
            let attached = container.networks.contains(network);
            if attached {
                evicted.push(container.replica.clone());
            }
            !attached
        });
        self.networks.remove(network);
        if self.networks.values().any(|other| other.overlaps(cidr)) {
            let message = "Pool overlaps with other one on this address space".to_owned();
            return Err(api(message));
        }
        self.networks.insert(network.clone(), cidr);
        Ok(Answer::Evicted(evicted))
    }

    fn remove_network(&mut self, network: &NetworkId) -> Removal {
        if self.containers().any(|c| c.networks.contains(network)) {
            return Removal::InUse;
        }
        self.networks.remove(network);
        Removal::Gone
    }

    /// Ends the process of one running container; returns its replica.
    pub(super) fn kill_one(&mut self, chance: &mut Rng) -> Option<String> {
        let running: Vec<String> = self.running().map(|c| c.id.clone()).collect();
        let id = chance.choose(&running)?;
        let container = self.containers.get_mut(id)?;
        container.end(1);
        Some(container.replica.clone())
    }

    /// Ends the process of this start of a container with exit code 0, if it runs; returns its replica.
    pub(super) fn exit(&mut self, id: &str, start: u64, exit_code: i64) -> Option<String> {
        let container = self.containers.get_mut(id)?;
        if container.status != Status::Running || container.starts != start {
            return None;
        }
        container.end(exit_code);
        Some(container.replica.clone())
    }

    /// Stops all containers, as a power cut does.
    pub(super) fn power_cut(&mut self) {
        for container in self.containers.values_mut() {
            if container.status == Status::Running {
                container.end(1);
            }
        }
    }
}

/// Duration of a request.
pub(super) fn latency(request: &Request, chance: &mut Rng) -> Time {
    match request {
        Request::Find | Request::List | Request::Inspect(..) => chance.within(MS..20 * MS),
        Request::Create(..) => chance.within(30 * MS..400 * MS),
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
        Request::EnsureNetwork(..) | Request::RemoveNetwork(_) => chance.within(5 * MS..200 * MS),
    }
}
