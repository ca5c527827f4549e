//! Watches a container and handles its failures.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant, SystemTime},
};

use jaco_engine::{EngineError, Found, Inspected, NetworkNamespace, Status};
use jaco_proto::{
    manifest::compose::{Restart, RestartCondition},
    v1::ReplicaState,
};

use super::{
    Action, Assignment, Core, Now, POLL_PENDING, POLL_RUNNING, POLL_SAFETY, Phase, PostStartError,
    RESTARTS, RETRY, STABLE_AFTER, StartGate, exponential,
};
use crate::runtime::replica::{
    health::{self, assess, assess_failure},
    readiness::{Readiness, Startup},
    report::{LENDER, POST_START, Report, START, code},
};

/// How the watch of a container began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Just started, so earlier observations do not apply.
    New,
    /// Found in a listing, with this status.
    Adopted(Status),
}

/// Watched container.
#[derive(Debug)]
pub(super) struct Watch {
    container: String,
    index: u64,
    /// The container was started or seen running by this actor.
    ran: bool,
    startup: Startup,
    started_at: Option<SystemTime>,
    /// Time since which it has been running without a pause.
    running_since: Option<Instant>,
    state: ReplicaState,
    next: Instant,
    /// Whether the inspection in flight, if any, connects to ports.
    inflight: Option<bool>,
    /// An event arrived while a poll or the commands of `post_start` were in flight.
    reinspect: bool,
    /// Start for which the commands of `post_start` have succeeded.
    post_start: Option<String>,
    /// Start for which they are in flight.
    starting: Option<String>,
    /// Why they failed.
    post_start_error: Option<PostStartError>,
    /// The container was reported as running before this watch.
    served: bool,
}

/// Whether the commands of `post_start` come before a container counts as running.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PostStart {
    /// The service has none, or the container has served without.
    NotNeeded,
    /// They run unless they have succeeded.
    Needed,
    /// They must have succeeded before the row of the container was replaced.
    Outdated,
}

/// Expectations of a service of its watched container.
struct Expected<'a> {
    health: health::Expected<'a>,
    post_start: PostStart,
}

/// Outcome of an inspection.
struct Examined {
    report: Report,
    /// Start for which the commands of `post_start` are due.
    post_start: Option<String>,
    /// Time at which a container that is up and not ready is to be checked again.
    check_again: Option<Instant>,
}

impl Watch {
    pub(super) fn new(
        now: Instant,
        container: &str,
        index: u64,
        origin: Origin,
        known: Option<&Report>,
    ) -> Self {
        let known = match origin {
            Origin::New => None,
            Origin::Adopted(_) => known.filter(|report| report.container_id == container),
        };
        let post_start = known.and_then(|report| report.details.get(POST_START).cloned());
        let served = known.is_some_and(|report| report.started_at.is_some());
        let known = known.filter(|report| report.state == ReplicaState::Running);
        Self {
            container: container.to_owned(),
            index,
            ran: matches!(origin, Origin::New | Origin::Adopted(Status::Running)),
            startup: match (origin, known) {
                // A container already reported as running need not prove it again. That report may be
                // about an earlier start of it, if the process ended before the next one was replicated.
                (_, Some(known)) => Startup::ready(now, known.details.get(START).cloned()),
                (Origin::New, None) => Startup::started(now),
                (Origin::Adopted(_), None) => Startup::unknown(),
            },
            started_at: known.and_then(|report| report.started_at),
            running_since: None,
            state: ReplicaState::Pending,
            next: now + POLL_PENDING,
            inflight: None,
            reinspect: false,
            post_start,
            starting: None,
            post_start_error: None,
            served,
        }
    }

    pub(super) fn index(&self) -> u64 {
        self.index
    }

    pub(super) fn next_poll(&self) -> Option<Instant> {
        (!self.is_busy()).then_some(self.next)
    }

    fn is_busy(&self) -> bool {
        self.inflight.is_some() || self.starting.is_some()
    }

    /// Whether the container has ended and is left as it is.
    pub(super) fn has_ended(&self) -> bool {
        self.state == ReplicaState::Stopped
    }

    /// Handles a change of the event stream; without events, polls are due sooner.
    pub(super) fn reschedule(&mut self, now: Instant, events: bool) {
        self.next = self.next.min(now + self.interval(events));
    }

    /// Derives the outcome of an inspection.
    fn examine(
        &mut self,
        now: Instant,
        seen: Inspected,
        accepted: Option<BTreeSet<u16>>,
        expected: &Expected<'_>,
    ) -> Examined {
        let Expected { health, post_start } = *expected;
        let runs = seen.status == Some(Status::Running);
        self.ran |= runs;
        let failure = self.post_start_error.take().filter(|_| runs);
        let (mut due, mut next) = (None, None);
        let mut report = if !runs || post_start == PostStart::NotNeeded {
            let report;
            (report, next) = assess(now, &seen, health, &mut self.startup, accepted);
            report
        } else if self.post_start.as_ref() == Some(&seen.started_at) {
            let report;
            (report, next) = assess(now, &seen, health, &mut self.startup, accepted);
            report.with(POST_START, &seen.started_at)
        } else if let Some(error) = failure {
            Report::new(ReplicaState::Failed, 0).because(code::POST_START_FAILED, error.to_string())
        } else {
            due = (post_start == PostStart::Needed).then(|| seen.started_at.clone());
            let what = "the commands of post_start have not ended";
            Report::new(ReplicaState::Pending, 0).because("", what)
        };
        if report.state == ReplicaState::Running {
            report = report.with(START, seen.started_at);
        }
        if let NetworkNamespace::Lent(lender) = seen.namespace {
            report.details.insert(LENDER.to_owned(), lender);
        }
        for (network, address) in seen.addresses {
            report.details.insert(format!("ip.{network}"), address);
        }
        Examined {
            report,
            post_start: due,
            check_again: next,
        }
    }

    /// Time since which the container has been running, if it is.
    fn note_running(&mut self, now: Instant, report: &Report) {
        self.running_since = match report.state {
            ReplicaState::Running => self.running_since.or(Some(now)),
            ReplicaState::Pending
            | ReplicaState::Pulling
            | ReplicaState::Degraded
            | ReplicaState::Updating
            | ReplicaState::Failed
            | ReplicaState::Stopped
            | ReplicaState::Unspecified => None,
        };
    }

    fn interval(&self, events: bool) -> Duration {
        match self.state {
            ReplicaState::Running | ReplicaState::Degraded if events => POLL_SAFETY,
            ReplicaState::Running | ReplicaState::Degraded => POLL_RUNNING,
            ReplicaState::Failed | ReplicaState::Stopped => POLL_SAFETY,
            ReplicaState::Pending
            | ReplicaState::Pulling
            | ReplicaState::Updating
            | ReplicaState::Unspecified => POLL_PENDING,
        }
    }
}

impl Core {
    /// Handles an engine event about a container of this replica: inspects now rather than at the
    /// next poll.
    pub fn handle_engine_event(&mut self) {
        if let Phase::Watching(watch) = &mut self.phase {
            if watch.is_busy() {
                watch.reinspect = true;
            } else {
                self.inspect(false);
            }
        } else if self.pulls_ahead
            && matches!(
                self.phase,
                Phase::Preparing(_) | Phase::Pulling(_) | Phase::PullBackoff(_) | Phase::Waiting(_)
            )
        {
            // The container that serves may have ended.
            self.actions.push_back(Action::Cancel);
            self.lookup();
        }
    }

    /// Inspects the container; connects to the ports that have not accepted yet if `probes`.
    pub(super) fn inspect(&mut self, probes: bool) {
        let generation = self.next_generation();
        let readiness = match probes {
            true => self.readiness().clone(),
            false => Readiness::Unknown,
        };
        if let Phase::Watching(watch) = &mut self.phase {
            let ports = watch.startup.probe(&readiness);
            watch.inflight = Some(!ports.is_empty());
            let container = watch.container.clone();
            self.actions
                .push_back(Action::Inspect(generation, container, ports));
        }
    }

    fn readiness(&self) -> &Readiness {
        match &self.assignment {
            Assignment::Own(wanted) => &wanted.readiness,
            Assignment::Kept { readiness } => readiness,
            Assignment::Gone => &Readiness::Unknown,
        }
    }

    /// Handles the outcome of [`Action::Inspect`]; `accepted` are those of its ports that accepted a
    /// connection.
    pub fn handle_inspected(
        &mut self,
        now: Now,
        generation: u64,
        result: Result<Inspected, EngineError>,
        accepted: BTreeSet<u16>,
    ) {
        if !self.expects(generation) {
            return;
        }
        let has_finished = self.has_finished();
        let Phase::Watching(watch) = &mut self.phase else {
            return;
        };
        let always = Restart::default();
        let (readiness, restart, post_start) = match &self.assignment {
            Assignment::Own(wanted) => {
                let is_current = wanted.raft_index == watch.index;
                let post_start = match wanted.has_post_start {
                    true if is_current => PostStart::Needed,
                    true if !watch.served => PostStart::Outdated,
                    true | false => PostStart::NotNeeded,
                };
                let restart = if is_current { &wanted.restart } else { &always };
                (&wanted.readiness, restart, post_start)
            }
            Assignment::Kept { readiness } => (readiness, &always, PostStart::NotNeeded),
            Assignment::Gone => (&Readiness::Unknown, &always, PostStart::NotNeeded),
        };
        let expected = Expected {
            health: health::Expected { readiness, restart },
            post_start,
        };
        let probed = watch.inflight.take().unwrap_or(false);
        let reinspect = std::mem::take(&mut watch.reinspect);
        if let Ok(seen) = &result
            && let Assignment::Own(wanted) = &self.assignment
            && wanted.raft_index == watch.index
            && self.exhausted.is_none()
            && has_lost_network(seen)
        {
            return self.replace_borrower();
        }
        let examined = match result {
            Ok(seen) => {
                let accepted = probed.then_some(accepted);
                watch.examine(now.instant, seen, accepted, &expected)
            }
            Err(error @ EngineError::Unreachable(_)) => return self.engine_failed(now, &error),
            // A container that was removed or cannot be read leaves its end as it was.
            Err(_) if has_finished => {
                watch.next = now.instant + POLL_SAFETY;
                return;
            }
            Err(error) => {
                watch.startup.reset();
                Examined {
                    report: assess_failure(&error),
                    post_start: None,
                    check_again: None,
                }
            }
        };
        let Examined {
            mut report,
            post_start: due,
            check_again,
        } = examined;
        if report.state == ReplicaState::Running && watch.started_at.is_none() {
            watch.started_at = Some(now.wall);
        }
        report.container_id.clone_from(&watch.container);
        report.raft_index = watch.index;
        report.started_at = watch.started_at;
        watch.state = report.state;
        watch.starting.clone_from(&due);
        watch.next = match check_again {
            Some(next) => next.max(now.instant),
            None => now.instant + watch.interval(self.events),
        };
        let container = watch.container.clone();
        self.handle_report(now, report);
        if due.is_some() {
            let generation = self.next_generation();
            self.actions
                .push_back(Action::PostStart(generation, container));
        } else if reinspect {
            self.handle_engine_event();
        }
    }

    /// Handles the outcome of [`Action::PostStart`].
    ///
    /// The commands run again if this actor or its engine ends before the report that they
    /// succeeded is replicated.
    pub fn handle_post_started(
        &mut self,
        now: Now,
        generation: u64,
        result: Result<(), PostStartError>,
    ) {
        if !self.expects(generation) {
            return;
        }
        let Phase::Watching(watch) = &mut self.phase else {
            return;
        };
        let start = watch.starting.take();
        watch.reinspect = false;
        match result {
            Ok(()) => watch.post_start = start,
            Err(PostStartError::Engine(error)) => return self.engine_failed(now, &error),
            // The container may have ended with the command.
            Err(error @ PostStartError::Failed { .. }) => watch.post_start_error = Some(error),
        }
        self.inspect(false);
    }

    /// Replaces a container whose lender has ended: only a new one gets another network namespace.
    /// That is no failure of the replica and does not count as one; it starts again once the lender
    /// runs.
    fn replace_borrower(&mut self) {
        let Phase::Watching(watch) = &self.phase else {
            return;
        };
        let (container, index) = (watch.container.clone(), watch.index);
        self.target = Some(index);
        (self.restarting, self.failed_here) = (true, true);
        let why = "the container whose network it shares has ended";
        self.publish(Report::new(ReplicaState::Pending, index).because("", why));
        self.discard(vec![container]);
    }

    fn handle_report(&mut self, now: Now, mut report: Report) {
        self.forgive_failures(now.instant, &report);
        let row = self.raft_index();
        let owned = row == Some(report.raft_index);
        if let Some(row) = row
            && !owned
            && report.state != ReplicaState::Running
        {
            // The outdated container was kept until its successor may start. Report its failure
            // under the newer row, because the cluster ignores reports for older rows.
            report.state = ReplicaState::Pending;
            report.raft_index = report.raft_index.max(row);
            return self.publish(report);
        }
        match report.state {
            ReplicaState::Running => {
                self.exhausted = None;
                self.publish(report);
            }
            // Once the budget is exhausted, only `running` resets it.
            _ if self.exhausted.is_some() => {}
            // The engine restarts no unhealthy container either.
            ReplicaState::Degraded if owned && !self.restarts_failed() => self.publish(report),
            ReplicaState::Failed | ReplicaState::Degraded if owned => self.fail(now, report),
            ReplicaState::Failed
            | ReplicaState::Degraded
            | ReplicaState::Pending
            | ReplicaState::Pulling
            | ReplicaState::Updating
            | ReplicaState::Stopped
            | ReplicaState::Unspecified => self.publish(report),
        }
    }

    /// Resets the restart budget of a container that has been running for [`STABLE_AFTER`]: one that
    /// fails soon after each start must exhaust it.
    fn forgive_failures(&mut self, now: Instant, report: &Report) {
        let Phase::Watching(watch) = &mut self.phase else {
            return;
        };
        let stable_at = watch.running_since.map(|since| since + STABLE_AFTER);
        watch.note_running(now, report);
        if stable_at.is_some_and(|at| at <= now) {
            self.failures = 0;
        } else if self.failures > 0
            && let Some(since) = watch.running_since
        {
            watch.next = watch.next.min(since + STABLE_AFTER);
        }
    }

    /// Whether the service is restarted after a failure.
    fn restarts_failed(&self) -> bool {
        let condition = self.restart_policy().map(|restart| restart.condition);
        condition != Some(RestartCondition::Never)
    }

    fn restart_policy(&self) -> Option<&Restart> {
        match &self.assignment {
            Assignment::Own(wanted) => Some(&wanted.restart),
            Assignment::Kept { .. } | Assignment::Gone => None,
        }
    }

    /// Counts one failure: restarts after 1, 2 and 4 seconds, or as the service asks, then gives up.
    fn fail(&mut self, now: Now, mut report: Report) {
        let Phase::Watching(watch) = &self.phase else {
            return;
        };
        self.failures = self.failures.saturating_add(1);
        let restart = self.restart_policy();
        if self.failures > restart.and_then(|it| it.attempts).unwrap_or(RESTARTS) {
            self.exhausted = Some(watch.index);
            report.state = ReplicaState::Failed;
            let text = format!(
                "{} failures in a row, last: {}",
                self.failures, report.message
            );
            let report = report
                .because(code::RESTART_EXHAUSTED, text)
                .with("consecutive_failures", self.failures)
                .with("cause", "container");
            return self.publish(report);
        }
        let (index, container, ran) = (watch.index, watch.container.clone(), watch.ran);
        self.back_off(now, index, container, ran);
        self.publish(report);
    }

    /// Waits before the restart of a container whose failure is counted.
    pub(super) fn back_off(&mut self, now: Now, index: u64, container: String, ran: bool) {
        let delay = self.restart_policy().and_then(|it| it.delay);
        let delay = delay.unwrap_or_else(|| exponential(self.failures.saturating_sub(1), RETRY));
        self.target = Some(index);
        self.phase = Phase::RestartBackoff {
            until: now.instant + delay,
            container,
            ran,
        };
    }

    /// Whether the end of a container is counted as a failure. Other failures leave it to its exit
    /// code whether it restarts.
    pub(super) fn has_counted(&self, ended: &Found) -> bool {
        let last = self.published.as_ref();
        last.is_some_and(|last| {
            last.state == ReplicaState::Failed
                && last.code == code::CONTAINER_EXITED
                && last.container_id == ended.id
                && Some(last.raft_index) == ended.raft_index
        })
    }

    /// Replaces a container after its backoff. One that did not run under this actor waits until the
    /// node has caught up, as the cluster may have moved its replica elsewhere.
    pub(super) fn restart(&mut self, container: String, ran: bool) {
        let must_catch_up = matches!(
            &self.assignment,
            Assignment::Own(wanted) if wanted.gate == StartGate::NotCaughtUp
        );
        (self.restarting, self.failed_here) = (ran || !must_catch_up, ran);
        match self.restarting {
            true => self.discard(vec![container]),
            false => self.lookup(),
        }
    }
}

/// Whether a running container has no network any more, because another's ended with it.
fn has_lost_network(seen: &Inspected) -> bool {
    seen.status == Some(Status::Running) && seen.namespace == NetworkNamespace::Lost
}
