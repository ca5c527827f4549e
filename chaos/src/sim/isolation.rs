//! The isolation of one node: the firewall core, driven as the production firewall actor drives it.

use std::sync::Arc;

use jaco_engine::cidr::Cidr;
use jaco_policy::{
    network::{
        firewall::{
            core::{Action, Core, FlowsCut, Rendered, Status, Submitted},
            local::{LocalNetworks, LocalReports},
        },
        mesh,
        names::NetworkId,
        readiness::MeshStatus,
    },
    node::writers::FIREWALL,
};
use jaco_state::{State, command};

use super::{
    calls::{Change, Reply, Requester},
    cluster::{Cluster, Local},
    mutation::Mutation,
    time::{MS, Time, Wake},
};

/// The firewall of one daemon.
pub(super) struct Isolation {
    core: Core,
    /// Number of the actor's instance.
    instance: u64,
    /// Status that the last instance published; outlives it.
    pub(super) status: Status,
    /// Networks of the engine that the last survey found; outlives an instance.
    pub(super) local: Option<Arc<LocalNetworks>>,
    /// Reports of the node's replicas; they outlive an instance.
    reports: LocalReports,
    wake: Wake,
}

/// Answer of the kernel that is under way, for one instance of the actor.
#[derive(Clone, Debug)]
pub(super) enum FirewallStep {
    Read,
    Apply(Arc<Rendered>),
    CutFlows(Arc<Rendered>),
    Exempt(bool),
}

impl Isolation {
    pub(super) fn new(now: std::time::Instant, host: &str, state: &Arc<State>) -> Self {
        let status = Status::default();
        Self {
            core: Core::new(now, host, Arc::clone(state), status.clone()),
            instance: 0,
            status,
            local: None,
            reports: LocalReports::default(),
            wake: Wake::default(),
        }
    }

    /// Reports the state of this node's mesh to the core.
    pub(super) fn handle_mesh(&mut self, mesh: MeshStatus) {
        self.core.handle_mesh(mesh);
    }

    /// Whether the ruleset isolates a container that is started now in `cidr`.
    pub(super) fn isolates(&self, network: &NetworkId, cidr: Cidr) -> bool {
        self.status.isolates(network, cidr)
    }
}

impl Cluster {
    /// Reports an event to the firewall core of node `id` and performs its actions.
    pub(super) fn drive_isolation(
        &mut self,
        id: u64,
        handle: impl FnOnce(&mut Core, std::time::Instant),
    ) {
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        handle(&mut daemon.isolation.core, instant);
        while let Some(action) = self
            .daemon(id)
            .and_then(|daemon| daemon.isolation.core.poll_action())
        {
            self.isolate(id, action);
        }
        let daemon = self.daemon(id);
        let deadline = daemon.and_then(|daemon| daemon.isolation.core.poll_timeout());
        self.schedule_wake(
            id,
            deadline,
            |daemon| &mut daemon.isolation.wake,
            Local::FirewallDue,
        );
    }

    /// Changes the reports of node `id`'s replicas.
    pub(super) fn report_locally(&mut self, id: u64, change: impl FnOnce(&mut LocalReports)) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        change(&mut daemon.isolation.reports);
        let reports = daemon.isolation.reports.clone();
        self.drive_isolation(id, |core, now| core.handle_reports(now, reports));
    }

    pub(super) fn firewall_due(&mut self, id: u64) {
        let now = self.now;
        if let Some(daemon) = self.daemon(id) {
            daemon.isolation.wake.handle_event(now);
        }
        self.drive_isolation(id, |core, instant| core.handle_timeout(instant));
    }

    fn isolate(&mut self, id: u64, action: Action) {
        match action {
            Action::Exempt { accepts } => {
                let takes = self.kernel_chance.within(MS / 2..8 * MS);
                self.ask_firewall(id, takes, FirewallStep::Exempt(accepts));
            }
            Action::Read => {
                let takes = self.kernel_chance.within(MS / 2..8 * MS);
                self.ask_firewall(id, takes, FirewallStep::Read);
            }
            Action::Apply(rendered) => {
                let takes = self.kernel_chance.within(MS..100 * MS);
                self.ask_firewall(id, takes, FirewallStep::Apply(rendered));
            }
            Action::CutFlows(rendered) => {
                let takes = self.kernel_chance.within(MS / 2..8 * MS);
                self.ask_firewall(id, takes, FirewallStep::CutFlows(rendered));
            }
            Action::Publish(status) => {
                let isolation = mesh::core::Isolation::of(&status);
                if let Some(daemon) = self.daemon(id) {
                    daemon.isolation.status = status;
                }
                self.open_gates(id);
                self.drive_mesh(id, |core, now| core.handle_isolation(now, isolation));
            }
            Action::Submit(report) => {
                let Some(machine) = self.machines.get(&id) else {
                    return;
                };
                let ts = machine.clock.timestamp(self.now);
                let Some(daemon) = &machine.daemon else {
                    return;
                };
                let requester = Requester::Firewall(daemon.isolation.instance);
                let change = Change::Command(command(FIREWALL, ts, report.0));
                self.count("reports of firewalls");
                self.submit(id, requester, change);
            }
        }
    }

    /// Additional time of a request to the kernel of node `id` at this moment.
    pub(super) fn slow_kernel(&mut self, id: u64) -> Time {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return 0;
        };
        let kernel = &mut machine.kernel;
        if kernel.slow > 0 {
            kernel.slowed_at = Some(now);
        }
        kernel.slow
    }

    fn ask_firewall(&mut self, id: u64, takes: Time, step: FirewallStep) {
        let slow = self.slow_kernel(id);
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let instance = machine.daemon.as_ref().map_or(0, |d| d.isolation.instance);
        self.schedule_local(id, takes + slow, Local::Firewall(instance, step));
    }

    /// Carries out a request of the firewall in the kernel of node `id`, and reports its outcome.
    pub(super) fn firewall_step(&mut self, id: u64, instance: u64, step: FirewallStep) {
        let mutation = self.plan.mutation;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let current = machine.daemon.as_ref().map(|d| d.isolation.instance);
        let failing = machine.kernel.failing;
        if failing {
            self.reachability.record_failure(id, self.now);
        }
        match step {
            _ if current != Some(instance) => {}
            FirewallStep::Read => {
                let found = match failing {
                    true => Err("on purpose".to_owned()),
                    false => Ok(machine.kernel.read_table()),
                };
                self.drive_isolation(id, |core, instant| core.handle_read(instant, found));
            }
            FirewallStep::Apply(rendered) => {
                let outcome = match failing || machine.kernel.is_owned() {
                    true => Err("on purpose".to_owned()),
                    false => {
                        let daemon = machine.daemon.as_ref();
                        let state = daemon.map(|daemon| Arc::clone(&daemon.state));
                        Ok(machine.kernel.load(&rendered, state.as_deref(), mutation))
                    }
                };
                let sets = rendered.ruleset.sets.len() as u64;
                self.note(&[50, id, rendered.index, sets, u64::from(failing)], || {
                    format!("n{id} loads the ruleset of {}: {outcome:?}", rendered.index)
                });
                if outcome.is_ok() {
                    self.count("rulesets loaded");
                    self.table_loaded(id);
                }
                self.drive_isolation(id, |core, instant| core.handle_applied(instant, outcome));
            }
            FirewallStep::Exempt(accepts) => {
                if !failing {
                    machine.kernel.accepts =
                        accepts || mutation == Some(Mutation::AcceptWithoutDrop);
                    self.judge(id);
                }
                self.drive_isolation(id, |core, now| core.handle_exempted(now, &[]));
            }
            FirewallStep::CutFlows(rendered) => {
                let cut = match failing {
                    true => FlowsCut::Failed,
                    false => FlowsCut::Done,
                };
                if !failing {
                    machine.kernel.cut_flows(&rendered.ruleset, mutation);
                    self.count("passes that cut connections");
                }
                self.note(&[52, id, rendered.index, u64::from(failing)], || {
                    let index = rendered.index;
                    format!(
                        "n{id} ends the connections that the ruleset of {index} forbids: {cut:?}"
                    )
                });
                self.drive_isolation(id, |core, _| core.handle_flows_cut(cut));
            }
        }
    }

    /// Lets the firewall of node `id` isolate a block soon.
    pub(super) fn request_isolation(&mut self, id: u64, network: &NetworkId, cidr: Cidr) {
        self.drive_isolation(id, |core, now| core.handle_request(now, network, cidr));
    }

    /// Handles the outcome of a report that an instance of the firewall submitted.
    pub(super) fn firewall_reported(&mut self, id: u64, instance: u64, reply: &Reply) {
        let outcome = match reply {
            Reply::Done(_) => Submitted::Committed,
            Reply::Rejected(_) => Submitted::Refused,
            Reply::NotAppended => Submitted::Unavailable,
            Reply::Unknown | Reply::Block(_) | Reply::Exhausted => Submitted::Unknown,
        };
        if self
            .daemon(id)
            .is_some_and(|daemon| daemon.isolation.instance == instance)
        {
            self.drive_isolation(id, |core, now| core.handle_submitted(now, outcome));
        }
    }

    /// Reports to the firewall of node `id` whether a leader is known.
    pub(super) fn isolation_leader(&mut self, id: u64) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let known = daemon.status.leader_id.is_some();
        self.drive_isolation(id, |core, now| core.handle_leader(now, known));
    }

    /// Crashes the firewall of node `id`; its successor starts from the published status.
    pub(super) fn crash_firewall(&mut self, id: u64) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let instant = machine.clock.instant(self.now);
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let isolation = &mut daemon.isolation;
        let (state, last) = (Arc::clone(&daemon.state), isolation.status.clone());
        isolation.core = Core::new(instant, &machine.host, state, last);
        if let Some(local) = &isolation.local {
            isolation.core.handle_local(instant, Arc::clone(local));
        }
        isolation
            .core
            .handle_reports(instant, isolation.reports.clone());
        isolation.instance += 1;
        self.reachability.hinder(id, self.now);
        self.isolation_leader(id);
    }
}
