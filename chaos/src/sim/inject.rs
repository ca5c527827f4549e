//! Beginning and end of each fault.

use super::{
    cluster::{Cluster, Event},
    disk::Crash,
    fault::{Actor, Fault, FaultKind, StartStep, Victim},
    network::NetworkFault,
    time::{MS, SECOND, Time},
};

impl Cluster {
    pub(super) fn inject(&mut self, number: usize) {
        let Some(fault) = self.plan.faults.get(number).copied() else {
            return;
        };
        self.note(&[3, number as u64], || format!("fault: {:?}", fault.kind));
        let over = self.now + fault.span;
        // Events that a pause or a stall defers are scheduled for its end, which must not be
        // brought forward later.
        let storm = self.plan.fault_window;
        match fault.kind {
            FaultKind::Crash(victim, crash) => {
                if let Some(id) = self.find(victim) {
                    self.crash(id, crash);
                    self.agenda.add(over, Event::Start(id));
                }
            }
            FaultKind::Blackout => {
                for id in self.members() {
                    self.crash(id, Crash::PowerCut);
                    let at = over + self.chance.within(0..2 * SECOND);
                    self.agenda.add(at, Event::Start(id));
                }
            }
            FaultKind::Pause(victim) => {
                if let Some(id) = self.find(victim)
                    && let Some(machine) = self.machines.get_mut(&id)
                {
                    machine.paused_until = machine.paused_until.max(over.min(storm));
                    machine.late_wake = 0;
                }
            }
            FaultKind::PauseStart(step) => {
                self.start_pauses.insert(number, (step, fault.span));
            }
            FaultKind::StallDisk(victim) => {
                if let Some(id) = self.find(victim)
                    && let Some(machine) = self.machines.get_mut(&id)
                {
                    machine.stalled_until = machine.stalled_until.max(over.min(storm));
                    self.count("stalled disks");
                }
            }
            FaultKind::Isolate(victim) => {
                if let Some(id) = self.find(victim) {
                    self.begin_network_fault(number, over, NetworkFault::Partition(1 << (id % 64)));
                }
            }
            FaultKind::Network(NetworkFault::OneWay(from, to)) => {
                let ends = (
                    self.find(Victim::Member(from)),
                    self.find(Victim::Member(to)),
                );
                if let (Some(from), Some(to)) = ends {
                    self.begin_network_fault(number, over, NetworkFault::OneWay(from, to));
                }
            }
            FaultKind::Network(network_fault) => {
                self.begin_network_fault(number, over, network_fault)
            }
            FaultKind::SlowDisk(victim, _)
            | FaultKind::EngineAway(victim)
            | FaultKind::KernelFails(victim)
            | FaultKind::OwnTable(victim)
            | FaultKind::ForeignRoutes(victim)
            | FaultKind::SlowKernel(victim, _) => {
                if let Some(id) = self.find(victim) {
                    self.begin_lasting(number, id, over);
                }
            }
            FaultKind::EngineErrors(share) => {
                self.engine_errors.insert(number, share);
                self.begin_lasting(number, 0, over);
            }
            FaultKind::KillContainer(victim) => {
                if let Some(id) = self.find(victim) {
                    self.kill_container(id);
                }
            }
            FaultKind::Trap(promise, crash) => {
                self.traps.insert(number, (promise, crash, fault.span));
            }
            FaultKind::KillActor(victim, actor) => {
                if let Some(id) = self.find(victim) {
                    self.count("killed actors");
                    match actor {
                        Actor::Replica => self.kill_replica_actor(id),
                        Actor::Publisher => self.kill_publisher(id),
                        Actor::Scheduler
                        | Actor::Health
                        | Actor::Membership
                        | Actor::Firewall
                        | Actor::Mesh
                        | Actor::Bridges
                        | Actor::Ipam => self.crash_control(id, actor),
                    }
                }
            }
            FaultKind::Tamper(victim, tampering) => {
                if let Some(id) = self.find(victim) {
                    self.tamper(id, tampering);
                }
            }
            FaultKind::Authority(disturbance) => {
                self.authority.faults.insert(number, disturbance);
                self.begin_lasting(number, 0, over);
                if fault.is_long_outage() {
                    self.begin_long_outage();
                }
            }
            FaultKind::Issuer(step, fault_of_issuer) => {
                let armed = (step, fault_of_issuer, fault.span);
                self.issuer_faults.insert(number, armed);
            }
            FaultKind::Transfer => self.transfer(),
            FaultKind::Join => self.join(),
            FaultKind::Leave(victim) => {
                if let Some(id) = self.find(victim) {
                    self.leave(id);
                }
            }
        }
    }

    fn begin_network_fault(&mut self, number: usize, over: Time, network_fault: NetworkFault) {
        self.network.faults.insert(number, network_fault);
        self.begin_lasting(number, 0, over);
    }

    fn begin_lasting(&mut self, number: usize, id: u64, over: Time) {
        self.in_force.insert(number, id);
        self.agenda.add(over, Event::FaultOver(number));
        self.apply_lasting_faults(id);
    }

    /// Applies the lasting faults in force to machine `id`; of overlapping ones the worst counts.
    fn apply_lasting_faults(&mut self, id: u64) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let faults = self.in_force.iter().filter(|(_, machine)| **machine == id);
        let faults = faults.filter_map(|(number, _)| self.plan.faults.get(*number));
        (machine.slow, machine.engine.away) = (0, false);
        (machine.kernel.slow, machine.kernel.failing) = (0, false);
        let (mut owned, mut foreign) = (false, false);
        for fault in faults {
            match fault.kind {
                FaultKind::SlowDisk(_, time) => machine.slow = machine.slow.max(time),
                FaultKind::EngineAway(_) => machine.engine.away = true,
                FaultKind::KernelFails(_) => machine.kernel.failing = true,
                FaultKind::OwnTable(_) => owned = true,
                FaultKind::ForeignRoutes(_) => foreign = true,
                FaultKind::SlowKernel(_, time) => {
                    machine.kernel.slow = machine.kernel.slow.max(time);
                }
                _ => {}
            }
        }
        self.own_table(id, owned);
        self.lead_away(id, foreign);
    }

    /// Node `id` begins this step of a start: pauses its daemon if a fault waits for that.
    pub(super) fn spring_start_pause(&mut self, id: u64, step: StartStep) {
        let until = self.plan.fault_window;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        if machine.paused_until > self.now {
            return;
        }
        let mut pauses = self.start_pauses.iter();
        let armed = pauses.find(|(_, (armed, _))| *armed == step);
        if let Some((&number, &(_, span))) = armed {
            self.start_pauses.remove(&number);
            machine.paused_until = (self.now + span).min(until);
            machine.late_wake = self.chance.within(0..500 * MS);
            self.count(match step {
                StartStep::Pull => "pauses in a pull",
                StartStep::Create => "pauses in a create",
            });
            self.note(&[36, id], || format!("n{id} is paused in a {step:?}"));
        }
    }

    pub(super) fn end_fault(&mut self, number: usize) {
        let Some(id) = self.in_force.remove(&number) else {
            return;
        };
        self.note(&[4, number as u64], || format!("fault {number} is over"));
        self.network.faults.remove(&number);
        self.engine_errors.remove(&number);
        self.authority.faults.remove(&number);
        let fault = self.plan.faults.get(number);
        if fault.is_some_and(Fault::is_long_outage) {
            self.end_long_outage();
        }
        self.apply_lasting_faults(id);
    }

    /// Ends all faults, and restarts all machines that are down.
    pub(super) fn heal(&mut self) {
        self.note(&[5], || "the storm is over".to_owned());
        self.faults_over = true;
        for number in self.in_force.keys().copied().collect::<Vec<_>>() {
            self.end_fault(number);
        }
        self.network.base_loss = 0;
        self.network.base_delay = 0;
        self.traps.clear();
        self.start_pauses.clear();
        self.issuer_faults.clear();
        for id in self.machines.keys().copied().collect::<Vec<_>>() {
            self.agenda.add(self.now, Event::Start(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{cluster::Plan, trace::Trace};

    /// A cluster whose first member suffers this fault from second 8 on, two seconds before the
    /// faults are over and for half a minute.
    fn cluster(kind: FaultKind) -> Cluster {
        let fault = Fault {
            at: 8 * SECOND,
            span: 30 * SECOND,
            kind,
        };
        let plan = Plan {
            seed: 1,
            mutation: None,
            benign_fault: None,
            often: None,
            fault_window: 10 * SECOND,
            faults: vec![fault],
        };
        let mut cluster = Cluster::new(plan, Trace::hash_only());
        while cluster.now < 9 * SECOND {
            assert!(cluster.step());
        }
        cluster
    }

    #[test]
    fn pauses_and_stalls_end_with_other_faults() {
        let victim = Victim::Member(0);
        let paused = cluster(FaultKind::Pause(victim));
        let stalled = cluster(FaultKind::StallDisk(victim));
        let first = |cluster: &Cluster| cluster.machines[&1].paused_until;
        assert_eq!(first(&paused), 10 * SECOND);
        assert_eq!(first(&stalled), 0);
        assert_eq!(stalled.machines[&1].stalled_until, 10 * SECOND);
    }
}
