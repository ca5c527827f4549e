//! Decides when a revision runs or has failed, and renders progress until then.
//!
//! Pure: snapshots are the input, verdicts and lines the output.

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::v1::{
    self, DeploymentStatus, ReplicaState, RolloutState, service_spec::PlacementMode,
};

use super::goal::{Goal, Replica, Snapshot};
use crate::client::{
    failure::{Failure, Local},
    output::text::{counted, pairs},
    replica,
};

/// State of a wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Convergence {
    /// Undecided.
    Waiting,
    /// Every replica of the revision runs.
    Converged,
    /// The revision cannot converge without intervention.
    Stuck(Box<Failure>),
}

/// Progress of one service.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServiceProgress {
    pub(super) service: String,
    pub(super) ready: usize,
    pub(super) total: usize,
    /// Step of the replica that is furthest from running.
    pub(super) step: String,
}

/// Tracks one revision until it runs or has failed.
#[derive(Debug)]
pub(super) struct Tracker {
    goal: Goal,
    snapshot: Snapshot,
    rollouts: BTreeMap<String, v1::RolloutPlan>,
    /// Whether the queried daemon has applied the revision.
    applied_seen: bool,
    reported: BTreeMap<String, String>,
}

impl Tracker {
    /// A tracker without a snapshot.
    pub(super) fn new(goal: Goal) -> Self {
        Self {
            goal,
            snapshot: Snapshot::default(),
            rollouts: BTreeMap::new(),
            applied_seen: false,
            reported: BTreeMap::new(),
        }
    }

    /// Name of the deployment.
    pub(super) fn deployment(&self) -> &str {
        &self.goal.deployment
    }

    /// Records a rollout plan, which another may replace before the next snapshot.
    pub(super) fn handle_event(&mut self, event: v1::SubscribeEvent) {
        if let Some(v1::subscribe_event::Payload::RolloutPlan(event)) = event.payload
            && let Some(plan) = event.after
        {
            self.record(plan);
        }
    }

    fn record(&mut self, plan: v1::RolloutPlan) {
        if plan.deployment == self.goal.deployment && plan.target_revision == self.goal.revision {
            self.rollouts.insert(plan.service.clone(), plan);
        }
    }

    /// Evaluates a new snapshot.
    pub(super) fn handle_snapshot(&mut self, snapshot: Snapshot) -> Convergence {
        self.snapshot = snapshot;
        let rollouts = std::mem::take(&mut self.snapshot.rollouts);
        rollouts.into_iter().for_each(|plan| self.record(plan));
        if let Some(verdict) = self.deployment_verdict() {
            return verdict;
        }
        let ended = |plan: &v1::RolloutPlan| match plan.state() {
            RolloutState::Aborted => Some("aborted"),
            RolloutState::InProgress if plan.paused => Some("paused"),
            RolloutState::InProgress | RolloutState::Completed | RolloutState::Unspecified => None,
        };
        let mut plans = self.rollouts.values();
        if let Some((plan, how)) = plans.find_map(|plan| Some((plan, ended(plan)?))) {
            let why = format!("the rollout of service {} was {how}", plan.service);
            let failure = self.not_converged(&why);
            return stuck(failure.with("rollout", &plan.failure_reason));
        }
        let mut current = self.current();
        let failed = current.find(|seen| seen.has_failed() && !self.is_rolling(&seen.service));
        if let Some(failed) = failed {
            let why = match failed.reason.text().as_str() {
                "" => format!("replica {} failed", failed.id),
                reason => format!("replica {} failed: {reason}", failed.id),
            };
            return stuck(self.not_converged(&why));
        }
        if self.is_complete() {
            Convergence::Converged
        } else {
            Convergence::Waiting
        }
    }

    /// The verdict from the deployment alone; `None` if its replicas decide.
    fn deployment_verdict(&mut self) -> Option<Convergence> {
        let goal = self.goal.revision;
        let Some(deployment) = &self.snapshot.deployment else {
            let gone = self
                .applied_seen
                .then(|| stuck(self.not_converged("it was deleted")));
            return Some(gone.unwrap_or(Convergence::Waiting));
        };
        let applied = deployment.applied_revision;
        if applied > goal {
            let why = format!("revision {applied} was applied in the meantime");
            return Some(stuck(self.not_converged(&why)));
        }
        if applied < goal {
            // A daemon that lags behind has not seen a revision this high.
            let back = self.applied_seen || deployment.highest_revision >= goal;
            let why = format!("it was rolled back to revision {applied}");
            return Some(if deployment.failed_revision == goal {
                stuck(self.rolled_back(applied, &deployment.failure_reason))
            } else if back {
                stuck(self.not_converged(&why))
            } else {
                Convergence::Waiting
            });
        }
        self.applied_seen = true;
        let deployment = self.snapshot.deployment.as_ref()?;
        if deployment.status() == DeploymentStatus::Pending {
            let details = &deployment.status_details;
            let reason = details
                .get("reason")
                .cloned()
                .unwrap_or_else(|| pairs(details));
            return Some(stuck(
                self.not_converged(&format!("it is pending: {reason}")),
            ));
        }
        None
    }

    /// Whether every service has all of its replicas running as applied.
    fn is_complete(&self) -> bool {
        let mut services = self.rollouts.keys();
        let rolling = services.any(|service| self.is_rolling(service));
        let ids: BTreeSet<&String> = self.snapshot.replicas.iter().map(|seen| &seen.id).collect();
        // A global service has one replica per node, and only the daemon knows the nodes.
        let missing = self.has_global() && self.goal.added.iter().any(|id| !ids.contains(id));
        !rolling
            && !missing
            && self
                .services()
                .iter()
                .all(|service| service.ready == service.total)
    }

    /// Whether a rollout of the service is in progress, which itself ends with a verdict.
    fn is_rolling(&self, service: &str) -> bool {
        let plan = self.rollouts.get(service);
        plan.is_some_and(|plan| plan.state() == RolloutState::InProgress)
    }

    fn has_global(&self) -> bool {
        let deployment = self.snapshot.deployment.iter();
        deployment
            .flat_map(|d| &d.services)
            .any(|s| s.placement() == PlacementMode::Global)
    }

    /// Replicas that belong to the revision.
    fn wanted(&self) -> impl Iterator<Item = &Replica> {
        let replicas = self.snapshot.replicas.iter();
        replicas.filter(|seen| !self.goal.removed.contains(&seen.id))
    }

    /// Replicas of the revision whose state was observed for it, not for the generation before.
    fn current(&self) -> impl Iterator<Item = &Replica> {
        self.wanted().filter(|seen| self.is_current(seen))
    }

    fn is_current(&self, seen: &Replica) -> bool {
        let image = self.goal.images.get(&seen.service);
        let replaced = self
            .goal
            .replaced
            .get(&seen.id)
            .is_none_or(|&old| seen.wanted > old);
        let reported = seen.seen == 0 || seen.seen >= seen.wanted;
        replaced && reported && image.is_none_or(|image| *image == seen.image)
    }

    /// Whether a replica runs, or has ended as its service asks.
    fn is_ready(&self, seen: &Replica) -> bool {
        (seen.state == ReplicaState::Running || seen.finished() == Some(0)) && self.is_current(seen)
    }

    /// The replicas of the last snapshot.
    pub(super) fn replicas(&self) -> &[Replica] {
        &self.snapshot.replicas
    }

    /// Progress of each service.
    pub(super) fn services(&self) -> Vec<ServiceProgress> {
        let specs = self
            .snapshot
            .deployment
            .iter()
            .flat_map(|deployment| &deployment.services);
        specs.map(|spec| self.service(spec)).collect()
    }

    fn service(&self, spec: &v1::ServiceSpec) -> ServiceProgress {
        let own: Vec<&Replica> = self
            .wanted()
            .filter(|seen| seen.service == spec.name)
            .collect();
        let ready = own.iter().filter(|seen| self.is_ready(seen)).count();
        let total = match spec.placement() {
            PlacementMode::Global => own.len(),
            PlacementMode::Unspecified
            | PlacementMode::Spread
            | PlacementMode::Pack
            | PlacementMode::Hosts => usize::try_from(spec.replicas).unwrap_or(0).max(own.len()),
        };
        let slowest = own
            .iter()
            .filter(|seen| !self.is_ready(seen))
            .min_by_key(|seen| self.rank(seen));
        let step = match slowest {
            _ if own.len() < total => "scheduling".to_owned(),
            Some(seen) if self.hold().is_some() && !self.is_current(seen) => "paused".to_owned(),
            Some(seen) => self.step(seen),
            None if !own.is_empty() && own.iter().all(|seen| seen.finished().is_some()) => {
                "finished".to_owned()
            }
            None => "running".to_owned(),
        };
        ServiceProgress {
            service: spec.name.clone(),
            ready,
            total,
            step,
        }
    }

    /// Pause of the deployment's rollouts by an operator.
    fn hold(&self) -> Option<&v1::RolloutHold> {
        let deployment = self.snapshot.deployment.as_ref();
        deployment.and_then(|deployment| deployment.rollout_hold.as_ref())
    }

    /// Progress towards running; the lowest rank is the furthest from it.
    fn rank(&self, seen: &Replica) -> u8 {
        if !self.is_current(seen) {
            return 0;
        }
        match seen.state {
            ReplicaState::Failed => 1,
            ReplicaState::Unspecified | ReplicaState::Pending | ReplicaState::Stopped => 2,
            ReplicaState::Pulling => 3,
            ReplicaState::Updating => 4,
            ReplicaState::Degraded => 5,
            ReplicaState::Running => 6,
        }
    }

    fn step(&self, seen: &Replica) -> String {
        let state = replica::state(seen.state);
        match seen.reason.code.as_str() {
            _ if !self.is_current(seen) => "replacing".to_owned(),
            _ if seen.finished() == Some(0) => "finished".to_owned(),
            "" => state,
            code if code == state => state,
            code => format!("{state} ({code})"),
        }
    }

    /// One line for every replica that changed since the last call.
    pub(super) fn poll_changes(&mut self) -> Vec<String> {
        let now: BTreeMap<String, String> = self
            .wanted()
            .map(|seen| {
                (
                    seen.id.clone(),
                    format!("{} on {}", self.step(seen), seen.host),
                )
            })
            .collect();
        let changed = now
            .iter()
            .filter(|&(id, line)| self.reported.get(id) != Some(line));
        let lines = changed.map(|(id, line)| format!("{id}: {line}")).collect();
        self.reported = now;
        lines
    }

    /// The failure of a wait that timed out.
    pub(super) fn timed_out(&self, waited: &str) -> Failure {
        self.failure(Local::TimedOut, &format!("it did not run within {waited}"))
    }

    /// The failure of a revision in whose place the cluster restored the one before.
    fn rolled_back(&self, applied: u64, reason: &str) -> Failure {
        let Goal {
            deployment,
            revision,
            ..
        } = &self.goal;
        let message = format!(
            "deployment {deployment} revision {revision} was rolled back to revision {applied}: {reason}"
        );
        Failure::new(Local::RolledBack, message)
    }

    /// A failure with every replica that does not run, and every service with missing replicas.
    fn not_converged(&self, why: &str) -> Failure {
        self.failure(Local::NotConverged, why)
    }

    fn failure(&self, code: Local, why: &str) -> Failure {
        let message = format!(
            "deployment {} revision {} did not converge: {why}",
            self.goal.deployment, self.goal.revision
        );
        let mut failure = Failure::new(code, message);
        if let Some(hold) = self.hold() {
            failure = failure.with("rollouts", format!("paused: {}", hold.by));
        }
        for seen in self.wanted().filter(|seen| !self.is_ready(seen)) {
            let state = if self.is_current(seen) {
                replica::state(seen.state)
            } else {
                "replacing".to_owned()
            };
            let reason = match seen.reason.text().as_str() {
                "" => state,
                reason => format!("{state}: {reason}"),
            };
            failure = failure.with(&seen.id, reason);
        }
        for spec in self
            .snapshot
            .deployment
            .iter()
            .flat_map(|deployment| &deployment.services)
        {
            let progress = self.service(spec);
            let scheduled = self
                .wanted()
                .filter(|seen| seen.service == spec.name)
                .count();
            if scheduled < progress.total {
                let missing = counted(progress.total - scheduled, "replica");
                failure = failure.with(
                    format!("service {}", spec.name),
                    format!("{missing} not scheduled"),
                );
            }
        }
        failure
    }
}

fn stuck(failure: Failure) -> Convergence {
    Convergence::Stuck(Box::new(failure))
}

#[cfg(test)]
mod tests;
