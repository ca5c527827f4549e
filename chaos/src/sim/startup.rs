//! Containers that accept connections only a while after their start, and the judge of when they
//! count as running.

use jaco_engine::Status;
use jaco_policy::runtime::replica::{
    core::Assignment,
    readiness::{PROBE_LIMIT, Readiness, UPTIME},
    report::Report,
};
use jaco_proto::{manifest::compose::Service, v1::ReplicaState};

use super::{
    cluster::{Cluster, Event},
    mutation::Mutation,
    time::{MS, SECOND},
};

/// The service with a TCP port.
const SERVING: &str = "web";
const PORT: u16 = 80;

/// Sets the ports of a service.
pub(super) fn configure(name: &str, service: &mut Service) {
    if name == SERVING {
        service.expose.insert(PORT);
    }
}

impl Mutation {
    /// Plants a bug in what shows that a container is ready.
    pub(super) fn patch_readiness(self, wanted: &mut Assignment) {
        if let (Self::RunBeforePorts, Assignment::Own(wanted)) = (self, wanted) {
            wanted.readiness = Readiness::Uptime;
        }
    }
}

impl Cluster {
    /// Lets a container that was just started accept connections after a while, or never.
    pub(super) fn schedule_opening(&mut self, id: u64, container: &str) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let Some(container) = machine.engine.note_start(container, now) else {
            return;
        };
        let event = Event::PortOpens(id, container.id.clone(), container.starts);
        let takes = match self.engine_chance.within(0..6) {
            0 => return,
            1 => self.engine_chance.within(SECOND..8 * SECOND),
            _ => self.engine_chance.within(MS..800 * MS),
        };
        self.agenda.add(now + takes, event);
    }

    /// Lets a container accept connections, unless it was started again since.
    pub(super) fn open_port(&mut self, id: u64, container: &str, start: u64) {
        if let Some(machine) = self.machines.get_mut(&id) {
            machine.engine.open(container, start);
        }
    }

    /// Checks that a container reported as running accepts connections, or has been up for the time
    /// after which it need not.
    pub(super) fn judge_ready(&mut self, id: u64, replica: &str, report: &Report) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let mut containers = machine.engine.containers();
        let container = containers.find(|it| it.id == report.container_id);
        let Some(container) = container.filter(|it| it.status == Status::Running) else {
            return;
        };
        if report.state != ReplicaState::Running {
            return;
        }
        let clock = machine.clock;
        let up = clock.instant(self.now) - clock.instant(container.started);
        let serves = replica.contains(&format!("-{SERVING}-"));
        let needed = if serves { PROBE_LIMIT } else { UPTIME };
        // The port of another service may be published.
        if up < needed && !container.is_open {
            let what = format!(
                "{} of {replica} counts as running after {up:?}",
                container.id
            );
            self.oracle.violate("ready before running", what);
        }
    }
}
