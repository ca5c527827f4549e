//! The containers of one node: the replica cores, driven as the production manager, replica actor
//! and publisher drive them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jaco_engine::EngineError;
use jaco_policy::{
    health::fencing::ContactEpoch,
    network::names::NetworkId,
    runtime::{
        assignment,
        documents::Documents,
        publisher,
        replica::{
            core::{
                Action, Assignment, Core, Now, PrepareError, Seed, StartCondition, StartError,
                StartGate,
            },
            readiness::Readiness,
            report::Report,
        },
    },
};
use jaco_state::State;

use super::{
    bridges::Waiter,
    cluster::{Cluster, Local},
    documents,
    engine::{Answer, Request},
    fault::StartStep,
    mutation::Mutation,
    routing::WithdrawalWait,
    time::{MS, SECOND, Time},
};

mod reports;
mod requests;
mod sweep;

/// Period of the sweep, which lists containers to find those without a row.
pub(super) const SWEEP: Time = 30 * SECOND;

/// A request to the engine, and its purpose.
#[derive(Clone, Debug)]
pub(super) struct EngineRequest {
    pub(super) replica: String,
    /// Instance of the actor that made the request; 0 if none.
    instance: u64,
    call: Request,
    goal: Goal,
    /// Requests that follow it, last first.
    rest: Vec<Request>,
    outcome: Option<Result<Answer, EngineError>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Goal {
    Lookup(u64),
    Pull(u64),
    /// Create, then start.
    Launch(u64, StartCondition),
    Start(u64),
    Inspect(u64),
    /// Stop and remove one after the other.
    Discard(u64),
    /// List for the sweep, in this contact with the cluster.
    Sweep(ContactEpoch),
    /// Stop and remove a container without a row.
    Reclaim,
    /// Remove the container of a failed launch.
    Undo,
    /// Ensure a network for the job of this number, or remove it if that is 0.
    Network(NetworkId, u64),
}

struct Replica {
    core: Core,
    instance: u64,
    /// Row index that the next create uses.
    prepared: u64,
    /// Networks that the next create uses.
    networks: Vec<NetworkId>,
    /// Rows of which the actor has seen a container run.
    ran: BTreeSet<u64>,
    due: Option<Time>,
}

/// The runtime of one daemon.
pub(super) struct Runtime {
    replicas: BTreeMap<String, Replica>,
    instances: u64,
    pub(super) documents: Documents,
    publisher: publisher::Core,
    publisher_due: Option<Time>,
    /// Contact with the cluster, as of the last event of the fencing.
    contact: Option<ContactEpoch>,
    /// Last contact in which every container of a moved row was gone.
    cleared: Option<ContactEpoch>,
    listing: bool,
    reclaiming: BTreeSet<String>,
}

impl Runtime {
    pub(super) fn new(_state: &Arc<State>) -> Self {
        Self {
            replicas: BTreeMap::new(),
            instances: 0,
            documents: Documents::reading_with(documents::project),
            publisher: publisher::Core::default(),
            publisher_due: None,
            contact: None,
            cleared: None,
            listing: false,
            reclaiming: BTreeSet::new(),
        }
    }

    /// Starts the actor of a replica unless there is one.
    fn ensure_actor(&mut self, state: &State, host: &str, replica: String) {
        let instances = &mut self.instances;
        self.replicas.entry(replica).or_insert_with_key(|replica| {
            *instances += 1;
            Replica {
                core: Core::new(host, seed(state, host, replica), true),
                instance: *instances,
                prepared: 0,
                networks: Vec::new(),
                ran: BTreeSet::new(),
                due: None,
            }
        });
    }

    /// Whether, in this contact with the cluster, every container of a moved row is gone.
    pub(super) fn orphans_cleared(&self, contact: Option<ContactEpoch>) -> bool {
        contact.is_some() && self.cleared == contact
    }

    /// Whether the replica has an actor.
    pub(super) fn has_actor(&self, replica: &str) -> bool {
        self.replicas.contains_key(replica)
    }

    /// Whether the image of a replica is pulled while its former container serves.
    pub(super) fn pulls_ahead(&self, replica: &str) -> bool {
        let actor = self.replicas.get(replica);
        actor.is_some_and(|actor| actor.core.pulls_ahead())
    }

    /// Whether no observation waits to be written.
    pub(super) fn is_quiet(&self) -> bool {
        self.publisher.is_idle()
    }
}

impl Cluster {
    /// Assigns rows to replica actors after a change of the state.
    pub(super) fn reconcile(&mut self, id: u64) {
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
            runtime.ensure_actor(&state, &host, replica);
        }
        let replicas: Vec<String> = runtime.replicas.keys().cloned().collect();
        let assignments: Vec<(String, Assignment)> = replicas
            .into_iter()
            .filter_map(|replica| {
                let wanted = self.assignment(id, &replica)?;
                Some((replica, wanted))
            })
            .collect();
        for (replica, wanted) in assignments {
            if matches!(wanted, Assignment::Kept { .. }) {
                self.count("containers kept for a move");
            }
            self.drive_replica(id, &replica, |core, _| core.handle_assignment(wanted));
        }
    }

    /// Contact of node `id` with the cluster at this moment.
    fn contact(&self, id: u64) -> Option<ContactEpoch> {
        let machine = self.machines.get(&id)?;
        let control = &machine.daemon.as_ref()?.control;
        control.fencing.contact(machine.clock.instant(self.now))
    }

    /// Assignment of a replica on node `id` at this moment, with the planted bug if there is one.
    fn assignment(&self, id: u64, replica: &str) -> Option<Assignment> {
        let machine = self.machines.get(&id)?;
        let daemon = machine.daemon.as_ref()?;
        let (state, runtime) = (&daemon.state, &daemon.runtime);
        state.cluster.as_ref()?;
        let mut wanted = assignment::of(state, &runtime.documents, &machine.host, replica);
        if let Assignment::Own(wanted) = &mut wanted
            && !runtime.orphans_cleared(self.contact(id))
        {
            wanted.gate = StartGate::NotCaughtUp;
        }
        if let Some(mutation) = self.plan.mutation {
            mutation.patch_assignment(state, replica, &mut wanted);
            mutation.patch_readiness(&mut wanted);
            mutation.patch_pull(&mut wanted);
        }
        if self.has(Mutation::KeepMovedContainers) && wanted == Assignment::Gone {
            wanted = Assignment::Kept {
                readiness: Readiness::Unknown,
            };
        }
        Some(wanted)
    }

    /// Reports the assignment of this moment before an event on which the core may decide a start.
    fn refresh(&mut self, id: u64, replica: &str) {
        if let Some(wanted) = self.assignment(id, replica) {
            self.drive_replica(id, replica, |core, _| core.handle_assignment(wanted));
        }
    }

    /// Whether a container that exists may still be started, with the planted bug if there is one.
    fn existing_start_holds(&self, id: u64, replica: &str, condition: StartCondition) -> bool {
        self.has(Mutation::StartUnchecked) || self.start_holds(id, replica, condition)
    }

    /// Whether a start that the core decided may still be made.
    fn start_holds(&self, id: u64, replica: &str, condition: StartCondition) -> bool {
        let wanted = self.assignment(id, replica);
        wanted.is_some_and(|wanted| condition.holds(&wanted))
    }

    /// Reports an event to the core of a replica and performs its actions.
    fn drive_replica(&mut self, id: u64, replica: &str, handle: impl FnOnce(&mut Core, Now)) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let clock = machine.clock;
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let Some(actor) = daemon.runtime.replicas.get_mut(replica) else {
            return;
        };
        let point = Now {
            instant: clock.instant(now),
            wall: clock.wall(now),
        };
        handle(&mut actor.core, point);
        while let Some(action) = self.actor(id, replica).and_then(|a| a.core.poll_action()) {
            self.act(id, replica, action);
        }
        if let Some(actor) = self.actor(id, replica) {
            let due = actor.core.poll_timeout().map(|at| clock.time_of(now, at));
            if due != actor.due {
                actor.due = due;
                if let Some(at) = due {
                    self.schedule_local(id, at - now, Local::Due(replica.to_owned()));
                }
            }
        }
    }

    fn actor(&mut self, id: u64, replica: &str) -> Option<&mut Replica> {
        let daemon = self.daemon(id)?;
        daemon.runtime.replicas.get_mut(replica)
    }

    pub(super) fn replica_due(&mut self, id: u64, replica: &str) {
        let now = self.now;
        if let Some(actor) = self.actor(id, replica)
            && actor.due.is_some_and(|due| due <= now)
        {
            actor.due = None;
            self.refresh(id, replica);
            self.drive_replica(id, replica, Core::handle_timeout);
        }
    }

    /// Handles that the container of a replica is withdrawn from routing.
    pub(super) fn withdrawn(&mut self, id: u64, wait: &WithdrawalWait) {
        let actor = self.actor(id, &wait.replica);
        if actor.is_some_and(|actor| actor.instance == wait.instance) {
            self.refresh(id, &wait.replica);
            self.drive_replica(id, &wait.replica, |core, _| {
                core.handle_withdrawn(wait.generation);
            });
        }
    }

    pub(super) fn replica_engine_event(&mut self, id: u64, replica: &str) {
        self.drive_replica(id, replica, |core, _| core.handle_engine_event());
    }

    fn act(&mut self, id: u64, replica: &str, action: Action) {
        let state = self.daemon(id).map(|daemon| Arc::clone(&daemon.state));
        if let (Some(state), Action::Prepare(_)) = (&state, &action) {
            self.oracle.check_prepared(state, replica);
        }
        let row = state.and_then(|s| s.replicas_desired.get(replica).map(|r| r.raft_index));
        let actor = self.actor(id, replica);
        let instance = actor.as_ref().map_or(0, |actor| actor.instance);
        let mut rest = Vec::new();
        let (call, goal) = match action {
            Action::Lookup(g) => (Request::Find, Goal::Lookup(g)),
            Action::Prepare(g) => {
                // The create uses the row that was read when it was prepared.
                if let Some(actor) = actor {
                    actor.prepared = row.unwrap_or(0);
                }
                return self.prepare(id, replica, g);
            }
            Action::Pull(g) => {
                self.spring_start_pause(id, StartStep::Pull);
                (Request::Pull, Goal::Pull(g))
            }
            Action::Launch(g, condition) => {
                let prepared = actor.as_ref().map_or(0, |actor| actor.prepared);
                let networks = actor.map_or_else(Vec::new, |actor| actor.networks.clone());
                if !self.start_holds(id, replica, condition) {
                    let revoked = Err(StartError::Revoked);
                    return self.drive_replica(id, replica, |core, now| {
                        core.handle_launched(now, g, revoked);
                    });
                }
                self.check_start(id, replica, prepared);
                self.spring_start_pause(id, StartStep::Create);
                (
                    Request::Create(prepared, networks),
                    Goal::Launch(g, condition),
                )
            }
            Action::Start(g, container, condition) => {
                if !self.existing_start_holds(id, replica, condition) {
                    let revoked = Err(StartError::Revoked);
                    return self.drive_replica(id, replica, |core, now| {
                        core.handle_started(now, g, revoked);
                    });
                }
                self.check_existing_start(id, replica, &container);
                (Request::Start(container), Goal::Start(g))
            }
            Action::Inspect(g, container, ports) => {
                (Request::Inspect(container, ports), Goal::Inspect(g))
            }
            // No service has such commands.
            Action::PostStart(g, _) => {
                return self.drive_replica(id, replica, |core, now| {
                    core.handle_post_started(now, g, Ok(()));
                });
            }
            Action::Withdraw(g) => return self.withdraw(id, replica, instance, g),
            Action::Discard(g, containers) => {
                for container in containers.into_iter().rev() {
                    rest.push(Request::Remove(container.clone()));
                    rest.push(Request::Stop(container));
                }
                let first = rest.pop().unwrap_or(Request::Find);
                (first, Goal::Discard(g))
            }
            // The outcome of a cancelled request is ignored, because its generation is outdated.
            Action::Cancel => return,
            Action::Publish(report) => return self.publish(id, replica, &report),
            Action::Finished => return self.replica_finished(id, replica),
        };
        self.ask_engine(
            id,
            EngineRequest {
                replica: replica.to_owned(),
                instance,
                call,
                goal,
                rest,
                outcome: None,
            },
        );
    }

    /// Begins to ensure the networks of a replica's row.
    fn prepare(&mut self, id: u64, replica: &str, generation: u64) {
        let networks = self.row_networks(id, replica);
        let Some(actor) = self.actor(id, replica) else {
            return;
        };
        let mut waiter = Waiter {
            replica: replica.to_owned(),
            instance: actor.instance,
            generation,
            missing: Vec::new(),
        };
        match networks {
            Ok(networks) => {
                waiter.missing = networks.iter().rev().cloned().collect();
                actor.networks = networks;
                self.prepare_next(id, waiter);
            }
            Err(error) => self.prepared(id, &waiter, Err(error)),
        }
    }

    fn prepare_next(&mut self, id: u64, mut waiter: Waiter) {
        match waiter.missing.pop() {
            Some(network) => self.request_network(id, &network, waiter),
            None => self.prepared(id, &waiter, Ok(())),
        }
    }

    /// Handles that a network of a start is ready, or why it is not.
    pub(super) fn network_ready(
        &mut self,
        id: u64,
        waiter: &Waiter,
        result: Result<(), PrepareError>,
    ) {
        let actor = self.actor(id, &waiter.replica);
        if actor.is_none_or(|actor| actor.instance != waiter.instance) {
            return;
        }
        match result {
            Ok(()) => self.prepare_next(id, waiter.clone()),
            failed @ Err(_) => self.prepared(id, waiter, failed),
        }
    }

    fn prepared(&mut self, id: u64, waiter: &Waiter, result: Result<(), PrepareError>) {
        self.refresh(id, &waiter.replica);
        self.drive_replica(id, &waiter.replica, |core, now| {
            core.handle_prepared(now, waiter.generation, result);
        });
    }

    /// Sends a request of a bridge to the engine; `job` is 0 for a removal.
    pub(super) fn ask_network(&mut self, id: u64, call: Request, network: &NetworkId, job: u64) {
        self.ask_engine(
            id,
            EngineRequest {
                replica: String::new(),
                instance: 0,
                call,
                goal: Goal::Network(network.clone(), job),
                rest: Vec::new(),
                outcome: None,
            },
        );
    }

    /// Like [`Cluster::check_start`], for a container that exists.
    fn check_existing_start(&mut self, id: u64, replica: &str, container: &str) {
        if let Some(raft_index) = self.oracle.row_of(container) {
            self.check_start(id, replica, raft_index);
        }
    }

    /// Records that the actor of `replica` has seen `container` run.
    fn note_ran(&mut self, id: u64, replica: &str, container: &str) {
        let raft_index = self.oracle.row_of(container);
        if let (Some(raft_index), Some(actor)) = (raft_index, self.actor(id, replica)) {
            actor.ran.insert(raft_index);
        }
    }

    /// Checks that a container of row `raft_index`, about to be made or started, may start: while
    /// the node is out of touch the row may run elsewhere by now, unless it has run under this very
    /// actor, which restarts it.
    fn check_start(&mut self, id: u64, replica: &str, raft_index: u64) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let contact = self.contact(id);
        let Some(daemon) = &machine.daemon else {
            return;
        };
        self.oracle.check_job_start(replica, raft_index);
        let orphans_cleared = daemon.runtime.orphans_cleared(contact);
        let actor = daemon.runtime.replicas.get(replica);
        let restarts = actor.is_some_and(|actor| actor.ran.contains(&raft_index));
        let host = &machine.host;
        // The node's own view may be from before a pause.
        let in_touch = self.orphans.contacts.in_touch(id, machine.run, self.now);
        let informed = in_touch && orphans_cleared;
        if !informed && !restarts {
            let what = format!(
                "{host} is out of touch and starts row {raft_index} of {replica}; \
                 in touch by its own view: {orphans_cleared}"
            );
            self.oracle.violate("starts wait for the cluster", what);
        }
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
            self.report_locally(id, |reports| {
                reports.remove(replica);
            });
            self.schedule_sweep(id, 0);
        }
    }

    /// Crashes the actor of one replica of node `id`; its successor looks up its containers anew.
    pub(super) fn kill_replica_actor(&mut self, id: u64) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let host = machine.host.clone();
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let actors: Vec<String> = daemon.runtime.replicas.keys().cloned().collect();
        let Some(replica) = self.engine_chance.choose(&actors) else {
            return;
        };
        daemon.runtime.replicas.remove(replica);
        let state = Arc::clone(&daemon.state);
        daemon.runtime.ensure_actor(&state, &host, replica.clone());
        self.note(&[34, id], || {
            format!("the actor of {replica} crashes on n{id}")
        });
        self.reconcile(id);
    }

    /// Crashes the publisher of node `id`: its queue is lost, and replica actors report again.
    pub(super) fn kill_publisher(&mut self, id: u64) {
        self.note(&[35, id], || format!("the publisher crashes on n{id}"));
        if let Some(daemon) = self.daemon(id) {
            daemon.runtime.publisher = publisher::Core::default();
            daemon.runtime.publisher_due = None;
        }
        self.republish(id);
    }

    /// Kills one container of node `id`.
    pub(super) fn kill_container(&mut self, id: u64) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        if let Some(replica) = machine.engine.kill_one(&mut self.engine_chance) {
            self.note(&[33, id], || {
                format!("a container of {replica} dies on n{id}")
            });
            let after = self.engine_chance.within(MS..50 * MS);
            self.schedule_local(id, after, Local::EngineEvent(replica));
        }
    }
}

/// The state that a replica's actor starts from: its last report and its failure count.
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
