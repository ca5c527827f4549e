//! Rolling updates of the services of one deployment within a pass.

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::{
    replica_code::{IMAGE_PULL_FAILED, RESTART_EXHAUSTED},
    v1::{self, AuditEventType, ReplicaState, command::Payload, service_spec::PlacementMode},
};
use jaco_state::{
    command,
    fsm::{self, MOVE_ATTEMPT, MOVE_REASON},
};

use super::Plan;
use crate::{
    runtime::assignment,
    scheduler::{
        moves,
        placement::HostEligibility,
        projects::Template,
        rollout::{Progress, Replica, STEP_TIMEOUT, Service, Step, TIMED_OUT, Target},
    },
};

/// Identity of commands of a rollout.
const IDENTITY: &str = "rollout";

/// Failed pulls after which an image counts as bad: a registry may be away for a moment.
const FAILED_PULLS: u32 = 3;

/// Replicas to replace in this pass, by service.
pub(super) enum Due {
    /// These.
    Replace(BTreeMap<String, BTreeSet<String>>),
    /// None, as the deployment is rolled back by this pass.
    RolledBack,
}

impl Due {
    /// Whether an outdated replica is to be replaced now.
    pub(super) fn contains(&self, service: &str, id: &str) -> bool {
        match self {
            Self::Replace(due) => due.get(service).is_some_and(|ids| ids.contains(id)),
            Self::RolledBack => false,
        }
    }
}

impl<'a> Plan<'a> {
    /// Takes the next step of each rollout of `deployment`.
    pub(super) fn roll(
        &mut self,
        deployment: &'a v1::Deployment,
        templates: &BTreeMap<String, Template>,
    ) -> Due {
        let mut services: BTreeMap<&'a str, Vec<Replica<'a>>> = BTreeMap::new();
        for spec in &deployment.services {
            if let Some(template) = templates.get(&spec.name) {
                services.insert(&spec.name, self.replicas(deployment, spec, template));
            }
        }
        let mut due = BTreeMap::new();
        let mut steps = Vec::new();
        for spec in &deployment.services {
            let (Some(template), Some(replicas)) =
                (templates.get(&spec.name), services.get(spec.name.as_str()))
            else {
                continue;
            };
            let key = (deployment.name.clone(), spec.name.clone());
            let service = Service {
                key: (&deployment.name, &spec.name),
                plan: self.state.rollout_plans.get(&key).map(AsRef::as_ref),
                target: Target {
                    revision: deployment.applied_revision,
                    secrets_version: self.state.secrets_version(&deployment.name, spec),
                },
                settings: template.rollout,
                replicas,
                may_start: self.may_start(deployment, &spec.name, templates, &services),
                is_held: deployment.rollout_hold.is_some(),
            };
            let step = self.rollouts.step(service, self.now, self.ts);
            due.insert(spec.name.clone(), ids(&step));
            steps.push((spec.name.as_str(), step));
        }
        let failed = steps.iter_mut().find(|(_, step)| step.rolls_back);
        if let Some((service, step)) = failed
            && let Some(plan) = &mut step.plan
            && restores_previous(deployment)
        {
            let replicas = services.get(service).map_or(&[][..], Vec::as_slice);
            let rollback = v1::DeploymentRollback {
                deployment: deployment.name.clone(),
                revision: deployment.previous_revision,
                failure_reason: self.failure(plan, replicas),
            };
            let rollback = command(IDENTITY, self.ts, Payload::DeploymentRollback(rollback));
            match self.refusal(&rollback) {
                None => {
                    let plan = step.plan.take();
                    self.write(plan);
                    // Without it the aborted plan would leave the deployment half changed.
                    self.children.push_with_last(rollback);
                    return Due::RolledBack;
                }
                Some(why) => plan.failure_reason += &format!(" (not rolled back: {why})"),
            }
        }
        for (service, step) in steps {
            if let Some(down) = step.held {
                self.report_hold(deployment, service, down);
            }
            self.write(step.plan);
        }
        Due::Replace(due)
    }

    /// Progress of the replicas of a service that have a row, by index.
    fn replicas(
        &self,
        deployment: &'a v1::Deployment,
        spec: &'a v1::ServiceSpec,
        template: &Template,
    ) -> Vec<Replica<'a>> {
        let owner = (deployment.name.as_str(), spec.name.as_str());
        let secrets_version = self.state.secrets_version(&deployment.name, spec);
        let rows = self.rows.get(&owner).into_iter().flatten();
        let mut rows: Vec<(&'a str, &'a v1::ReplicaDesired)> =
            rows.map(|(id, row)| (*id, *row)).collect();
        rows.sort_by_key(|(_, row)| row.index);
        let stays = template.stateful || is_pinned(spec.placement());
        let replica = |(id, row): (&'a str, &v1::ReplicaDesired)| Replica {
            id,
            progress: self.progress(row, template, secrets_version, stays),
        };
        rows.into_iter().map(replica).collect()
    }

    /// Progress of one replica, which `stays` on a host that is lost, or moves to another.
    fn progress(
        &self,
        row: &v1::ReplicaDesired,
        template: &Template,
        secrets_version: u64,
        stays: bool,
    ) -> Progress {
        let is_outdated = !template.is_of(row, secrets_version);
        let is_reached = match self.hosts.eligibility(&row.host) {
            Some(HostEligibility::Down | HostEligibility::Evacuating(Some(_))) | None => false,
            Some(
                HostEligibility::Eligible
                | HostEligibility::Cordoned
                | HostEligibility::Suspect
                | HostEligibility::Evacuating(None),
            ) => true,
        };
        if !is_reached && stays {
            return Progress::Unreachable {
                outdated: is_outdated,
            };
        }
        let seen = moves::current(self.state, row).filter(|_| is_reached);
        let runs = seen.filter(|seen| seen.state() == ReplicaState::Running);
        if is_outdated {
            return Progress::Outdated {
                serves: runs.is_some(),
                secrets_only: template.is_of(row, row.secrets_version),
            };
        }
        if moves::is_exhausted(self.state, row) {
            return Progress::Failed(reason(seen));
        }
        let Some(seen) = seen else {
            let former = self.state.replicas_observed.get(&row.id);
            let former = former.filter(|seen| has_bad_image(seen, MOVE_ATTEMPT));
            return match former.and_then(|seen| seen.details.get(MOVE_REASON)) {
                Some(reason) => Progress::Failed(reason.clone()),
                None => Progress::Updating,
            };
        };
        match seen.finished() {
            Some(0) => Progress::ready(seen),
            Some(exit_code) => Progress::Failed(format!("ended with exit code {exit_code}")),
            None if runs.is_some() && !self.hosts.is_suspect(&row.host) => Progress::ready(seen),
            None if seen.code == IMAGE_PULL_FAILED && has_bad_image(seen, "attempt") => {
                Progress::Failed(reason(Some(seen)))
            }
            None => Progress::Updating,
        }
    }

    /// Whether each service that this one depends on, through others too, has its new settings
    /// everywhere, and its own conditions hold.
    fn may_start(
        &self,
        deployment: &v1::Deployment,
        service: &str,
        templates: &BTreeMap<String, Template>,
        services: &BTreeMap<&'a str, Vec<Replica<'a>>>,
    ) -> bool {
        let conditions = templates.get(service).map(|template| &template.depends_on);
        let unmet = conditions.into_iter().flatten().any(|(name, dependency)| {
            let (state, condition) = (self.state, dependency.condition);
            dependency.required && !assignment::satisfied(state, &deployment.name, name, condition)
        });
        let mut met = BTreeSet::from([service]);
        let mut left = vec![service];
        while let Some(name) = left.pop() {
            let next = templates.get(name).into_iter();
            for name in next.flat_map(|template| template.depends_on.keys()) {
                if met.insert(name) {
                    left.push(name);
                }
            }
        }
        met.remove(service);
        let changes = |name: &&str| {
            services
                .get(name)
                .is_some_and(|r| r.iter().any(Replica::changes))
        };
        !unmet && !met.iter().any(changes)
    }

    /// Reason why the rollout of `plan` failed, with what a replica reported that did not run in time.
    fn failure(&self, plan: &v1::RolloutPlan, replicas: &[Replica<'_>]) -> String {
        let awaited = replicas.iter().find(|r| r.progress == Progress::Updating);
        match awaited.filter(|_| plan.failure_reason == TIMED_OUT) {
            Some(replica) => {
                let (id, limit) = (replica.id, STEP_TIMEOUT.as_secs());
                let seen = self.state.replicas_observed.get(id);
                let why = seen.map(|seen| reason(Some(seen))).unwrap_or_default();
                format!("{id} did not run within {limit} seconds: {why}")
            }
            None => plan.failure_reason.clone(),
        }
    }

    /// Error with which the state machine would reject `command`, as when another deployment has
    /// taken over a route. It would reject the whole pass, again and again.
    fn refusal(&self, command: &v1::Command) -> Option<String> {
        let applied = fsm::apply(self.state, self.state.applied_index + 1, command);
        match applied.map(|applied| applied.result) {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    fn write(&mut self, plan: Option<v1::RolloutPlan>) {
        if plan.is_some() {
            let update = Payload::RolloutPlanUpdate(v1::RolloutPlanUpdate { plan });
            self.children.push(command(IDENTITY, self.ts, update));
        }
    }

    fn report_hold(&mut self, deployment: &v1::Deployment, service: &str, down: usize) {
        let reason = format!("invariant_hold: {down} replicas not running (>1)");
        let payload = [
            ("deployment", deployment.name.clone()),
            ("service", service.to_owned()),
            ("reason", reason),
        ];
        let event = v1::AuditEvent {
            r#type: AuditEventType::RolloutInvariantHold.into(),
            payload: payload.map(|(key, value)| (key.to_owned(), value)).into(),
            ..Default::default()
        };
        let append = Payload::AuditAppend(v1::AuditAppend { event: Some(event) });
        self.children.push(command(IDENTITY, self.ts, append));
    }
}

/// Whether so many pulls have failed, by the detail `attempt` of a report, that the image counts as bad.
fn has_bad_image(seen: &v1::ReplicaObserved, attempt: &str) -> bool {
    let pulls = seen
        .details
        .get(attempt)
        .and_then(|n| n.parse::<u32>().ok());
    pulls.is_some_and(|pulls| pulls >= FAILED_PULLS)
}

/// Whether a failed rollout of `deployment` restores the revision before. The content of a revision
/// that was itself restored replaced a later one, which is not tried again.
fn restores_previous(deployment: &v1::Deployment) -> bool {
    let previous = deployment.previous_revision;
    previous > 0 && previous < deployment.applied_revision
}

/// Reason in a report, or its code; `restart_exhausted` where the report is that of a former host.
fn reason(seen: Option<&v1::ReplicaObserved>) -> String {
    match seen {
        Some(seen) if !seen.message.is_empty() => seen.message.clone(),
        Some(seen) => seen.code.clone(),
        None => RESTART_EXHAUSTED.to_owned(),
    }
}

/// Whether replicas placed like this may have no other host than theirs.
fn is_pinned(placement: PlacementMode) -> bool {
    match placement {
        PlacementMode::Global | PlacementMode::Hosts => true,
        PlacementMode::Unspecified | PlacementMode::Spread | PlacementMode::Pack => false,
    }
}

fn ids(step: &Step<'_>) -> BTreeSet<String> {
    step.replace.iter().map(|id| (*id).to_owned()).collect()
}
