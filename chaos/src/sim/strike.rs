//! Beginning and end of each fault.

use super::{
    disk::Crash,
    fault::{Actor, Victim, What},
    network::Trouble,
    time::{SECOND, Time},
    world::{Event, World},
};

impl World {
    pub(super) fn strike(&mut self, number: usize) {
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

    /// Applies the lasting faults in force to machine `id`; of overlapping ones the worst counts.
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

    pub(super) fn relent(&mut self, number: usize) {
        let Some(id) = self.in_force.remove(&number) else {
            return;
        };
        self.note(&[4, number as u64], || format!("fault {number} is over"));
        self.network.troubles.remove(&number);
        self.engine_errors.remove(&number);
        self.afflict(id);
    }

    /// Ends all faults, and restarts all machines that are down.
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
}
