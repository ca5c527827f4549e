//! The world: machines, what connects them, and the loop that lets time pass.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
    sync::Arc,
    time::Instant,
};

use jaco_proto::v1::{self, NodeStatus, command::Payload};
use jaco_raftnode::{
    Role, State, batch, command,
    core::{Config, RaftCore},
};
use raft::eraftpb::{ConfState, Message};

use super::{
    calls::{Ask, Reply, Who},
    client::Clients,
    disk::{Crash, Disk, View},
    engine::Engine,
    fault::{Actor, Fault, Nuisance, Promise, Victim, What},
    mutation::Mutation,
    network::{Network, Trouble},
    node::Daemon,
    oracle::{Oracle, hash},
    overstay::Overstays,
    runtime::{Doing, SWEEP},
    time::{Agenda, Clock, MS, SECOND, Time},
    trace::Trace,
};
use crate::Rng;

/// A machine: what survives its daemon.
pub(super) struct Machine {
    /// Raft id.
    pub(super) id: u64,
    pub(super) host: String,
    pub(super) clock: Clock,
    pub(super) disk: Rc<RefCell<Disk>>,
    pub(super) engine: Engine,
    pub(super) daemon: Option<Daemon>,
    /// Number of the last daemon, unique in the world.
    pub(super) run: u64,
    pub(super) paused_until: Time,
    /// Additional time of every write.
    pub(super) slow: Time,
    /// It is no member any more and never comes back.
    pub(super) removed: bool,
}

/// Something that happens.
#[derive(Debug)]
pub(super) enum Event {
    /// A daemon starts.
    Start(u64),
    /// For one run of one daemon; waits while the daemon is paused.
    Node(u64, u64, Local),
    /// A raft message arrives.
    Raft(Box<Message>),
    /// Another node asks something.
    Ask {
        from: u64,
        to: u64,
        call: u64,
        ask: Box<Ask>,
    },
    /// It has answered.
    Answer {
        to: u64,
        call: u64,
        reply: Reply,
    },
    /// A node is alive.
    Beat(u64, Heartbeat),
    /// A client tries again.
    Retry(u64),
    /// A request to the engine of this machine is carried out.
    Engine(u64, u64, Doing),
    /// A client does its next thing.
    Client(usize),
    /// A fault begins, or ends.
    Fault(usize),
    FaultOver(usize),
    /// A node goes down at the worst moment, and comes back after a while.
    Sprung(u64, Crash, Time),
    /// Who belongs to the cluster has changed.
    Members,
    /// A look at everything.
    Audit,
}

/// What a node tells the others every two seconds.
#[derive(Clone, Debug)]
pub(super) struct Heartbeat {
    pub(super) from: u64,
    pub(super) leads: bool,
    pub(super) term: u64,
    /// Whom a leader hears.
    pub(super) hears: BTreeSet<String>,
}

/// Something that happens within one daemon.
#[derive(Debug)]
pub(super) enum Local {
    /// Raft's clock, and everything else that ticks.
    Tick,
    /// The write under way is done.
    Written,
    /// Writes that were held back are done.
    Flush,
    /// The actors hear of the newest state.
    Notice,
    /// The scheduler's deadline.
    Schedule,
    /// An observation may be written again.
    Publish,
    /// Thirty seconds passed for the runtime.
    Sweep,
    /// A replica's deadline.
    Due(String),
    /// The engine tells something about a replica.
    Hint(String),
    /// What the engine answered.
    Engine(Doing),
    /// A call to another node is taken for lost.
    CallTimeout(u64),
    /// A raft message could not be delivered.
    Unreachable(u64),
    /// The membership policy is asked.
    Membership,
    /// A heartbeat is due.
    Beat,
    /// A runtime that has not settled looks for what has to go.
    LookAgain,
}

/// What one run is made of.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) mutation: Option<Mutation>,
    /// There is nothing but this, and whoever is taken for dead because of it is not.
    pub(super) nuisance: Option<Nuisance>,
    /// Time in which faults happen.
    pub(super) storm: Time,
    pub(super) faults: Vec<Fault>,
}

pub(super) struct World {
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
    pub(super) chance: Rng,
    /// Share of requests to engines that fail, in thousandths, by fault.
    pub(super) engine_errors: BTreeMap<usize, u64>,
    /// Ticks between heartbeats, and of the shortest election timeout. Some worlds are so
    /// impatient that their elections collide.
    ticks: (usize, usize),
    /// What came about, by name, to see that runs are about something.
    pub(super) counts: BTreeMap<&'static str, u64>,
    /// Promises that bring down whoever makes the next one of the kind.
    pub(super) traps: BTreeMap<usize, (Promise, Crash, Time)>,
    /// Entries after which a log is compacted.
    pub(super) compact_entries: u64,
    pub(super) calls: u64,
    /// Members that ask to be let in, beyond which nobody does.
    pub(super) most_members: usize,
    pub(super) overstays: Overstays,
    /// Faults have stopped.
    pub(super) calm: bool,
    pub(super) steps: u64,
    zero: Instant,
    runs: u64,
    /// Faults in force that last, by number, and the machine that each strikes; 0 for all.
    in_force: BTreeMap<usize, u64>,
}

impl World {
    pub(super) fn new(plan: Plan, trace: Trace) -> Self {
        let seed = plan.seed;
        let stream = |name: &str| Rng::new(seed ^ hash(name.as_bytes()));
        let mut chance = stream("world");
        let members = *chance
            .choose(&[1, 1, 3, 3, 3, 3, 3, 3, 5, 5, 5, 5, 7])
            .unwrap_or(&3);
        let founded = founded(members);
        let zero = Instant::now();
        let mut world = Self {
            now: 0,
            agenda: Agenda::new(),
            machines: BTreeMap::new(),
            network: Network::new(stream("network")),
            oracle: Oracle::new(founded.clone(), plan.mutation),
            clients: Clients::new(stream("clients")),
            trace,
            disk_chance: stream("disks"),
            engine_chance: stream("engines"),
            engine_errors: BTreeMap::new(),
            compact_entries: *chance.choose(&[24, 80, 200]).unwrap_or(&80),
            ticks: (3, 10),
            counts: BTreeMap::new(),
            traps: BTreeMap::new(),
            calls: 0,
            most_members: *chance.choose(&[6, 7, 9]).unwrap_or(&7),
            overstays: Overstays::default(),
            calm: false,
            steps: 0,
            zero,
            runs: 0,
            in_force: BTreeMap::new(),
            chance,
            plan,
        };
        match world.chance.within(0..6) {
            0 => {
                world.ticks = (1, 3);
                world.network.base_delay = world.chance.within(0..300 * MS);
            }
            // Nobody leads for long.
            1 => {
                world.ticks = (1, 2);
                world.network.base_delay = world.chance.within(100 * MS..600 * MS);
            }
            _ => {}
        }
        world.network.base_loss = *world.chance.choose(&[0, 0, 1, 10]).unwrap_or(&0);
        if world.plan.nuisance.is_some() {
            world.oracle.nothing_moves = true;
            world.ticks = (3, 10);
            world.network.base_delay = 0;
            world.network.base_loss = 0;
        }
        let conf_state = ConfState {
            voters: (1..=members).collect(),
            ..ConfState::default()
        };
        for id in 1..=members {
            let disk = Disk::founded(&founded, conf_state.clone());
            world.place(id, disk);
        }
        for client in 0..world.clients.count() {
            let at = world.chance.within(0..SECOND);
            world.agenda.add(at, Event::Client(client));
        }
        for (number, fault) in world.plan.faults.iter().enumerate() {
            world.agenda.add(fault.at, Event::Fault(number));
        }
        world.agenda.add(SECOND, Event::Audit);
        world
    }

    /// Puts a machine into the world; its daemon starts at once.
    pub(super) fn place(&mut self, id: u64, disk: Disk) {
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
            daemon: None,
            run: 0,
            paused_until: 0,
            slow: 0,
            removed: false,
        };
        self.machines.insert(id, machine);
        self.agenda.add(self.now, Event::Start(id));
    }

    /// One step; `false` if nothing is left to happen.
    pub(super) fn step(&mut self) -> bool {
        let Some((at, event)) = self.agenda.next() else {
            return false;
        };
        self.now = at;
        self.steps += 1;
        self.happen(event);
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(id) => self.start(id),
            Event::Node(id, run, local) => self.happen_on(id, run, local),
            Event::Raft(message) => {
                let id = message.to;
                if let Some(until) = self.paused(id) {
                    return self.agenda.add(until, Event::Raft(message));
                }
                self.deliver(*message);
            }
            Event::Ask {
                from,
                to,
                call,
                ask,
            } => {
                if let Some(until) = self.paused(to) {
                    let event = Event::Ask {
                        from,
                        to,
                        call,
                        ask,
                    };
                    return self.agenda.add(until, event);
                }
                self.asked(from, to, call, *ask);
            }
            Event::Answer { to, call, reply } => {
                if let Some(until) = self.paused(to) {
                    return self.agenda.add(until, Event::Answer { to, call, reply });
                }
                self.answered(to, call, reply);
            }
            Event::Beat(to, beat) => {
                if let Some(until) = self.paused(to) {
                    return self.agenda.add(until, Event::Beat(to, beat));
                }
                self.heard(to, beat);
            }
            Event::Retry(op) => self.retry(op),
            Event::Engine(id, run, doing) => self.engine(id, run, doing),
            Event::Client(client) => self.client(client),
            Event::Fault(number) => self.strike(number),
            Event::FaultOver(number) => self.relent(number),
            Event::Sprung(id, crash, span) => {
                self.crash(id, crash);
                self.agenda.add(self.now + span, Event::Start(id));
            }
            Event::Members => {
                self.bury();
                self.welcome();
            }
            Event::Audit => {
                self.audit();
                self.agenda.add(self.now + SECOND, Event::Audit);
            }
        }
    }

    fn happen_on(&mut self, id: u64, run: u64, local: Local) {
        let current = self.machines.get(&id);
        if current.is_none_or(|m| m.run != run || m.daemon.is_none()) {
            return;
        }
        if let Some(until) = self.paused(id) {
            // What ticks while a process is stopped is not made up for.
            return self.agenda.add(until, Event::Node(id, run, local));
        }
        match local {
            Local::Tick => self.tick(id),
            Local::Written => self.written(id),
            Local::Flush => self.flush(id),
            Local::Notice => self.noticed(id),
            Local::Schedule => self.schedule_due(id),
            Local::Publish => self.publish_again(id),
            Local::Sweep => self.runtime_tick(id),
            Local::Due(replica) => self.replica_due(id, &replica),
            Local::Hint(replica) => self.replica_hint(id, &replica),
            Local::Engine(doing) => self.engine_answered(id, doing),
            Local::CallTimeout(call) => self.call_timeout(id, call),
            Local::Unreachable(peer) => self.unreachable(id, peer),
            Local::Membership => self.membership(id),
            Local::Beat => self.beat(id),
            Local::LookAgain => self.looks_again(id),
        }
    }

    /// Until when the daemon of `id` stands still.
    fn paused(&self, id: u64) -> Option<Time> {
        let until = self.machines.get(&id)?.paused_until;
        (until > self.now).then_some(until)
    }

    /// Adds something that happens within the daemon that runs on `id` now.
    pub(super) fn later(&mut self, id: u64, after: Time, local: Local) {
        if let Some(machine) = self.machines.get(&id) {
            let at = self.now + after;
            self.agenda.add(at, Event::Node(id, machine.run, local));
        }
    }

    pub(super) fn daemon(&mut self, id: u64) -> Option<&mut Daemon> {
        self.machines.get_mut(&id)?.daemon.as_mut()
    }

    /// A daemon that is up, and what its machine's clock shows.
    pub(super) fn running(&mut self, id: u64) -> Option<(Instant, &mut Daemon)> {
        let machine = self.machines.get_mut(&id)?;
        let instant = machine.clock.instant(self.now);
        Some((instant, machine.daemon.as_mut()?))
    }

    pub(super) fn has(&self, mutation: Mutation) -> bool {
        self.plan.mutation == Some(mutation)
    }

    /// Raft ids of those that belong to the cluster, as far as anybody knows.
    pub(super) fn members(&self) -> Vec<u64> {
        let nodes = self.oracle.newest().nodes.values();
        let mut ids: Vec<u64> = nodes.map(|node| node.raft_id).collect();
        ids.sort_unstable();
        ids.retain(|id| self.machines.get(id).is_some_and(|m| !m.removed));
        ids
    }

    fn start(&mut self, id: u64) {
        self.runs += 1;
        let (run, seed) = (self.runs, self.chance.number());
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        if machine.daemon.is_some() || machine.removed {
            return;
        }
        let loaded = machine.disk.borrow().current().load();
        let state = match loaded {
            Ok(state) => Arc::new(state),
            Err(error) => {
                let what = format!("{id} cannot load its state: {error}");
                return self.oracle.violate("state on disk", what);
            }
        };
        let (applied, last, commit) = {
            let mut disk = machine.disk.borrow_mut();
            disk.state = Some(Arc::clone(&state));
            let content = disk.current();
            let commit = content.hard_state.commit;
            (content.applied, content.last().0, commit)
        };
        if applied > last || applied > commit {
            let what = format!("{id} has applied {applied}, logged {last} and committed {commit}");
            return self.oracle.violate("applied is durable", what);
        }
        let (heartbeat_ticks, election_ticks) = self.ticks;
        let config = Config {
            seed,
            heartbeat_ticks,
            election_ticks,
            ..Config::new(id, applied, run)
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let core = RaftCore::new(&config, View(Rc::clone(&machine.disk)), &logger);
        let mut core = match core {
            Ok(core) => core,
            Err(error) => {
                let what = format!("raft of {id} does not start: {error}");
                return self.oracle.violate("state on disk", what);
            }
        };
        if let Err(error) = core.handle_start() {
            let what = format!("raft of {id} does not start: {error}");
            return self.oracle.violate("state on disk", what);
        }
        machine.run = run;
        machine.daemon = Some(Daemon::new(core, &state, &machine.host));
        self.note(&[1, id, applied, last], || {
            format!("n{id} starts at {applied}")
        });
        if applied > 0 {
            self.oracle.reaches(id, &state);
        }
        self.look_at(id);
        let phase = self.chance.within(0..100 * MS);
        self.later(id, phase, Local::Tick);
        self.later(id, phase, Local::Beat);
        self.later(id, SWEEP, Local::Sweep);
        self.later(id, 3 * SECOND + phase, Local::Membership);
        self.later(id, 0, Local::Notice);
        self.drive(id);
    }

    /// The daemon of `id` ends.
    pub(super) fn crash(&mut self, id: u64, crash: Crash) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let Some(daemon) = machine.daemon.take() else {
            return;
        };
        machine.run = 0;
        machine.paused_until = 0;
        let checked = self.plan.mutation != Some(Mutation::AcceptTornWrite);
        let left = machine
            .disk
            .borrow_mut()
            .crash(crash, &mut self.disk_chance, checked);
        if crash == Crash::PowerCut {
            machine.engine.power_cut();
        }
        let applied = machine.disk.borrow().current().applied;
        self.count(match crash {
            Crash::Kill => "killed daemons",
            Crash::PowerCut => "power cuts",
        });
        self.note(&[2, id, applied], || {
            format!("n{id} ends by {crash:?}, at {applied} on disk")
        });
        if let Err(error) = left {
            let what = format!("{id} cannot recover: {error}");
            self.oracle.violate("state on disk", what);
        }
        for who in daemon.abandoned() {
            if let Who::Client(op) = who {
                self.clients.gone(op, self.now, &mut self.agenda);
            }
        }
    }

    pub(super) fn find(&self, victim: Victim) -> Option<u64> {
        let members = self.members();
        match victim {
            Victim::Leader => self.leader().or(members.first().copied()),
            Victim::Member(at) => members
                .get(usize::try_from(at).ok()? % members.len().max(1))
                .copied(),
        }
    }

    /// The node that leads the highest term.
    pub(super) fn leader(&self) -> Option<u64> {
        let leading = self.machines.values().filter_map(|machine| {
            let status = machine.daemon.as_ref()?.core.status();
            (status.role == Role::Leader).then_some((status.term, machine.id))
        });
        leading.max().map(|(_, id)| id)
    }

    fn strike(&mut self, number: usize) {
        let Some(fault) = self.plan.faults.get(number).copied() else {
            return;
        };
        self.note(&[3, number as u64], || format!("fault: {:?}", fault.what));
        let over = self.now + fault.span;
        match fault.what {
            What::Crash(victim, crash) => {
                if let Some(id) = self.find(victim) {
                    self.crash(id, crash);
                    self.agenda.add(over, Event::Start(id));
                }
            }
            What::Blackout => {
                for id in self.members() {
                    self.crash(id, Crash::PowerCut);
                    let at = over + self.chance.within(0..2 * SECOND);
                    self.agenda.add(at, Event::Start(id));
                }
            }
            What::Pause(victim) => {
                if let Some(id) = self.find(victim)
                    && let Some(machine) = self.machines.get_mut(&id)
                {
                    machine.paused_until = machine.paused_until.max(over);
                }
            }
            What::Isolate(victim) => {
                if let Some(id) = self.find(victim) {
                    self.trouble(number, over, Trouble::Partition(1 << (id % 64)));
                }
            }
            What::Network(Trouble::OneWay(from, to)) => {
                let ends = (
                    self.find(Victim::Member(from)),
                    self.find(Victim::Member(to)),
                );
                if let (Some(from), Some(to)) = ends {
                    self.trouble(number, over, Trouble::OneWay(from, to));
                }
            }
            What::Network(trouble) => self.trouble(number, over, trouble),
            What::SlowDisk(victim, _) | What::EngineAway(victim) => {
                if let Some(id) = self.find(victim) {
                    self.lasts(number, id, over);
                }
            }
            What::EngineErrors(share) => {
                self.engine_errors.insert(number, share);
                self.lasts(number, 0, over);
            }
            What::KillContainer(victim) => {
                if let Some(id) = self.find(victim) {
                    self.kill_container(id);
                }
            }
            What::Trap(promise, crash) => {
                self.traps.insert(number, (promise, crash, fault.span));
            }
            What::KillActor(victim, actor) => {
                if let Some(id) = self.find(victim) {
                    self.count("killed actors");
                    match actor {
                        Actor::Replica => self.kill_replica_actor(id),
                        Actor::Publisher => self.kill_publisher(id),
                        Actor::Scheduler | Actor::Health | Actor::Membership => {
                            self.kill_control(id, actor);
                        }
                    }
                }
            }
            What::Transfer => self.transfer(),
            What::Join => self.join(),
            What::Leave(victim) => {
                if let Some(id) = self.find(victim) {
                    self.leave(id);
                }
            }
        }
    }

    fn trouble(&mut self, number: usize, over: Time, trouble: Trouble) {
        self.network.troubles.insert(number, trouble);
        self.lasts(number, 0, over);
    }

    fn lasts(&mut self, number: usize, id: u64, over: Time) {
        self.in_force.insert(number, id);
        self.agenda.add(over, Event::FaultOver(number));
        self.afflict(id);
    }

    /// Lets machine `id` bear what is in force, however much of it overlaps.
    fn afflict(&mut self, id: u64) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let faults = self.in_force.iter().filter(|(_, machine)| **machine == id);
        let faults = faults.filter_map(|(number, _)| self.plan.faults.get(*number));
        (machine.slow, machine.engine.away) = (0, false);
        for fault in faults {
            match fault.what {
                What::SlowDisk(_, time) => machine.slow = machine.slow.max(time),
                What::EngineAway(_) => machine.engine.away = true,
                _ => {}
            }
        }
    }

    fn relent(&mut self, number: usize) {
        let Some(id) = self.in_force.remove(&number) else {
            return;
        };
        self.note(&[4, number as u64], || format!("fault {number} is over"));
        self.network.troubles.remove(&number);
        self.engine_errors.remove(&number);
        self.afflict(id);
    }

    /// Every fault ends, and whatever is down comes back.
    pub(super) fn heal(&mut self) {
        self.note(&[5], || "the storm is over".to_owned());
        self.calm = true;
        for number in self.in_force.keys().copied().collect::<Vec<_>>() {
            self.relent(number);
        }
        self.network.base_loss = 0;
        self.network.base_delay = 0;
        self.traps.clear();
        for machine in self.machines.values_mut() {
            machine.paused_until = machine.paused_until.min(self.now);
        }
        for id in self.machines.keys().copied().collect::<Vec<_>>() {
            self.agenda.add(self.now, Event::Start(id));
        }
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(super) fn note(&mut self, numbers: &[u64], text: impl FnOnce() -> String) {
        self.trace.note(self.now, numbers, text);
    }
}

/// The state in which every founder starts.
fn founded(members: u64) -> State {
    let ts = prost_types::Timestamp::default();
    let mut children = vec![Payload::ClusterInit(v1::ClusterInit {
        cluster_id: "00000000-0000-4000-8000-000000000001".to_owned(),
        self_hostname: "n1".to_owned(),
        self_address: "n1:7947".to_owned(),
        self_grpc_address: "n1:7946".to_owned(),
        self_raft_id: 1,
        ..v1::ClusterInit::default()
    })];
    for id in 2..=members {
        children.push(Payload::NodeJoin(v1::NodeJoin {
            hostname: format!("n{id}"),
            address: format!("n{id}:7947"),
            grpc_address: format!("n{id}:7946"),
            raft_id: id,
            ..v1::NodeJoin::default()
        }));
        children.push(Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
            hostname: format!("n{id}"),
            status: NodeStatus::Ready.into(),
            ..v1::NodeStatusUpdate::default()
        }));
    }
    let children = children.into_iter().map(|p| command("founder", ts, p));
    let founding = batch("founder", ts, children.collect());
    match jaco_raftnode::fsm::apply(&State::default(), 1, &founding) {
        Ok(applied) => applied.state,
        Err(_) => State::default(),
    }
}

/// What has not been handled yet, in order.
pub(super) type Inbox = VecDeque<super::node::Input>;
