//! Images whose containers die soon after each start, and the judges of rolling updates.

use std::{collections::BTreeMap, sync::Arc};

use jaco_policy::{runtime::replica::core::Assignment, scheduler::moves};
use jaco_proto::v1::{self, NodeStatus, ReplicaDesired, ReplicaState, RolloutState};
use jaco_state::State;

use crate::Rng;

use super::{
    cluster::{Cluster, Event, Local, Machine},
    documents, expected,
    mutation::Mutation,
    oracle::Oracle,
    time::{MS, SECOND},
};

/// Number of the image whose containers die; the others have lower ones.
const BAD: u64 = 3;

/// Draws the image of a service in place of `image`, now and then the bad one.
pub(super) fn draw_image(chance: &mut Rng, image: u64) -> u64 {
    if chance.within(0..8) == 0 { BAD } else { image }
}

fn is_bad(image: &str) -> bool {
    image == format!("image-{BAD}")
}

impl Mutation {
    /// State in which each report is one about the row in force, for a scheduler with this bug.
    pub(super) fn with_old_reports(state: &State) -> State {
        let mut seen = state.clone();
        for (id, report) in &state.replicas_observed {
            if let Some(row) = state.replicas_desired.get(id) {
                let report = v1::ReplicaObserved {
                    desired_raft_index: row.raft_index,
                    ..v1::ReplicaObserved::clone(report)
                };
                seen.replicas_observed.insert(id.clone(), Arc::new(report));
            }
        }
        seen
    }

    /// Plants a bug in what a node wants of a replica.
    pub(super) fn patch_pull(self, wanted: &mut Assignment) {
        if let (Self::StopBeforePull, Assignment::Own(wanted)) = (self, wanted) {
            wanted.pull = false;
        }
    }

    /// State without pauses of rollouts.
    pub(super) fn without_holds(state: &State) -> State {
        let mut seen = state.clone();
        for (name, deployment) in &state.deployments {
            let resumed = v1::Deployment {
                rollout_hold: None,
                ..v1::Deployment::clone(deployment)
            };
            seen.deployments.insert(name.clone(), Arc::new(resumed));
        }
        seen
    }

    /// State in which each revision that was rolled back is still the content.
    pub(super) fn with_failed_revisions(state: &State) -> State {
        let mut patched = state.clone();
        for (name, deployment) in &state.deployments {
            let failed = deployment.failed_revision;
            let previous = deployment.previous.as_ref();
            if let Some(previous) = previous.filter(|previous| previous.revision == failed) {
                let kept = v1::Deployment {
                    compose_yaml: previous.compose_yaml.clone(),
                    ..v1::Deployment::clone(deployment)
                };
                patched.deployments.insert(name.clone(), Arc::new(kept));
            }
        }
        patched
    }
}

impl Cluster {
    /// Lets a container of the bad image that was just started end after a while.
    pub(super) fn schedule_death(&mut self, id: u64, container: &str) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let mut running = machine.engine.running();
        let Some(container) = running.find(|it| it.id == container) else {
            return;
        };
        let row = self.oracle.row(&container.replica, container.raft_index);
        if !row.is_some_and(|row| is_bad(&row.image)) {
            return;
        }
        let event = Event::Dies(id, container.id.clone(), container.starts);
        let takes = self.engine_chance.within(10 * MS..3 * SECOND);
        self.agenda.add(self.now + takes, event);
    }

    /// Ends the process of a container with a failure, unless it was started again since.
    pub(super) fn end_bad_container(&mut self, id: u64, container: &str, start: u64) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        if let Some(replica) = machine.engine.exit(container, start, 1) {
            self.count("containers of a bad image ended");
            self.note(&[35, id], || format!("{replica} dies on n{id}"));
            let after = self.engine_chance.within(MS..50 * MS);
            self.schedule_local(id, after, Local::EngineEvent(replica));
        }
    }
}

/// Row of a replica that is assigned to this machine, by the state of its node.
fn wanted_row<'a>(machine: &'a Machine, replica: &str) -> Option<&'a ReplicaDesired> {
    let row = machine
        .daemon
        .as_ref()?
        .state
        .replicas_desired
        .get(replica)?;
    (row.host == machine.host).then_some(row)
}

impl Cluster {
    pub(super) fn begin_pull(&mut self, id: u64, replica: &str) {
        if let Some(machine) = self.machines.get_mut(&id)
            && let Some(image) = wanted_row(machine, replica).map(|row| row.image.clone())
        {
            machine.engine.begin_pull(replica, &image);
        }
    }

    /// Checks that a container that makes way for its successor runs until the image of that one is
    /// there.
    pub(super) fn judge_image(&mut self, id: u64, replica: &str, container: &str) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let mut containers = machine.engine.containers();
        let container = containers.find(|it| it.id == container);
        let outdated = wanted_row(machine, replica)
            .filter(|row| container.is_some_and(|it| it.raft_index < row.raft_index));
        if let Some(row) = outdated
            && !machine.engine.has_image(&row.image)
        {
            let what = format!("n{id} stops {replica} before it has {}", row.image);
            self.oracle.violate("pulled before the stop", what);
        }
    }
}

impl Oracle {
    /// Checks the rollouts that an entry begins, continues or ends; `seen` is the state on which the
    /// entry was planned.
    pub(super) fn check_rollouts(&mut self, seen: &State, before: &State, after: &State) {
        if let Some(what) = taken_away(seen, before, after) {
            self.violate("one replica at a time", what);
        }
        if let Some(what) = replaced_while_held(seen, before, after) {
            self.violate("paused rollouts replace nothing", what);
        }
        for (name, deployment) in &after.deployments {
            let former = before.deployments.get(name);
            let was_held = former.is_some_and(|former| former.rollout_hold.is_some());
            match (was_held, deployment.rollout_hold.is_some()) {
                (false, true) => self.count_rollout("rollouts paused"),
                (true, false) => self.count_rollout("rollouts resumed, or overtaken"),
                (false, false) | (true, true) => {}
            }
        }
        for (key, plan) in &after.rollout_plans {
            let former = before.rollout_plans.get(key);
            if let Some(what) = unproven(seen, former.map(AsRef::as_ref), plan) {
                self.violate("steps follow new containers", what);
            }
            if former.is_some_and(|former| former.state() == plan.state()) {
                continue;
            }
            match plan.state() {
                RolloutState::Completed => self.count_rollout("rollouts completed"),
                RolloutState::Aborted => {
                    self.count_rollout("rollouts failed");
                    if let Some(what) = kept_revision(before, after, plan) {
                        self.violate("failed revisions are rolled back", what);
                    }
                }
                RolloutState::InProgress | RolloutState::Unspecified => {}
            }
        }
    }
}

/// Whether two rows of one replica have the same settings.
fn is_same(a: &ReplicaDesired, b: &ReplicaDesired) -> bool {
    a.image == b.image && a.spec_hash == b.spec_hash && a.secrets_version == b.secrets_version
}

/// Whether the report about a row says that its own container runs.
fn runs(state: &State, row: &ReplicaDesired) -> bool {
    let seen = state.replicas_observed.get(&row.id);
    seen.is_some_and(|seen| {
        seen.state() == ReplicaState::Running
            && seen.host == row.host
            && seen.desired_raft_index >= row.raft_index
    })
}

/// Whether the host of a row is in contact and isolates its containers: nothing waits for another one.
fn is_reached(state: &State, row: &ReplicaDesired) -> bool {
    let node = state.nodes.get(&row.host);
    node.is_some_and(|node| node.status() == NodeStatus::Ready)
}

/// Services of which an entry changes a replica that runs, while another one does not run.
fn taken_away(seen: &State, before: &State, after: &State) -> Option<String> {
    if before.replicas_desired.ptr_eq(&after.replicas_desired) {
        return None;
    }
    let changed = after.replicas_desired.values().filter_map(|row| {
        let former = before.replicas_desired.get(&row.id)?;
        let replaced = row.raft_index == after.applied_index && row.host == former.host;
        let serves = seen.replicas_desired.get(&row.id)?.raft_index == former.raft_index
            && is_reached(seen, former)
            && runs(seen, former);
        (replaced && serves && !is_same(row, former)).then_some(row)
    });
    let mut taken: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for row in changed {
        let service = (row.deployment.as_str(), row.service.as_str());
        taken.entry(service).or_default().push(&row.id);
    }
    for ((deployment, service), taken) in taken {
        let rows = seen.replicas_desired.values();
        let rows = rows.filter(|row| row.deployment == deployment && row.service == service);
        let is_down = |row: &&Arc<ReplicaDesired>| {
            let wanted = after.replicas_desired.contains_key(&row.id);
            wanted
                && is_reached(seen, row)
                && !runs(seen, row)
                && moves::finished(seen, row).is_none()
        };
        let down: Vec<&str> = rows.filter(is_down).map(|row| row.id.as_str()).collect();
        if taken.len() + down.len() > 1 {
            let index = after.applied_index;
            return Some(format!(
                "entry {index} replaces {taken:?} while {down:?} do not run"
            ));
        }
    }
    None
}

/// A replica that an entry replaces on its host, planned while the rollouts of its deployment were
/// paused.
fn replaced_while_held(seen: &State, before: &State, after: &State) -> Option<String> {
    let mut rows = after.replicas_desired.values();
    let row = rows.find(|row| {
        let former = before.replicas_desired.get(&row.id);
        let replaced = row.raft_index == after.applied_index
            && former.is_some_and(|former| row.host == former.host && !is_same(row, former));
        let deployment = seen.deployments.get(&row.deployment);
        replaced && deployment.is_some_and(|deployment| deployment.rollout_hold.is_some())
    })?;
    Some(format!("entry {} replaces {}", row.raft_index, row.id))
}

/// A plan that has counted more replicas than run with the settings of their service.
fn unproven(
    seen: &State,
    former: Option<&v1::RolloutPlan>,
    plan: &v1::RolloutPlan,
) -> Option<String> {
    let is_same = |former: &&v1::RolloutPlan| former.target_revision == plan.target_revision;
    let counted = former
        .filter(is_same)
        .map_or(0, |former| former.current_step);
    let deployment = seen.deployments.get(&plan.deployment)?;
    if plan.current_step <= counted || deployment.applied_revision != plan.target_revision {
        return None;
    }
    let images = documents::read(&deployment.compose_yaml);
    let image = images.get(plan.service.as_str())?;
    let done = |row: &&Arc<ReplicaDesired>| {
        let is_own = row.deployment == plan.deployment && row.service == plan.service;
        let runs = runs(seen, row) || moves::finished(seen, row).is_some();
        is_own && row.image == *image && (runs || !is_reached(seen, row))
    };
    let done = seen.replicas_desired.values().filter(done).count();
    let counts_more = usize::try_from(plan.current_step).is_ok_and(|counted| counted > done);
    counts_more.then(|| format!("{done} replicas run, by {plan:?}"))
}

/// A deployment that keeps the revision of which a rollout has failed, or a part of its content,
/// though it has the revision before.
fn kept_revision(before: &State, after: &State, plan: &v1::RolloutPlan) -> Option<String> {
    let former = before.deployments.get(&plan.deployment)?;
    let restores = former.previous_revision > 0
        && former.previous_revision < former.applied_revision
        && !plan.secrets_only
        && plan.target_revision == former.applied_revision
        // The former content has no place any more.
        && !plan.failure_reason.contains("not rolled back");
    let wanted = former.previous.as_ref().filter(|_| restores)?;
    let now = after.deployments.get(&plan.deployment)?;
    let is_restored =
        now.applied_revision == wanted.revision && now.compose_yaml == wanted.compose_yaml;
    let (name, revision) = (&plan.deployment, now.applied_revision);
    (!is_restored).then(|| format!("{name} has revision {revision} after {plan:?}"))
}

/// Describes a rollout in progress, unless it is paused or the members cannot hold what its service
/// asks for.
pub(super) fn unfinished(state: &State) -> Option<String> {
    let waits = |plan: &v1::RolloutPlan| {
        let deployment = state.deployments.get(&plan.deployment);
        if deployment.is_some_and(|deployment| deployment.rollout_hold.is_some()) {
            return true;
        }
        let mut rows = state.replicas_desired.values();
        rows.any(|row| {
            let is_own = row.deployment == plan.deployment && row.service == plan.service;
            is_own && expected::is_unsatisfiable(state, row)
        })
    };
    let mut plans = state.rollout_plans.values();
    let plan = plans.find(|plan| plan.state() == RolloutState::InProgress && !waits(plan))?;
    let deployment = state.deployments.get(&plan.deployment)?;
    let (status, services) = (&deployment.status_details, &deployment.services);
    Some(format!("{plan:?} of {services:?}, {status:?}"))
}

/// Whether a service may have rows of a former revision at rest: its rollout is paused, or has failed
/// and could not be rolled back.
pub(super) fn may_be_outdated(state: &State, deployment: &v1::Deployment, service: &str) -> bool {
    if deployment.rollout_hold.is_some() {
        return true;
    }
    let plan = state
        .rollout_plans
        .get(&(deployment.name.clone(), service.to_owned()));
    plan.is_some_and(|plan| {
        plan.state() == RolloutState::Aborted && plan.target_revision == deployment.applied_revision
    })
}
