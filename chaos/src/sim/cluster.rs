//! The simulated cluster: machines, the network between them, and the event loop.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
    time::{Instant, SystemTime},
};

use jaco_policy::network::{firewall::local::LocalNetworks, names::NetworkId};
use jaco_raftnode::{Role, core::Ticket};
use raft::eraftpb::{ConfState, Message};

use super::{
    authority::Authority,
    boot::bootstrap_state,
    calls::{Change, Reply},
    client::Clients,
    disk::{Crash, Disk},
    drains::Drains,
    engine::Engine,
    fault::{BenignFault, Fault, IssuerFault, Often, Promise, StartStep, Victim},
    flows::Flows,
    isolation::FirewallStep,
    issuance::Unserved,
    kernel::Kernel,
    mesh::MeshStep,
    mutation::Mutation,
    network::Network,
    node::Daemon,
    oracle::{Oracle, hash},
    orders::OrderStep,
    orphan_check::Orphans,
    outage::Outage,
    ports::Astray,
    reachability::Reachability,
    routing::{WithdrawalWait, Withdrawals},
    runtime::EngineRequest,
    time::{Agenda, Clock, MS, SECOND, Time, Wake},
    trace::Trace,
};
use crate::Rng;

/// A machine: the parts that survive its daemon.
pub(super) struct Machine {
    /// Raft id.
    pub(super) id: u64,
    pub(super) host: String,
    pub(super) clock: Clock,
    pub(super) disk: Rc<RefCell<Disk>>,
    pub(super) engine: Engine,
    pub(super) kernel: Kernel,
    pub(super) daemon: Option<Daemon>,
    /// Number of the last daemon, unique in the simulation.
    pub(super) run: u64,
    /// Number of the last daemon that ended with a power cut.
    pub(super) cut_run: u64,
    pub(super) paused_until: Time,
    /// Time after a pause until the actors other than those of replicas handle what has waited.
    pub(super) late_wake: Time,
    /// Additional time of every write to its disk.
    pub(super) slow: Time,
    /// Time until which no write to its disk ends.
    pub(super) stalled_until: Time,
    /// The machine was removed from the cluster and never comes back.
    pub(super) removed: bool,
}

/// An event of the simulation.
#[derive(Debug)]
pub(super) enum Event {
    /// A daemon starts.
    Start(u64),
    /// An event within one run of one daemon; deferred while the daemon is paused.
    Node(u64, u64, Local),
    /// A raft message arrives.
    Raft(Box<Message>),
    /// A request from another node arrives.
    Call {
        from: u64,
        to: u64,
        call: u64,
        change: Box<Change>,
    },
    /// The reply to a call arrives.
    Reply { to: u64, call: u64, reply: Reply },
    /// A heartbeat of another node arrives.
    Heartbeat(u64, Heartbeat),
    /// A client retries an operation.
    Retry(u64),
    /// The engine of this machine carries out a request.
    Engine(u64, u64, Box<EngineRequest>),
    /// This start of a container of this machine ends by itself.
    JobEnds(u64, String, u64),
    /// This start of a container of this machine ends with a failure.
    Dies(u64, String, u64),
    /// This start of a container of this machine begins to accept connections.
    PortOpens(u64, String, u64),
    /// A client begins its next operation.
    Client(usize),
    /// A fault begins.
    Fault(usize),
    /// A fault ends.
    FaultOver(usize),
    /// A trap springs: the node crashes, and restarts after the given time.
    TrapSprung(u64, Crash, Time),
    /// Membership has changed.
    Members,
    /// Periodic check of all machines.
    Audit,
}

/// Heartbeat that a node sends to every other one each two seconds.
#[derive(Clone, Debug)]
pub(super) struct Heartbeat {
    pub(super) from: u64,
    pub(super) sent: Time,
    pub(super) leads: bool,
    pub(super) term: u64,
    /// Hosts whose heartbeats a leader receives; empty from other nodes.
    pub(super) receives_from: BTreeSet<String>,
}

/// An event within one daemon.
#[derive(Debug)]
pub(super) enum Local {
    /// Raft's tick, which also drives node health.
    Tick,
    /// The write under way is done.
    Written,
    /// The write of this number has taken very long, unless it has ended.
    Stalled(u64),
    /// Writes that were held back are done.
    Flush,
    /// The actors look at the newest state.
    Notification,
    /// The scheduler's deadline.
    Schedule,
    /// An observation may be written again.
    Publish,
    /// The runtime's thirty-second tick.
    Sweep,
    /// A replica's deadline.
    Due(String),
    /// The engine emitted an event about a replica.
    EngineEvent(String),
    /// The deadline of the routing.
    Routing,
    /// An actor looks whether its container is withdrawn from routing.
    Withdrawal(WithdrawalWait),
    /// The deadline of the certificates.
    CertificatesDue,
    /// The authority answers the order of a domain with this number, or its token is looked for.
    Order(String, u64),
    /// The addresses of a domain were checked in this attempt.
    Preflighted(String, u64),
    /// The engine's answer to a request.
    Engine(Box<EngineRequest>),
    /// A call to another node times out.
    CallTimeout(u64),
    /// The requester of a proposal waits no longer.
    ProposalDue(Ticket),
    /// A raft message could not be delivered.
    Unreachable(u64),
    /// The membership policy runs.
    Membership,
    /// A heartbeat is due.
    Heartbeat,
    /// A runtime that still has orphans lists containers again.
    SweepAgain,
    /// A bridge's deadline.
    Bridge(NetworkId),
    /// A bridge's job waits no longer for the isolation of its block.
    Gate(NetworkId, u64),
    /// The firewall's deadline.
    FirewallDue,
    /// The kernel's answer to an instance of the firewall.
    Firewall(u64, FirewallStep),
    /// The mesh's deadline.
    MeshDue,
    /// The kernel's answer to an instance of the mesh.
    Mesh(u64, MeshStep),
    /// The kernel announces a change.
    KernelChanged,
    /// The networks of the engine are surveyed.
    Survey,
    /// The networks that a survey found.
    Surveyed(std::sync::Arc<LocalNetworks>),
}

/// Parameters of one run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) mutation: Option<Mutation>,
    /// The only disturbance of the run; marking a node offline because of it is a violation.
    pub(super) benign_fault: Option<BenignFault>,
    /// Faults that are frequent, if any.
    pub(super) often: Option<Often>,
    /// Time in which faults are injected.
    pub(super) fault_window: Time,
    pub(super) faults: Vec<Fault>,
}

pub(super) struct Cluster {
    pub(super) now: Time,
    pub(super) plan: Plan,
    pub(super) agenda: Agenda<Event>,
    pub(super) machines: BTreeMap<u64, Machine>,
    pub(super) network: Network,
    pub(super) oracle: Oracle,
    pub(super) clients: Clients,
    pub(super) trace: Trace,
    pub(super) disk_chance: Rng,
    pub(super) engine_chance: Rng,
    pub(super) kernel_chance: Rng,
    pub(super) chance: Rng,
    /// Share of requests to engines that fail, in thousandths, by fault.
    pub(super) engine_errors: BTreeMap<usize, u64>,
    /// Ticks between heartbeats, and of the shortest election timeout. In some runs they are so
    /// short that elections collide.
    pub(super) ticks: (usize, usize),
    /// Occurrences of noteworthy events, by name, to prove that runs exercise them.
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) withdrawals: Withdrawals,
    /// Armed traps: the next node that makes a promise of this kind crashes.
    pub(super) traps: BTreeMap<usize, (Promise, Crash, Time)>,
    /// Armed pauses, by fault: the next daemon that begins this step of a start is paused for this
    /// time.
    pub(super) start_pauses: BTreeMap<usize, (StartStep, Time)>,
    pub(super) authority: Authority,
    /// Whether a first certificate is ordered from staging before.
    pub(super) stages_first: bool,
    /// Armed faults of issuers: the next node that takes this step of an order suffers one.
    pub(super) issuer_faults: BTreeMap<usize, (OrderStep, IssuerFault, Time)>,
    pub(super) unserved: Unserved,
    /// Outage of the authority of an hour, if the run has one.
    pub(super) outage: Option<Outage>,
    pub(super) astray: Astray,
    /// Log entries after which the log is compacted.
    pub(super) compact_entries: u64,
    pub(super) calls: u64,
    /// Number of members from which on no further machine joins.
    pub(super) max_members: usize,
    pub(super) orphans: Orphans,
    pub(super) drains: Drains,
    pub(super) reachability: Reachability,
    pub(super) flows: Flows,
    /// Faults have stopped.
    pub(super) faults_over: bool,
    pub(super) steps: u64,
    zero: Instant,
    /// Daemons ever started.
    pub(super) runs: u64,
    /// Faults with a duration that are in force, by number, and the machine that each affects; 0
    /// for all.
    pub(super) in_force: BTreeMap<usize, u64>,
}

impl Cluster {
    pub(super) fn new(plan: Plan, trace: Trace) -> Self {
        let seed = plan.seed;
        let stream = |name: &str| Rng::new(seed ^ hash(name.as_bytes()));
        let mut chance = stream("world");
        let members = *chance
            .choose(&[1, 1, 3, 3, 3, 3, 3, 3, 5, 5, 5, 5, 7])
            .unwrap_or(&3);
        // A leader whose disk stalls keeps its leadership only if it is alone.
        let members = match plan.often {
            Some(Often::Stalls | Often::Contention) => *chance.choose(&[1, 1, 3]).unwrap_or(&1),
            Some(Often::Issuance) => *chance.choose(&[1, 3, 3, 3]).unwrap_or(&3),
            _ => members,
        };
        let bootstrap_state = bootstrap_state(members);
        let mut certificate_chance = stream("certificates");
        let zero = Instant::now();
        let mut cluster = Self {
            now: 0,
            agenda: Agenda::new(),
            machines: BTreeMap::new(),
            network: Network::new(stream("network")),
            oracle: Oracle::new(bootstrap_state.clone(), plan.mutation),
            clients: Clients::new(stream("clients"), plan.often == Some(Often::Contention)),
            trace,
            disk_chance: stream("disks"),
            engine_chance: stream("engines"),
            kernel_chance: stream("kernels"),
            engine_errors: BTreeMap::new(),
            compact_entries: *chance.choose(&[24, 80, 200]).unwrap_or(&80),
            ticks: (3, 10),
            counts: BTreeMap::new(),
            withdrawals: Withdrawals::new(),
            traps: BTreeMap::new(),
            start_pauses: BTreeMap::new(),
            stages_first: certificate_chance.within(0..4) > 0,
            authority: Authority::new(certificate_chance, plan.often == Some(Often::Issuance)),
            issuer_faults: BTreeMap::new(),
            unserved: Unserved::new(),
            outage: Outage::of(&plan),
            astray: Astray::new(),
            calls: 0,
            max_members: *chance.choose(&[6, 7, 9]).unwrap_or(&7),
            orphans: Orphans::default(),
            drains: Drains::default(),
            reachability: Reachability::default(),
            flows: Flows::default(),
            faults_over: false,
            steps: 0,
            zero,
            runs: 0,
            in_force: BTreeMap::new(),
            chance,
            plan,
        };
        match cluster.chance.within(0..6) {
            0 => {
                cluster.ticks = (1, 3);
                cluster.network.base_delay = cluster.chance.within(0..300 * MS);
            }
            // No leadership lasts long.
            1 => {
                cluster.ticks = (1, 2);
                cluster.network.base_delay = cluster.chance.within(100 * MS..600 * MS);
            }
            _ => {}
        }
        if cluster.outage.is_some() {
            cluster.authority.expect_outage();
        }
        if orders_certificates(&cluster.plan) {
            cluster
                .clients
                .ask_for_certificates(cluster.awaits_certificates());
        }
        cluster.network.base_loss = *cluster.chance.choose(&[0, 0, 1, 10]).unwrap_or(&0);
        if cluster.plan.benign_fault.is_some() {
            cluster.oracle.nothing_moves = true;
            cluster.ticks = (3, 10);
            cluster.network.base_delay = 0;
            cluster.network.base_loss = 0;
        }
        let conf_state = ConfState {
            voters: (1..=members).collect(),
            ..ConfState::default()
        };
        for id in 1..=members {
            let disk = Disk::bootstrapped(&bootstrap_state, conf_state.clone());
            cluster.add_machine(id, disk);
        }
        for client in 0..cluster.clients.count() {
            let at = cluster.chance.within(0..SECOND);
            cluster.agenda.add(at, Event::Client(client));
        }
        for (number, fault) in cluster.plan.faults.iter().enumerate() {
            cluster.agenda.add(fault.at, Event::Fault(number));
        }
        cluster.agenda.add(SECOND, Event::Audit);
        cluster
    }

    /// Adds a machine; its daemon starts at once.
    pub(super) fn add_machine(&mut self, id: u64, disk: Disk) {
        let drift = self.chance.within(0..2_001).cast_signed() - 1_000;
        let skew = match self.chance.within(0..3) {
            0 => self.chance.within(0..120 * SECOND).cast_signed() - 60 * SECOND.cast_signed(),
            _ => self.chance.within(0..20 * MS).cast_signed(),
        };
        let machine = Machine {
            id,
            host: format!("n{id}"),
            clock: Clock::new(self.zero, drift, skew),
            disk: Rc::new(RefCell::new(disk)),
            engine: Engine::new(id),
            kernel: Kernel::default(),
            daemon: None,
            run: 0,
            cut_run: 0,
            paused_until: 0,
            late_wake: 0,
            slow: 0,
            stalled_until: 0,
            removed: false,
        };
        self.machines.insert(id, machine);
        self.agenda.add(self.now, Event::Start(id));
    }

    /// Handles one event; `false` if the queue is empty.
    pub(super) fn step(&mut self) -> bool {
        let Some((at, event)) = self.agenda.next() else {
            return false;
        };
        self.now = at;
        self.steps += 1;
        self.handle(event);
        true
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Start(id) => self.start(id),
            Event::Node(id, run, local) => self.handle_local(id, run, local),
            Event::Raft(message) => {
                let id = message.to;
                if let Some(until) = self.deferred(id) {
                    return self.agenda.add(until, Event::Raft(message));
                }
                self.deliver(*message);
            }
            Event::Call {
                from,
                to,
                call,
                change,
            } => {
                if let Some(until) = self.deferred(to) {
                    let event = Event::Call {
                        from,
                        to,
                        call,
                        change,
                    };
                    return self.agenda.add(until, event);
                }
                self.handle_call(from, to, call, *change);
            }
            Event::Reply { to, call, reply } => {
                if let Some(until) = self.deferred(to) {
                    return self.agenda.add(until, Event::Reply { to, call, reply });
                }
                self.handle_reply(to, call, reply);
            }
            Event::Heartbeat(to, heartbeat) => {
                if let Some(until) = self.deferred(to) {
                    return self.agenda.add(until, Event::Heartbeat(to, heartbeat));
                }
                self.handle_heartbeat(to, heartbeat);
            }
            Event::Retry(op) => self.retry(op),
            Event::Engine(id, run, request) => self.engine(id, run, *request),
            Event::JobEnds(id, container, start) => self.end_job(id, &container, start),
            Event::Dies(id, container, start) => self.end_bad_container(id, &container, start),
            Event::PortOpens(id, container, start) => self.open_port(id, &container, start),
            Event::Client(client) => self.client(client),
            Event::Fault(number) => self.inject(number),
            Event::FaultOver(number) => self.end_fault(number),
            Event::TrapSprung(id, crash, span) => {
                self.crash(id, crash);
                self.agenda.add(self.now + span, Event::Start(id));
            }
            Event::Members => {
                self.stop_removed();
                self.start_joined();
            }
            Event::Audit => {
                self.audit();
                self.agenda.add(self.now + SECOND, Event::Audit);
            }
        }
    }

    fn handle_local(&mut self, id: u64, run: u64, local: Local) {
        let current = self.machines.get(&id);
        if current.is_none_or(|m| m.run != run || m.daemon.is_none()) {
            return;
        }
        let until = match local {
            Local::Engine(_) | Local::EngineEvent(_) | Local::Due(_) => self.paused(id),
            _ => self.deferred(id),
        };
        if let Some(until) = until {
            // Ticks that a stopped process missed are not made up for.
            return self.agenda.add(until, Event::Node(id, run, local));
        }
        match local {
            Local::Tick => self.tick(id),
            Local::Written => self.written(id),
            Local::Stalled(write) => self.stalled(id, write),
            Local::Flush => self.flush(id),
            Local::Notification => self.handle_notification(id),
            Local::Schedule => self.schedule_due(id),
            Local::Publish => self.publish_again(id),
            Local::Sweep => self.runtime_tick(id),
            Local::Due(replica) => self.replica_due(id, &replica),
            Local::EngineEvent(replica) => self.replica_engine_event(id, &replica),
            Local::Routing => self.routing_due(id),
            Local::Withdrawal(wait) => self.withdrawal(id, wait),
            Local::CertificatesDue => self.certificates_due(id),
            Local::Order(domain, number) => self.order_event(id, &domain, number),
            Local::Preflighted(domain, attempt) => self.preflighted(id, &domain, attempt),
            Local::Engine(request) => self.engine_answered(id, *request),
            Local::CallTimeout(call) => self.call_timeout(id, call),
            Local::ProposalDue(ticket) => self.proposal_due(id, ticket),
            Local::Unreachable(peer) => self.unreachable(id, peer),
            Local::Membership => self.membership(id),
            Local::Heartbeat => self.send_heartbeat(id),
            Local::SweepAgain => self.sweep_again(id),
            Local::Bridge(network) => self.bridge_due(id, &network),
            Local::Gate(network, job) => self.gate_timeout(id, &network, job),
            Local::FirewallDue => self.firewall_due(id),
            Local::Firewall(instance, step) => self.firewall_step(id, instance, step),
            Local::MeshDue => self.mesh_due(id),
            Local::Mesh(instance, step) => self.mesh_step(id, instance, step),
            Local::KernelChanged => self.kernel_changed(id),
            Local::Survey => self.survey(id),
            Local::Surveyed(local) => self.surveyed(id, local),
        }
    }

    /// Time until which the daemon of `id` is paused.
    fn paused(&self, id: u64) -> Option<Time> {
        let until = self.machines.get(&id)?.paused_until;
        (until > self.now).then_some(until)
    }

    /// Time until which an event for an actor that may wake late waits, if the daemon of `id` is
    /// paused.
    fn deferred(&self, id: u64) -> Option<Time> {
        let late = self.machines.get(&id)?.late_wake;
        self.paused(id).map(|until| until + late)
    }

    /// Schedules an event within the daemon that runs on `id` now.
    pub(super) fn schedule_local(&mut self, id: u64, after: Time, local: Local) {
        if let Some(machine) = self.machines.get(&id) {
            let at = self.now + after;
            self.agenda.add(at, Event::Node(id, machine.run, local));
        }
    }

    /// Schedules `local` for the deadline of a core of node `id`, if it has one, unless the wake that
    /// `wake` selects is due earlier.
    pub(super) fn schedule_wake(
        &mut self,
        id: u64,
        deadline: Option<Instant>,
        wake: impl FnOnce(&mut Daemon) -> &mut Wake,
        local: Local,
    ) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let clock = machine.clock;
        if let (Some(deadline), Some(daemon)) = (deadline, &mut machine.daemon) {
            let at = clock.time_of(now, deadline);
            if wake(daemon).must_schedule(at) {
                self.schedule_local(id, at - now, local);
            }
        }
    }

    pub(super) fn daemon(&mut self, id: u64) -> Option<&mut Daemon> {
        self.machines.get_mut(&id)?.daemon.as_mut()
    }

    /// The daemon of `id`, if it is up, and its machine's monotonic clock.
    pub(super) fn running(&mut self, id: u64) -> Option<(Instant, &mut Daemon)> {
        let machine = self.machines.get_mut(&id)?;
        let instant = machine.clock.instant(self.now);
        Some((instant, machine.daemon.as_mut()?))
    }

    /// The time that a right wall clock shows.
    pub(super) fn true_wall(&self) -> SystemTime {
        Clock::new(self.zero, 0, 0).wall(self.now)
    }

    /// Whether the run is not at rest before certificates have landed.
    pub(super) fn awaits_certificates(&self) -> bool {
        self.plan.often == Some(Often::Issuance)
    }

    pub(super) fn has(&self, mutation: Mutation) -> bool {
        self.plan.mutation == Some(mutation)
    }

    /// Raft ids of the members by the newest committed state.
    pub(super) fn members(&self) -> Vec<u64> {
        let nodes = self.oracle.newest().nodes.values();
        let mut ids: Vec<u64> = nodes.map(|node| node.raft_id).collect();
        ids.sort_unstable();
        ids.retain(|id| self.machines.get(id).is_some_and(|m| !m.removed));
        ids
    }

    pub(super) fn find(&self, victim: Victim) -> Option<u64> {
        let members = self.members();
        match victim {
            Victim::Leader => self.leader().or(members.first().copied()),
            Victim::Newest => members.last().copied(),
            Victim::Member(at) => members
                .get(usize::try_from(at).ok()? % members.len().max(1))
                .copied(),
        }
    }

    /// The leader of the highest term.
    pub(super) fn leader(&self) -> Option<u64> {
        let leading = self.machines.values().filter_map(|machine| {
            let status = machine.daemon.as_ref()?.core.status();
            (status.role == Role::Leader).then_some((status.term, machine.id))
        });
        leading.max().map(|(_, id)| id)
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(super) fn note(&mut self, numbers: &[u64], text: impl FnOnce() -> String) {
        self.trace.note(self.now, numbers, text);
    }
}

/// Whether routes ask for certificates: in one run of four, and where issuance is looked at.
pub(super) fn orders_certificates(plan: &Plan) -> bool {
    let drawn = Rng::new(plan.seed ^ hash(b"routes")).within(0..4) == 0;
    plan.often == Some(Often::Issuance) || plan.often.is_none() && drawn
}

/// Raft inputs not handled yet, in order.
pub(super) type Inbox = VecDeque<super::node::Input>;
