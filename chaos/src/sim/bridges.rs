//! The networks of one node: the bridge cores, driven as the production bridge actors drive them.
//!
//! A network is ensured in three steps: its block comes from the state or from the leader, the
//! engine creates the bridge, and the ruleset of this machine has to include the block. Only then
//! may a container join it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jaco_engine::{EngineError, cidr::Cidr, spec::networks};
use jaco_policy::{
    network::{
        bridge::{
            Removal,
            core::{Action, Core},
            members::needs_block,
            refused_blocks::{RefusedBlocks, is_address_conflict},
        },
        ipam::{SubnetKey, existing},
        names::NetworkId,
    },
    runtime::replica::core::PrepareError,
};
use jaco_state::State;

use super::{
    calls::{Change, Reply, Requester},
    cluster::{Cluster, Local},
    engine::{Answer, Request},
    mutation::Mutation,
    time::{SECOND, Time},
};

/// Number of the job that repairs a network.
const REPAIR: u64 = u64::MAX;
/// Blocks tried per job.
const MAX_BLOCK_ATTEMPTS: u32 = 4;
/// Time that a job waits for the isolation of its block.
const GATE_TIMEOUT: Time = 10 * SECOND;

/// The bridges of one daemon.
#[derive(Default)]
pub(super) struct Bridges {
    bridges: BTreeMap<NetworkId, Bridge>,
    refused: RefusedBlocks,
    jobs: u64,
}

struct Bridge {
    core: Core,
    /// Block in the state that the core knows.
    row: Option<Cidr>,
    /// Starts that wait for the next job.
    waiting: Vec<Waiter>,
    /// Starts that the current job answers.
    answering: Vec<Waiter>,
    job: Option<Job>,
    due: Option<Time>,
}

/// A start that is being prepared.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) replica: String,
    pub(super) instance: u64,
    pub(super) generation: u64,
    /// Networks that this start still has to wait for, the next one last.
    pub(super) missing: Vec<NetworkId>,
}

/// The attempt to ensure a network.
struct Job {
    number: u64,
    attempts: u32,
    /// Block of the bridge that is ready, while the job waits for its isolation.
    gated: Option<Cidr>,
}

/// Networks that the container of `replica` joins, in attach order.
pub(super) fn networks_of(
    state: &State,
    service: impl FnOnce(&Arc<jaco_proto::v1::Deployment>, &str) -> Option<Vec<String>>,
    replica: &str,
) -> Result<Vec<NetworkId>, PrepareError> {
    let retry = |why: &str| PrepareError::Retry(why.to_owned());
    let row = state.replicas_desired.get(replica);
    let row = row.ok_or_else(|| retry("the row is gone"))?;
    let deployment = state.deployments.get(&row.deployment);
    let deployment = deployment.ok_or_else(|| retry("the deployment is gone"))?;
    let names = service(deployment, &row.service).ok_or_else(|| retry("the service is gone"))?;
    let id = |name| NetworkId::new(&row.deployment, name);
    Ok(names.into_iter().map(id).collect())
}

fn key(host: &str, network: &NetworkId) -> SubnetKey {
    SubnetKey {
        deployment: network.deployment().to_owned(),
        network: network.network().to_owned(),
        host: host.to_owned(),
    }
}

impl Cluster {
    /// Networks of the row of `replica` on node `id`.
    pub(super) fn row_networks(
        &mut self,
        id: u64,
        replica: &str,
    ) -> Result<Vec<NetworkId>, PrepareError> {
        let gone = || PrepareError::Retry("the daemon is gone".to_owned());
        let daemon = self.daemon(id).ok_or_else(gone)?;
        let documents = &daemon.runtime.documents;
        let of_service = |deployment: &Arc<jaco_proto::v1::Deployment>, name: &str| {
            let project = documents.of(deployment);
            let service = project.as_ref().as_ref().ok()?.services.get(name)?.clone();
            let spec = deployment.services.iter().find(|spec| spec.name == name);
            Some(networks(spec, &service))
        };
        let networks = networks_of(&daemon.state, of_service, replica)?;
        Ok(self.scoped(networks))
    }

    /// Requests a network of node `id` for a start.
    pub(super) fn request_network(&mut self, id: u64, network: &NetworkId, waiter: Waiter) {
        if let Some(bridge) = self.start_bridge(id, network) {
            bridge.waiting.push(waiter);
            bridge.core.handle_request();
        }
        self.drive_bridge(id, network);
    }

    /// The bridge of a network on node `id`, started if there is none.
    fn start_bridge(&mut self, id: u64, network: &NetworkId) -> Option<&mut Bridge> {
        let machine = self.machines.get_mut(&id)?;
        let instant = machine.clock.instant(self.now);
        let daemon = machine.daemon.as_mut()?;
        let row = existing(&daemon.state, &key(&machine.host, network));
        let bridges = &mut daemon.bridges.bridges;
        Some(bridges.entry(network.clone()).or_insert_with(|| Bridge {
            core: Core::new(instant, row.is_some()),
            row,
            waiting: Vec::new(),
            answering: Vec::new(),
            job: None,
            due: None,
        }))
    }

    fn bridge(&mut self, id: u64, network: &NetworkId) -> Option<&mut Bridge> {
        self.daemon(id)?.bridges.bridges.get_mut(network)
    }

    /// The bridge whose current job is `number`.
    fn bridge_of_job(&mut self, id: u64, network: &NetworkId, number: u64) -> Option<&mut Bridge> {
        let bridge = self.bridge(id, network)?;
        let current = bridge.job.as_ref().is_some_and(|job| job.number == number);
        current.then_some(bridge)
    }

    /// Starts a bridge for each network that has a block on node `id` or exists in its engine, and
    /// reports to each whether it has a block.
    pub(super) fn observe_networks(&mut self, id: u64) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let (host, instant) = (machine.host.clone(), machine.clock.instant(self.now));
        let Some(daemon) = &machine.daemon else {
            return;
        };
        let state = Arc::clone(&daemon.state);
        let rows = state.subnets.keys().filter(|(.., row)| *row == host);
        let rows = rows.map(|(deployment, network, _)| NetworkId::new(deployment, network));
        let engine = machine.engine.networks().keys().cloned();
        let known = daemon.bridges.bridges.keys().cloned();
        let all: BTreeSet<NetworkId> = rows.chain(engine).chain(known).collect();
        for network in all {
            let row = existing(&state, &key(&host, &network));
            if let Some(bridge) = self.start_bridge(id, &network)
                && std::mem::replace(&mut bridge.row, row) != row
            {
                bridge.core.handle_row(instant, row.is_some());
            }
            self.drive_bridge(id, &network);
        }
    }

    /// Runs the actions of a bridge core, then schedules its deadline.
    fn drive_bridge(&mut self, id: u64, network: &NetworkId) {
        while let Some(action) = self
            .bridge(id, network)
            .and_then(|bridge| bridge.core.poll_action())
        {
            match action {
                Action::Ensure => self.begin_network(id, network),
                Action::Repair => self.repair_network(id, network),
                Action::Remove => {
                    self.ask_network(id, Request::RemoveNetwork(network.clone()), network, 0);
                }
                Action::Gone => self.stop_bridge(id, network),
            }
        }
        let now = self.now;
        let Some(clock) = self.machines.get(&id).map(|machine| machine.clock) else {
            return;
        };
        if let Some(bridge) = self.bridge(id, network) {
            let due = bridge.core.poll_timeout().map(|at| clock.time_of(now, at));
            if std::mem::replace(&mut bridge.due, due) != due
                && let Some(at) = due
            {
                self.schedule_local(id, at - now, Local::Bridge(network.clone()));
            }
        }
    }

    pub(super) fn bridge_due(&mut self, id: u64, network: &NetworkId) {
        let now = self.now;
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let instant = machine.clock.instant(now);
        if let Some(bridge) = self.bridge(id, network) {
            bridge.due = bridge.due.filter(|due| *due > now);
            bridge.core.handle_timeout(instant);
        }
        self.drive_bridge(id, network);
    }

    /// Ends a bridge without a network, unless a request or block needs it again.
    fn stop_bridge(&mut self, id: u64, network: &NetworkId) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let has_row = existing(&daemon.state, &key(&machine.host, network)).is_some();
        let bridges = &mut daemon.bridges.bridges;
        let idle = bridges
            .get(network)
            .is_some_and(|bridge| bridge.waiting.is_empty());
        if idle && !has_row {
            bridges.remove(network);
        }
    }

    fn begin_network(&mut self, id: u64, network: &NetworkId) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        daemon.bridges.jobs += 1;
        let number = daemon.bridges.jobs;
        if let Some(bridge) = self.bridge(id, network) {
            bridge.answering.append(&mut bridge.waiting);
            bridge.job = Some(Job {
                number,
                attempts: 0,
                gated: None,
            });
        }
        self.obtain_block(id, network, number);
    }

    /// Obtains the block: the leader is called only if the state does not show a usable one.
    fn obtain_block(&mut self, id: u64, network: &NetworkId, number: u64) {
        let Some(bridge) = self.bridge_of_job(id, network, number) else {
            return;
        };
        if let Some(job) = &mut bridge.job {
            job.attempts += 1;
            if job.attempts > MAX_BLOCK_ATTEMPTS {
                let why = "every block is in use on this host".to_owned();
                return self.network_ensured(id, network, Err(PrepareError::Retry(why)));
            }
        }
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let key = key(&machine.host, network);
        let Some(daemon) = &machine.daemon else {
            return;
        };
        let refused = daemon.bridges.refused.blocks();
        let usable = |cidr: &Cidr| !refused.iter().any(|refused| refused.overlaps(*cidr));
        match existing(&daemon.state, &key).filter(usable) {
            Some(cidr) => self.create_network(id, network, number, cidr),
            None => {
                let requester = Requester::Bridge(network.clone(), number);
                self.submit(id, requester, Change::Block(key, refused));
            }
        }
    }

    /// Handles the leader's answer about the block of a network.
    pub(super) fn block_given(&mut self, id: u64, network: &NetworkId, number: u64, reply: &Reply) {
        if self.bridge_of_job(id, network, number).is_none() {
            return;
        }
        let failed = match reply {
            Reply::Block(cidr) => return self.create_network(id, network, number, *cidr),
            Reply::Exhausted => PrepareError::PoolExhausted {
                network: network.network().to_owned(),
            },
            Reply::Done(_) | Reply::Rejected(_) | Reply::NotAppended | Reply::Unknown => {
                PrepareError::Retry(format!("no block: {reply:?}"))
            }
        };
        self.network_ensured(id, network, Err(failed));
    }

    fn create_network(&mut self, id: u64, network: &NetworkId, number: u64, cidr: Cidr) {
        let request = Request::EnsureNetwork(network.clone(), cidr);
        self.ask_network(id, request, network, number);
    }

    /// Creates the network of the block in the state, unless it is there.
    fn repair_network(&mut self, id: u64, network: &NetworkId) {
        let row = self.bridge(id, network).and_then(|bridge| bridge.row);
        match row {
            Some(cidr) => self.create_network(id, network, REPAIR, cidr),
            None => self.network_repaired(id, network, true),
        }
    }

    fn network_repaired(&mut self, id: u64, network: &NetworkId, succeeded: bool) {
        if let Some(instant) = self.machines.get(&id).map(|m| m.clock.instant(self.now))
            && let Some(bridge) = self.bridge(id, network)
        {
            bridge.core.handle_repaired(instant, succeeded);
            self.drive_bridge(id, network);
        }
    }

    fn needs_block(&self, id: u64, network: &NetworkId) -> bool {
        let Some(machine) = self.machines.get(&id) else {
            return false;
        };
        machine.daemon.as_ref().is_some_and(|daemon| {
            let documents = &daemon.runtime.documents;
            needs_block(&daemon.state, documents, &machine.host, network)
        })
    }

    /// Handles the engine's answer to a request of a bridge; `number` is 0 for a removal.
    pub(super) fn network_answered(
        &mut self,
        id: u64,
        (network, number): (&NetworkId, u64),
        call: &Request,
        outcome: Result<Answer, EngineError>,
    ) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let instant = machine.clock.instant(self.now);
        if number == 0 {
            let removal = match outcome {
                Ok(Answer::Removed(removal)) => Some(removal),
                Ok(_) | Err(_) => None,
            };
            if removal == Some(Removal::Gone) {
                self.count("networks removed");
                self.schedule_survey(id);
            }
            let needs_block = self.needs_block(id, network);
            if let Some(bridge) = self.bridge(id, network) {
                bridge.core.handle_removal(instant, removal, needs_block);
            }
            return self.drive_bridge(id, network);
        }
        if number == REPAIR {
            return self.network_repaired(id, network, outcome.is_ok());
        }
        let Request::EnsureNetwork(_, cidr) = call else {
            return;
        };
        if self.bridge_of_job(id, network, number).is_none() {
            return;
        }
        match outcome {
            Ok(_) => self.wait_isolated(id, network, number, *cidr),
            Err(error) if is_address_conflict(&error) => {
                if let Some(daemon) = self.daemon(id) {
                    daemon.bridges.refused.add(*cidr);
                }
                self.count("blocks refused");
                self.obtain_block(id, network, number);
            }
            Err(error) => {
                self.network_ensured(id, network, Err(PrepareError::Engine(error)));
            }
        }
    }

    /// Waits until the ruleset in the kernel of node `id` includes the block.
    fn wait_isolated(&mut self, id: u64, network: &NetworkId, number: u64, cidr: Cidr) {
        if self.is_isolated(id, network, cidr) {
            return self.network_ensured(id, network, Ok(()));
        }
        self.count("starts that waited for the ruleset");
        if let Some(job) = self.bridge(id, network).and_then(|b| b.job.as_mut()) {
            job.gated = Some(cidr);
        }
        self.schedule_local(id, GATE_TIMEOUT, Local::Gate(network.clone(), number));
        self.request_isolation(id, network, cidr);
    }

    /// Ends the wait of a job for the isolation of its block.
    pub(super) fn gate_timeout(&mut self, id: u64, network: &NetworkId, number: u64) {
        if self.bridge_of_job(id, network, number).is_some() {
            let why = "the isolation ruleset does not include the block yet".to_owned();
            self.network_ensured(id, network, Err(PrepareError::Retry(why)));
        }
    }

    /// Lets the jobs of node `id` go on whose blocks are isolated by now.
    pub(super) fn open_gates(&mut self, id: u64) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let bridges = daemon.bridges.bridges.iter();
        let gated = bridges.filter_map(|(network, bridge)| {
            let cidr = bridge.job.as_ref()?.gated?;
            Some((network.clone(), cidr))
        });
        for (network, cidr) in gated.collect::<Vec<_>>() {
            if self.is_isolated(id, &network, cidr) {
                self.network_ensured(id, &network, Ok(()));
            }
        }
    }

    /// Whether containers of a block may start on node `id`, with the planted bug if there is one.
    pub(super) fn is_isolated(&self, id: u64, network: &NetworkId, cidr: Cidr) -> bool {
        let machine = self.machines.get(&id);
        let daemon = machine.and_then(|machine| machine.daemon.as_ref());
        self.has(Mutation::StartBeforeRules)
            || daemon.is_some_and(|daemon| {
                let mesh = daemon.mesh.core.status();
                daemon.isolation.isolates(network, cidr) && mesh.is_protected()
            })
    }

    /// Ends the current job of a bridge.
    fn network_ensured(&mut self, id: u64, network: &NetworkId, result: Result<(), PrepareError>) {
        let Some(instant) = self.machines.get(&id).map(|m| m.clock.instant(self.now)) else {
            return;
        };
        let Some(bridge) = self.bridge(id, network) else {
            return;
        };
        bridge.job = None;
        bridge.core.handle_ensured(instant, result.is_ok());
        for waiter in std::mem::take(&mut bridge.answering) {
            self.network_ready(id, &waiter, result.clone());
        }
        self.drive_bridge(id, network);
    }

    /// Crashes the bridges of node `id`. Callers ask their successors again.
    pub(super) fn crash_bridges(&mut self, id: u64) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let ended = std::mem::take(&mut daemon.bridges.bridges);
        self.observe_networks(id);
        for (network, bridge) in ended {
            for waiter in bridge.answering.into_iter().chain(bridge.waiting) {
                self.request_network(id, &network, waiter);
            }
        }
    }
}
