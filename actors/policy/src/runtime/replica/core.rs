//! Decisions of one replica: the next engine request and the report to publish.
//!
//! At most one slow action is in flight; each carries a generation, and outcomes of older
//! generations are ignored. Pull, prepare and the wait for a withdrawal can be cancelled at any point;
//! create, start and remove always run to completion, because only their outcome reveals a container
//! left half-done.

use std::{
    collections::{BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use jaco_engine::EngineError;
use jaco_proto::v1::ReplicaState;

use super::report::{Report, code};
pub use action::{Action, StartCondition};
pub use input::{
    Assignment, DesiredReplica, Now, PROGRESS_EVERY, PostStartError, PrepareError, Seed,
    StartError, StartGate,
};
use watch::Watch;

mod action;
mod input;
mod retire;
mod start;
mod watch;

#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

/// Consecutive failures that lead to a restart, unless the service has a number of its own; the next
/// one exhausts the restart budget.
pub const RESTARTS: u32 = 3;
/// Delay before a failed start is retried; also the longest backoff of other retries.
pub const RETRY: Duration = Duration::from_secs(30);
/// Consecutive failures to prepare a start that are not published.
pub(super) const UNREPORTED_PREPARE_FAILURES: u32 = 1;
/// Time as running after which earlier failures of a container do not count any more.
pub const STABLE_AFTER: Duration = Duration::from_secs(5);
/// Poll interval of a container that is not yet running; the time of a readiness check may come
/// sooner.
pub const POLL_PENDING: Duration = Duration::from_secs(1);
/// Time between polls of a running container without engine events.
pub const POLL_RUNNING: Duration = Duration::from_secs(5);
/// Poll interval of a running container while engine events arrive.
pub const POLL_SAFETY: Duration = Duration::from_secs(30);

/// Time without progress after which a pull attempt fails. A layer may take hours to arrive in
/// full, but its bytes must not pause for minutes.
///
/// Source: the default of containerd's `image_pull_progress_timeout`.
pub const PULL_PROGRESS_TIMEOUT: Duration = Duration::from_secs(300);

/// Longest wait before a stop signal until every ready node has withdrawn the container from
/// routing.
pub const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(2);

const PULL_BACKOFF_MAX: Duration = Duration::from_secs(3600);

#[derive(Debug)]
enum Phase {
    /// Nothing in flight; lists containers again at the deadline or on a new assignment.
    Waiting(Option<Instant>),
    LookingUp,
    /// Prepares the start of this container, or of a new one.
    Preparing(Option<String>),
    /// Fails at the deadline, which every progress message extends.
    Pulling(Instant),
    PullBackoff(Instant),
    Launching,
    Starting(String),
    /// The containers that may serve are being withdrawn from routing.
    Withdrawing {
        until: Instant,
        containers: BTreeSet<String>,
    },
    Discarding,
    Watching(Box<Watch>),
    RestartBackoff {
        until: Instant,
        container: String,
        /// The container has run under this actor.
        ran: bool,
    },
    Finished,
}

/// State machine of one replica.
#[derive(Debug)]
pub struct Core {
    host: String,
    assignment: Assignment,
    phase: Phase,
    generation: u64,
    /// Log index of the row being started; `None` while only waiting or watching.
    target: Option<u64>,
    /// The row moved away during its start, so its container is not kept.
    abandoned: bool,
    /// The current start replaces a failed container: it uses the same image without a pull, and
    /// dependencies do not hold it back.
    restarting: bool,
    /// The container that a restart replaces has run under this actor, so that catching up does not
    /// hold the restart back.
    failed_here: bool,
    /// The engine has listed the containers since the last create.
    listed: bool,
    /// The image of the current start was pulled.
    pulled: bool,
    /// The image is pulled while a container of an earlier row serves.
    pulls_ahead: bool,
    /// Row whose image was pulled like that.
    pulled_ahead: Option<u64>,
    /// Last report about that pull.
    progress: Option<Report>,
    /// Containers that are withdrawn from routing, for the decision that follows.
    withdrawn: BTreeSet<String>,
    failures: u32,
    pull_attempts: u32,
    engine_failures: u32,
    conflicts: u32,
    prepare_failures: u32,
    engine_down: bool,
    /// Log index of the row whose restart budget is exhausted.
    exhausted: Option<u64>,
    events: bool,
    published: Option<Report>,
    actions: VecDeque<Action>,
}

impl Core {
    /// Creates the core of a replica known only from `seed`; it waits for its first assignment.
    #[must_use]
    pub fn new(host: impl Into<String>, seed: Seed, events: bool) -> Self {
        Self {
            host: host.into(),
            assignment: Assignment::Gone,
            phase: Phase::Finished,
            generation: 0,
            target: None,
            abandoned: false,
            restarting: false,
            failed_here: false,
            listed: false,
            pulled: false,
            pulls_ahead: false,
            pulled_ahead: None,
            progress: None,
            withdrawn: BTreeSet::new(),
            failures: seed.failures,
            pull_attempts: 0,
            engine_failures: 0,
            conflicts: 0,
            prepare_failures: 0,
            engine_down: false,
            exhausted: seed
                .report
                .as_ref()
                .filter(|report| report.code == code::RESTART_EXHAUSTED)
                .map(|report| report.raft_index),
            events,
            published: seed.report,
            actions: VecDeque::new(),
        }
    }

    /// Returns the next action to run.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Time at which to call [`Core::handle_timeout`]; always later than its last call.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Waiting(until) => *until,
            Phase::Pulling(until)
            | Phase::PullBackoff(until)
            | Phase::Withdrawing { until, .. }
            | Phase::RestartBackoff { until, .. } => Some(*until),
            Phase::Watching(watch) => watch.next_poll(),
            Phase::LookingUp
            | Phase::Preparing(_)
            | Phase::Launching
            | Phase::Starting(_)
            | Phase::Discarding
            | Phase::Finished => None,
        }
    }

    /// Last published report.
    #[must_use]
    pub fn last_report(&self) -> Option<&Report> {
        self.published.as_ref()
    }

    /// Whether the image of the row in force is pulled while a container of an earlier one serves.
    #[must_use]
    pub fn pulls_ahead(&self) -> bool {
        self.pulls_ahead
    }

    /// Reason why a wanted start is deferred, if it is.
    #[must_use]
    pub fn deferred(&self) -> Option<&str> {
        let Assignment::Own(DesiredReplica {
            gate: StartGate::Deferred(why),
            raft_index,
            ..
        }) = &self.assignment
        else {
            return None;
        };
        let waits = match &self.phase {
            Phase::Waiting(until) => until.is_none() && !self.has_finished() && !self.is_given_up(),
            Phase::Watching(watch) => watch.index() != *raft_index,
            Phase::LookingUp
            | Phase::Preparing(_)
            | Phase::Pulling(_)
            | Phase::PullBackoff(_)
            | Phase::Launching
            | Phase::Starting(_)
            | Phase::Withdrawing { .. }
            | Phase::Discarding
            | Phase::RestartBackoff { .. }
            | Phase::Finished => false,
        };
        waits.then_some(why)
    }

    /// Whether the replica has no assignment here and its remaining containers, if any, are being
    /// removed: no container is created here any more.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        let unwanted = match &self.assignment {
            Assignment::Gone => true,
            Assignment::Kept { .. } => self.abandoned,
            Assignment::Own(_) => false,
        };
        let passive = matches!(
            self.phase,
            Phase::Waiting(_) | Phase::LookingUp | Phase::Withdrawing { .. } | Phase::Discarding
        );
        unwanted && passive && self.listed
    }

    /// Handles the assignment that the current state gives; an unchanged one has no effect.
    pub fn handle_assignment(&mut self, assignment: Assignment) {
        let first = matches!(self.phase, Phase::Finished);
        if self.assignment == assignment && !first {
            return;
        }
        let reissued =
            self.raft_index() != own_index(&assignment) && own_index(&assignment).is_some();
        if reissued {
            // A new row resets every budget; an actor that just started continues with the budgets
            // of the row it last reported on.
            let known = self.published.as_ref().map(|report| report.raft_index);
            if !first || known.is_some_and(|known| Some(known) != own_index(&assignment)) {
                self.failures = 0;
            }
            if self.exhausted != own_index(&assignment) {
                self.exhausted = None;
            }
            self.prepare_failures = 0;
            self.restarting = false;
            self.abandoned = false;
        }
        self.assignment = assignment;
        match &self.phase {
            // These phases read the assignment when their outcome arrives.
            Phase::LookingUp
            | Phase::Launching
            | Phase::Starting(_)
            | Phase::Withdrawing { .. }
            | Phase::Discarding => {
                self.mark_abandoned_start();
            }
            Phase::Preparing(_) | Phase::Pulling(_) | Phase::PullBackoff(_) => {
                if self.raft_index() != self.target || self.is_gate_closed() {
                    self.mark_abandoned_start();
                    self.actions.push_back(Action::Cancel);
                    self.lookup();
                }
            }
            Phase::RestartBackoff { .. } => {
                if self.raft_index() != self.target {
                    self.mark_abandoned_start();
                    self.lookup();
                }
            }
            Phase::Waiting(_) => {
                self.mark_abandoned_start();
                self.lookup();
            }
            Phase::Watching(watch) => {
                let superseded = match &self.assignment {
                    // An outdated container keeps serving until its successor may start.
                    Assignment::Own(wanted) if wanted.raft_index != watch.index() => {
                        reissued || self.may_start(&wanted.gate)
                    }
                    // The policy of the service may start it again now.
                    Assignment::Own(_) => watch.has_ended() && !self.has_finished(),
                    Assignment::Kept { .. } => false,
                    Assignment::Gone => true,
                };
                if superseded {
                    self.lookup();
                }
            }
            // Look even if the row is gone: a container may be left.
            Phase::Finished => self.lookup(),
        }
    }

    /// Handles the passing of the deadline; has no effect before it.
    pub fn handle_timeout(&mut self, now: Now) {
        if self.poll_timeout().is_none_or(|due| due > now.instant) {
            return;
        }
        let gate_closed = self.is_gate_closed();
        match &mut self.phase {
            Phase::Waiting(_) => self.lookup(),
            Phase::Pulling(_) => self.pull_timed_out(now),
            Phase::PullBackoff(_) if gate_closed => self.lookup(),
            Phase::PullBackoff(_) => self.pull(now),
            Phase::RestartBackoff { container, ran, .. } => {
                let (container, ran) = (std::mem::take(container), *ran);
                self.restart(container, ran);
            }
            Phase::Withdrawing { .. } => {
                self.actions.push_back(Action::Cancel);
                self.withdrawn();
            }
            Phase::Watching(_) => self.inspect(true),
            Phase::LookingUp
            | Phase::Preparing(_)
            | Phase::Launching
            | Phase::Starting(_)
            | Phase::Discarding
            | Phase::Finished => {}
        }
    }

    /// Handles the start (`up`) or the break of the engine's event stream.
    pub fn handle_event_stream(&mut self, now: Now, up: bool) {
        let came_up = up && !self.events;
        self.events = up;
        if came_up && self.engine_down {
            self.lookup();
        } else if let Phase::Watching(watch) = &mut self.phase {
            watch.reschedule(now.instant, up);
            if came_up {
                // Events in between were lost.
                self.handle_engine_event();
            }
        }
    }

    /// Handles the discovery of several containers with this replica's label: lists them to remove
    /// surplus ones. Phases other than watching list them anyway.
    pub fn handle_duplicates(&mut self) {
        if matches!(self.phase, Phase::Watching(_)) {
            self.lookup();
        }
    }

    /// Restarts the decision from a listing of the engine's containers.
    fn lookup(&mut self) {
        self.phase = Phase::LookingUp;
        let generation = self.next_generation();
        self.actions.push_back(Action::Lookup(generation));
    }

    fn discard(&mut self, containers: Vec<String>) {
        self.withdrawn.clear();
        self.phase = Phase::Discarding;
        let generation = self.next_generation();
        self.actions
            .push_back(Action::Discard(generation, containers));
    }

    /// Handles the outcome of [`Action::Discard`].
    pub fn handle_discarded(&mut self, now: Now, generation: u64, result: Result<(), EngineError>) {
        if !self.expects(generation) {
            return;
        }
        match result {
            Ok(()) => self.lookup(),
            Err(error) => self.engine_failed(now, &error),
        }
    }

    /// Handles an engine failure that should be temporary: retries with exponential backoff.
    fn engine_failed(&mut self, now: Now, error: &EngineError) {
        self.engine_down = true;
        let delay = exponential(self.engine_failures, RETRY);
        self.engine_failures = self.engine_failures.saturating_add(1);
        self.phase = Phase::Waiting(Some(now.instant + delay));
        let (Some(index), None) = (self.raft_index(), self.exhausted) else {
            return;
        };
        // An engine failure does not mean that a container kept serving is down, nor that one that has
        // ended has not.
        if !self.keeps_serving() && !self.has_finished() {
            self.publish(
                Report::new(ReplicaState::Pending, index)
                    .because(code::DOCKER_ERROR, error.to_string())
                    .with("reason", error),
            );
        }
    }

    fn publish(&mut self, mut report: Report) {
        if self.pulls_ahead {
            report.keeps_serving = true;
            let known = self.progress.as_ref();
            if known.is_none_or(|last| !last.is_equivalent_to(&report)) {
                self.progress = Some(report.clone());
                self.actions.push_back(Action::Publish(Box::new(report)));
            }
            return;
        }
        let known = self.published.as_ref();
        if known.is_some_and(|last| last.is_equivalent_to(&report)) {
            return;
        }
        self.published = Some(report.clone());
        self.actions.push_back(Action::Publish(Box::new(report)));
    }

    fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    fn expects(&self, generation: u64) -> bool {
        self.generation == generation
    }

    fn raft_index(&self) -> Option<u64> {
        own_index(&self.assignment)
    }

    /// Marks a start that its row left: only a container whose start completed is kept for a moved
    /// row.
    fn mark_abandoned_start(&mut self) {
        if matches!(self.assignment, Assignment::Kept { .. }) && self.target.is_some() {
            self.abandoned = true;
        }
    }
}

fn own_index(assignment: &Assignment) -> Option<u64> {
    match assignment {
        Assignment::Own(wanted) => Some(wanted.raft_index),
        Assignment::Gone | Assignment::Kept { .. } => None,
    }
}

/// Exponential backoff: 1, 2, 4, … seconds, at most `most`.
fn exponential(attempt: u32, most: Duration) -> Duration {
    Duration::from_secs(1u64.checked_shl(attempt.min(62)).unwrap_or(u64::MAX)).min(most)
}
