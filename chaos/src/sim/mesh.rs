//! The mesh of one node: its core, driven as the production mesh actor drives it.

use std::{collections::BTreeSet, mem::discriminant};

use jaco_policy::network::{
    firewall::core::Status,
    ipam::Pool,
    mesh::{
        core::{Action, Core, Isolation, Seen},
        plan::{ApplyError, Step},
        repair::{Repair, summary},
    },
};

use super::{
    cluster::{Cluster, Local},
    mutation::Mutation,
    time::{MS, Wake},
};

/// Port of nodes that publish none.
const PORT: u16 = 51_820;

/// The mesh of one daemon.
pub(super) struct Mesh {
    pub(super) core: Core,
    /// Number of the actor's instance.
    instance: u64,
    wake: Wake,
}

/// Answer of the kernel that is under way, for one instance of the actor.
#[derive(Clone, Debug)]
pub(super) enum MeshStep {
    Look(BTreeSet<String>),
    Apply(Vec<Step>),
}

/// The core of a new actor, on a node that isolates deployments.
fn core(now: std::time::Instant, host: &str, firewall: &Status) -> Core {
    let mut core = Core::new(now, host, PORT);
    core.handle_pool(now, Pool::default().range());
    core.handle_isolation(now, Isolation::of(firewall));
    core
}

impl Mesh {
    pub(super) fn new(now: std::time::Instant, host: &str) -> Self {
        Self {
            core: core(now, host, &Status::default()),
            instance: 0,
            wake: Wake::default(),
        }
    }
}

/// Key of a machine in the mesh.
pub(super) fn public_key(id: u64) -> [u8; 32] {
    let mut key = [7; 32];
    key[..8].copy_from_slice(&id.to_be_bytes());
    key
}

/// Machine of a key in the mesh.
pub(super) fn machine_of(key: [u8; 32]) -> u64 {
    let mut id = [0; 8];
    id.copy_from_slice(&key[..8]);
    u64::from_be_bytes(id)
}

impl Cluster {
    /// Reports an event to the mesh core of node `id` and performs its actions.
    pub(super) fn drive_mesh(
        &mut self,
        id: u64,
        handle: impl FnOnce(&mut Core, std::time::Instant),
    ) {
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        handle(&mut daemon.mesh.core, instant);
        let instance = daemon.mesh.instance;
        let (closes, mesh) = (
            daemon.mesh.core.poll_close(),
            daemon.mesh.core.status().clone(),
        );
        daemon.isolation.handle_mesh(mesh);
        self.open_gates(id);
        if closes && let Some(machine) = self.machines.get_mut(&id) {
            machine.kernel.delete_device();
            self.mesh_changed(id);
        }
        while let Some(action) = self
            .daemon(id)
            .and_then(|daemon| daemon.mesh.core.poll_action())
        {
            let (takes, step) = match action {
                Action::Audit(repairs) => {
                    self.mesh_repaired(id, &repairs);
                    continue;
                }
                Action::Look { names, .. } => {
                    let takes = self.kernel_chance.within(MS / 2..8 * MS);
                    (takes, MeshStep::Look(names))
                }
                Action::Apply(steps) => {
                    let takes = self.kernel_chance.within(MS..60 * MS);
                    (takes, MeshStep::Apply(steps))
                }
            };
            let slow = self.slow_kernel(id);
            self.schedule_local(id, takes + slow, Local::Mesh(instance, step));
        }
        let deadline = self
            .daemon(id)
            .map(|daemon| daemon.mesh.core.poll_timeout());
        self.schedule_wake(id, deadline, |daemon| &mut daemon.mesh.wake, Local::MeshDue);
    }

    pub(super) fn mesh_due(&mut self, id: u64) {
        let now = self.now;
        if let Some(daemon) = self.daemon(id) {
            daemon.mesh.wake.handle_event(now);
        }
        self.drive_mesh(id, |core, instant| core.handle_timeout(instant));
    }

    /// Carries out a request of the mesh in the kernel of node `id`, and reports its outcome.
    pub(super) fn mesh_step(&mut self, id: u64, instance: u64, step: MeshStep) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let current = machine.daemon.as_ref().map(|daemon| daemon.mesh.instance);
        let failing = machine.kernel.failing;
        let mut observed = machine.kernel.observed();
        if self.plan.mutation == Some(Mutation::IgnoreForeignRoutes) {
            observed.foreign.clear();
        }
        if failing {
            self.reachability.record_failure(id, self.now);
        }
        match step {
            _ if current != Some(instance) => {}
            MeshStep::Look(names) => {
                let address = |name: String| {
                    let number: u8 = name.strip_prefix('n')?.parse().ok()?;
                    Some((name, [192, 0, 2, number].into()))
                };
                let seen = Seen {
                    observed,
                    resolved: names.into_iter().filter_map(address).collect(),
                };
                let seen = match failing {
                    true => Err("on purpose".to_owned()),
                    false => Ok(seen),
                };
                self.drive_mesh(id, |core, instant| core.handle_seen(instant, seen));
            }
            MeshStep::Apply(steps) => {
                let outcome = self.carry_out(id, steps);
                self.drive_mesh(id, |core, instant| core.handle_applied(instant, outcome));
            }
        }
    }

    /// Carries out steps of the mesh one after the other, as the production driver does.
    fn carry_out(&mut self, id: u64, steps: Vec<Step>) -> Result<(), ApplyError> {
        let mutation = self.plan.mutation;
        let mut failure = None;
        let mut steps = steps.into_iter().peekable();
        while let Some(step) = steps.next() {
            let Some(machine) = self.machines.get_mut(&id) else {
                break;
            };
            let required = step.is_required();
            let kind = discriminant(&step);
            let outcome = machine.kernel.carry_out(&step, mutation);
            let failed = outcome.is_err();
            self.note(&[51, id, u64::from(failed)], || {
                format!("n{id} changes its mesh: {step:?}: {outcome:?}")
            });
            if let Err(reason) = outcome {
                failure = Some(ApplyError::with(failure, &step, reason));
            }
            let ends = failed && required;
            // Steps of one kind concern different blocks.
            let same = |next: &Step| discriminant(next) == kind;
            if ends || !steps.peek().is_some_and(same) {
                self.mesh_changed(id);
            }
            if ends {
                break;
            }
        }
        if failure.is_none() {
            self.count("meshes changed");
        }
        failure.map_or(Ok(()), Err)
    }

    /// Judges an audit event about repairs of the mesh of node `id`.
    fn mesh_repaired(&mut self, id: u64, repairs: &BTreeSet<Repair>) {
        self.count("repairs of meshes audited");
        if !self.reachability.mesh_was_damaged(id) {
            let what = format!("n{id} repaired what nobody damaged: {}", summary(repairs));
            self.oracle.violate("repairs follow damage", what);
        }
    }

    /// Crashes the mesh of node `id`, and with it the device.
    pub(super) fn crash_mesh(&mut self, id: u64) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let instant = machine.clock.instant(self.now);
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        daemon.mesh.core = core(instant, &machine.host, &daemon.isolation.status);
        daemon.mesh.instance += 1;
        machine.kernel.delete_device();
        let state = std::sync::Arc::clone(&daemon.state);
        self.reachability.hinder(id, self.now);
        self.mesh_changed(id);
        self.drive_mesh(id, |core, now| core.handle_state(now, &state));
    }
}
