//! The world: machines, what connects them, and the loop that lets time pass.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
    time::Instant,
};

use jaco_raftnode::Role;
use raft::eraftpb::{ConfState, Message};

use super::{
    boot::founded,
    calls::{Ask, Reply},
    client::Clients,
    disk::{Crash, Disk},
    engine::Engine,
    fault::{Fault, Nuisance, Promise, Victim},
    mutation::Mutation,
    network::Network,
    node::Daemon,
    oracle::{Oracle, hash},
    overstay::Overstays,
    runtime::Doing,
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
    pub(super) ticks: (usize, usize),
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
    /// Daemons that were ever started.
    pub(super) runs: u64,
    /// Faults in force that last, by number, and the machine that each strikes; 0 for all.
    pub(super) in_force: BTreeMap<usize, u64>,
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

    /// The node that leads the highest term.
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

/// What has not been handled yet, in order.
pub(super) type Inbox = VecDeque<super::node::Input>;
