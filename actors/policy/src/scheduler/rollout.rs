//! Rolling update of one service: which replicas are replaced next, and when the update has failed.
//!
//! Pure: the replicas' progress and the monotonic time lead to a [`Step`]. The [`RolloutPlan`] in the
//! state says what is rolled out and how far; times are those of this leader alone ([`Rollouts`]), so
//! that a new leader counts them anew, and clocks of different nodes are never compared.
//!
//! [`RolloutPlan`]: v1::RolloutPlan

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use jaco_proto::{
    manifest::compose::{FailureAction, UpdateConfig},
    v1::{self, RolloutState},
};
use prost_types::Timestamp;

use super::restarts::{Instance, STABLE_AFTER};

/// Time within which a replica that is being replaced must run, its pull included.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for which a new replica must run until the rollout relies on it, unless `monitor` says
/// otherwise: as long as it takes until its failures are forgotten.
pub const MONITOR: Duration = STABLE_AFTER;
/// Shortest time between two audit events about one rollout that is held.
pub const HOLD_REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// `failure_reason` of a rollout whose replica did not run within [`STEP_TIMEOUT`].
pub const TIMED_OUT: &str = "step_timeout";

/// Settings of the rollouts of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Replicas that may be down at the same time; `None`: all of them.
    pub parallelism: Option<u32>,
    /// Pause after a replica has been replaced.
    pub delay: Duration,
    /// Time for which a new replica must run.
    pub monitor: Duration,
    /// Reaction to a failure.
    pub on_failure: FailureAction,
}

impl Default for Settings {
    fn default() -> Self {
        Self::from(&UpdateConfig::default())
    }
}

impl From<&UpdateConfig> for Settings {
    fn from(config: &UpdateConfig) -> Self {
        Self {
            parallelism: Some(config.parallelism.unwrap_or(1)).filter(|count| *count > 0),
            delay: config.delay.unwrap_or_default(),
            monitor: config.monitor.unwrap_or(MONITOR),
            on_failure: config.failure_action.unwrap_or(FailureAction::Rollback),
        }
    }
}

/// Revision, and values of secrets, that a rollout leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Revision of the deployment.
    pub revision: u64,
    /// Digest of the values of the service's secrets.
    pub secrets_version: u64,
}

impl Target {
    /// Whether `plan` rolls out this target.
    #[must_use]
    pub fn is_of(self, plan: &v1::RolloutPlan) -> bool {
        plan.target_revision == self.revision && plan.secrets_version == self.secrets_version
    }
}

/// Progress of one replica.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// It has other settings than the target.
    Outdated {
        /// Whether it serves, so that its replacement takes a replica away.
        serves: bool,
        /// Whether only the values of its secrets differ.
        secrets_only: bool,
    },
    /// It has the target's settings and does not run yet, or not any more.
    Updating,
    /// It has the target's settings, and this run of its container is ready.
    Ready(Instance),
    /// It has the target's settings and was given up: the reason.
    Failed(String),
    /// Its host is out of reach, and changes it once it is back.
    Unreachable {
        /// Whether it has other settings than the target.
        outdated: bool,
    },
}

/// One replica of the service that has a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its progress.
    pub progress: Progress,
}

/// State of a service as a pass sees it.
#[derive(Clone, Copy, Debug)]
pub struct Service<'a> {
    /// Deployment and name.
    pub key: (&'a str, &'a str),
    /// Plan in the state, if there is one.
    pub plan: Option<&'a v1::RolloutPlan>,
    /// Settings that its replicas should have.
    pub target: Target,
    /// Its settings.
    pub settings: Settings,
    /// Its replicas in the order in which they are replaced.
    pub replicas: &'a [Replica<'a>],
    /// Whether a rollout may begin: nothing that this service depends on is missing.
    pub may_start: bool,
    /// Whether an operator has paused its rollouts.
    pub is_held: bool,
}

/// Changes that one pass makes for a service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step<'a> {
    /// Replicas to replace now.
    pub replace: BTreeSet<&'a str>,
    /// Plan to write, if it changes.
    pub plan: Option<v1::RolloutPlan>,
    /// Whether the rollout failed and the previous revision is to be restored.
    pub rolls_back: bool,
    /// Number of replicas that do not run and for which the rollout waits, when it is to be reported.
    pub held: Option<usize>,
}

/// Times of the rollouts in progress; the caller keeps it between passes.
#[derive(Clone, Debug, Default)]
pub struct Rollouts {
    timings: BTreeMap<(String, String), Timing>,
    /// Those of the pass before which this pass has not met yet.
    earlier: BTreeMap<(String, String), Timing>,
    at_once: bool,
}

/// Times of one rollout.
#[derive(Clone, Debug)]
struct Timing {
    target: Target,
    /// Since when it waits for replicas without progress.
    stalled_since: Option<Instant>,
    /// Time of the last progress.
    advanced_at: Option<Instant>,
    /// Since when each replica is ready, and which run of its container that is.
    ready: BTreeMap<String, (Instance, Instant)>,
    /// Replicas that were ready at some time.
    arrived: BTreeSet<String>,
    /// Whether one new replica ran long enough, so that others follow without waiting for that.
    proven: bool,
    /// Replicas that the rollout does not wait for any longer.
    skipped: BTreeSet<String>,
    held_reported_at: Option<Instant>,
    /// Time at which the next step is due if nothing happens until then.
    wake_at: Option<Instant>,
}

impl Timing {
    fn new(target: Target) -> Self {
        Self {
            target,
            stalled_since: None,
            advanced_at: None,
            ready: BTreeMap::new(),
            arrived: BTreeSet::new(),
            proven: false,
            skipped: BTreeSet::new(),
            held_reported_at: None,
            wake_at: None,
        }
    }
}

impl Rollouts {
    /// Rollouts that replace every outdated replica in one step, without a plan: for a preview of all
    /// that a rollout will change.
    #[must_use]
    pub fn at_once() -> Self {
        Self {
            at_once: true,
            ..Self::default()
        }
    }

    /// Begins a pass; rollouts that it does not meet are forgotten.
    pub fn begin_pass(&mut self) {
        self.earlier = std::mem::take(&mut self.timings);
    }

    /// Time at which the next step is due if nothing happens until then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timings
            .values()
            .filter_map(|timing| timing.wake_at)
            .min()
    }

    /// Decides the next step of a service at the monotonic time `now`; plans carry the time `ts`.
    pub fn step<'a>(&mut self, service: Service<'a>, now: Instant, ts: Timestamp) -> Step<'a> {
        if self.at_once {
            let outdated = service.replicas.iter().filter(|r| r.outdated().is_some());
            return Step {
                replace: outdated.map(|r| r.id).collect(),
                ..Step::default()
            };
        }
        if service.is_held {
            return Step::default();
        }
        let Some(plan) = plan_in_force(&service, ts) else {
            return Step {
                plan: overtaken(&service),
                ..Step::default()
            };
        };
        let key = (service.key.0.to_owned(), service.key.1.to_owned());
        let timing = self.earlier.remove(&key);
        let mut timing = timing
            .filter(|timing| timing.target == service.target)
            .unwrap_or_else(|| Timing::new(service.target));
        let step = timing.step(&service, plan, now, ts);
        if step.plan.as_ref().is_none_or(is_active) {
            self.timings.insert(key, timing);
        }
        step
    }
}

/// Replaces the plan of another target that is still in progress, if its successor has to wait, by one
/// that has not begun.
fn overtaken(service: &Service<'_>) -> Option<v1::RolloutPlan> {
    let plan = service.plan?;
    let overtaken = plan.state() == RolloutState::InProgress && !service.target.is_of(plan);
    overtaken.then(|| v1::RolloutPlan {
        deployment: plan.deployment.clone(),
        service: plan.service.clone(),
        target_revision: service.target.revision,
        secrets_version: service.target.secrets_version,
        total_steps: count(service.replicas.len()),
        ..Default::default()
    })
}

fn is_active(plan: &v1::RolloutPlan) -> bool {
    plan.state() == RolloutState::InProgress && !plan.paused
}

/// Returns the plan of the rollout in progress, or that of one which begins; `None` if there is
/// nothing to roll out, or it has to wait, or has failed.
fn plan_in_force(service: &Service<'_>, ts: Timestamp) -> Option<v1::RolloutPlan> {
    let current = service.plan.filter(|plan| service.target.is_of(plan));
    match current {
        Some(plan) if is_active(plan) => return Some(plan.clone()),
        // It stays as it is until there is another target.
        Some(plan) if plan.paused || plan.state() == RolloutState::Aborted => return None,
        Some(_) | None => {}
    }
    let mut outdated = service.replicas.iter().filter_map(Replica::outdated);
    let first = outdated.next();
    let begins = match first {
        Some(_) => service.may_start,
        // The replicas of a rollout that another one overtakes are still to be watched.
        None => current.is_none() && service.plan.is_some_and(is_active),
    };
    begins.then(|| v1::RolloutPlan {
        deployment: service.key.0.to_owned(),
        service: service.key.1.to_owned(),
        target_revision: service.target.revision,
        secrets_version: service.target.secrets_version,
        secrets_only: first == Some(true) && outdated.all(|secrets_only| secrets_only),
        total_steps: count(service.replicas.len()),
        state: RolloutState::InProgress.into(),
        started_at: Some(ts),
        last_step_at: Some(ts),
        ..Default::default()
    })
}

impl Progress {
    /// Progress of a replica whose report says that it runs, or has ended as it should.
    #[must_use]
    pub fn ready(seen: &v1::ReplicaObserved) -> Self {
        Self::Ready(Instance::of(seen))
    }
}

impl Replica<'_> {
    /// Whether the replica is still to be replaced, or is being replaced.
    #[must_use]
    pub fn changes(&self) -> bool {
        self.outdated().is_some() || self.is_updating()
    }

    /// Whether only values of secrets differ, if the replica is outdated.
    fn outdated(&self) -> Option<bool> {
        match self.progress {
            Progress::Outdated { secrets_only, .. } => Some(secrets_only),
            Progress::Unreachable { outdated: true } => Some(false),
            Progress::Unreachable { outdated: false }
            | Progress::Updating
            | Progress::Ready(_)
            | Progress::Failed(_) => None,
        }
    }

    fn is_updating(&self) -> bool {
        self.progress == Progress::Updating
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

impl Timing {
    fn step<'a>(
        &mut self,
        service: &Service<'a>,
        mut plan: v1::RolloutPlan,
        now: Instant,
        ts: Timestamp,
    ) -> Step<'a> {
        self.observe(service, now);
        let mut step = Step::default();
        if let Some(reason) = self.failure(service, now) {
            plan.failure_reason = reason;
            if service.settings.on_failure == FailureAction::Pause {
                plan.paused = true;
            } else {
                plan.state = RolloutState::Aborted.into();
                step.rolls_back = !plan.secrets_only;
            }
            self.wake_at = None;
            step.plan = Some(plan);
            return step;
        }
        let done = count(self.done(service));
        plan.total_steps = count(service.replicas.len()).max(done);
        if done > plan.current_step {
            plan.current_step = done;
            plan.last_step_at = Some(ts);
            self.advanced_at = Some(now);
            self.stalled_since = None;
        }
        step.replace = self.next(service, now);
        if !step.replace.is_empty() {
            self.stalled_since = Some(now);
        } else if service.replicas.iter().any(|r| self.is_awaited(r)) {
            self.stalled_since.get_or_insert(now);
        } else {
            self.stalled_since = None;
        }
        if self.is_complete(service, now) {
            plan.state = RolloutState::Completed.into();
        }
        step.held = self.held(service, now);
        self.wake_at = self.next_timeout(service, now);
        step.plan = Some(plan).filter(|plan| service.plan != Some(plan));
        step
    }

    /// Records which replicas have become ready, and which are not any more.
    fn observe(&mut self, service: &Service<'_>, now: Instant) {
        let mut ready = BTreeMap::new();
        for replica in service.replicas {
            if let Progress::Ready(instance) = &replica.progress {
                let known = self.ready.remove(replica.id);
                let since = known.filter(|(known, _)| known == instance);
                let since = since.map_or(now, |(_, since)| since);
                self.proven |= since + service.settings.monitor <= now;
                ready.insert(replica.id.to_owned(), (instance.clone(), since));
                self.arrived.insert(replica.id.to_owned());
            }
        }
        self.ready = ready;
    }

    /// Reason why the rollout has failed; one that continues after failures does not wait for those
    /// replicas any longer instead.
    fn failure(&mut self, service: &Service<'_>, now: Instant) -> Option<String> {
        let expired = self
            .stalled_since
            .is_some_and(|since| since + STEP_TIMEOUT <= now);
        if service.settings.on_failure == FailureAction::Continue {
            for replica in service.replicas {
                let failed = matches!(replica.progress, Progress::Failed(_));
                if failed || expired && replica.is_updating() {
                    self.skipped.insert(replica.id.to_owned());
                }
            }
            return None;
        }
        let failed = service.replicas.iter().find_map(|r| match &r.progress {
            Progress::Failed(reason) => Some(format!("{}: {reason}", r.id)),
            Progress::Outdated { .. }
            | Progress::Updating
            | Progress::Ready(_)
            | Progress::Unreachable { .. } => None,
        });
        failed.or_else(|| expired.then(|| TIMED_OUT.to_owned()))
    }

    /// Whether the rollout waits for this replica to run.
    fn is_awaited(&self, replica: &Replica<'_>) -> bool {
        replica.is_updating() && !self.skipped.contains(replica.id)
    }

    /// Number of replicas that are as they should be, or that are not waited for.
    fn done(&self, service: &Service<'_>) -> usize {
        let done = |replica: &&Replica<'_>| match replica.progress {
            Progress::Ready(_) | Progress::Unreachable { outdated: false } => true,
            Progress::Outdated { .. } | Progress::Unreachable { outdated: true } => false,
            Progress::Updating | Progress::Failed(_) => self.skipped.contains(replica.id),
        };
        service.replicas.iter().filter(done).count()
    }

    /// Whether each new replica has run for the time that it is monitored.
    fn is_complete(&self, service: &Service<'_>, now: Instant) -> bool {
        let stable = |(_, since): &(Instance, Instant)| *since + service.settings.monitor <= now;
        self.done(service) == service.replicas.len() && self.ready.values().all(stable)
    }

    /// Replicas to replace now.
    fn next<'a>(&self, service: &Service<'a>, now: Instant) -> BTreeSet<&'a str> {
        let replicas = || service.replicas.iter();
        let mut chosen: BTreeSet<&str> = replicas()
            .filter(|r| r.progress == Progress::Unreachable { outdated: true })
            .map(|r| r.id)
            .collect();
        let outdated = |with: bool| {
            let with_serving = move |r: &&Replica<'a>| matches!(&r.progress, Progress::Outdated { serves, .. } if *serves == with);
            replicas().filter(with_serving).map(|r| r.id)
        };
        if outdated(true).next().is_none() && self.ready.is_empty() {
            // Nothing serves, so there is nothing to lose.
            chosen.extend(outdated(false));
            return chosen;
        }
        if self.delayed_until(service).is_some_and(|end| now < end) {
            return chosen;
        }
        let all = service.replicas.len();
        let limit = service.settings.parallelism;
        let limit = limit.map_or(all, |limit| usize::try_from(limit).unwrap_or(all));
        let updating = replicas().filter(|r| self.is_awaited(r)).count();
        let idle = outdated(false).count();
        chosen.extend(outdated(false).take(limit.saturating_sub(updating)));
        if self.proven || self.ready.is_empty() {
            chosen.extend(outdated(true).take(limit.saturating_sub(updating + idle)));
        }
        chosen
    }

    fn delayed_until(&self, service: &Service<'_>) -> Option<Instant> {
        self.advanced_at.map(|at| at + service.settings.delay)
    }

    /// Number of replicas that do not run, if replicas wait for one that did run with its new
    /// settings; reported at most once per [`HOLD_REPORT_INTERVAL`].
    fn held(&mut self, service: &Service<'_>, now: Instant) -> Option<usize> {
        let mut replicas = service.replicas.iter();
        let waits = replicas.any(|r| r.outdated().is_some());
        let down = service.replicas.iter().filter(|r| self.is_awaited(r));
        let down: Vec<&str> = down.map(|r| r.id).collect();
        let again = down.iter().any(|id| self.arrived.contains(*id));
        let reported = self.held_reported_at;
        let due = reported.is_none_or(|at| at + HOLD_REPORT_INTERVAL <= now);
        if !(waits && again && due) {
            return None;
        }
        self.held_reported_at = Some(now);
        Some(down.len())
    }

    fn next_timeout(&self, service: &Service<'_>, now: Instant) -> Option<Instant> {
        let monitored = self.ready.values();
        let monitored = monitored.map(|(_, since)| *since + service.settings.monitor);
        let stalled = self.stalled_since.map(|since| since + STEP_TIMEOUT);
        let due = monitored.chain(stalled).chain(self.delayed_until(service));
        due.filter(|at| *at > now).min()
    }
}

#[cfg(test)]
mod tests;
