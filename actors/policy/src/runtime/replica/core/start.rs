//! Steps from an assignment to a started container.

use jaco_engine::{EngineError, Found, Status};
use jaco_proto::v1::ReplicaState;
use prost_types::Timestamp;

use super::{
    Action, Assignment, Core, DesiredReplica, Now, PULL_BACKOFF_MAX, PULL_PROGRESS_TIMEOUT, Phase,
    PrepareError, RETRY, StartCondition, StartError, StartGate, UNREPORTED_PREPARE_FAILURES,
    exponential,
    watch::{Origin, Watch},
};
use crate::runtime::replica::report::{Report, code};

/// Consecutive name conflicts attributed to a create or remove still in progress.
const CONFLICTS: u32 = 3;

impl Core {
    /// Handles the outcome of [`Action::Lookup`].
    pub fn handle_found(
        &mut self,
        now: Now,
        generation: u64,
        result: Result<Vec<Found>, EngineError>,
    ) {
        if !self.expects(generation) {
            return;
        }
        let found = match result {
            Ok(found) => found,
            Err(error) => return self.engine_failed(now, &error),
        };
        self.listed = true;
        self.pulls_ahead = false;
        self.engine_down = false;
        self.engine_failures = 0;
        match self.assignment.clone() {
            Assignment::Gone => self.clean_up(now, found),
            Assignment::Kept { .. } if self.abandoned => self.clean_up(now, found),
            Assignment::Kept { .. } => self.watch_kept(now, &found),
            Assignment::Own(wanted) => self.start_or_adopt(now, &wanted, &found),
        }
    }

    fn clean_up(&mut self, now: Now, found: Vec<Found>) {
        if found.is_empty() {
            self.target = None;
            self.phase = Phase::Finished;
            self.published = None;
            self.failures = 0;
            self.exhausted = None;
            self.restarting = false;
            self.actions.push_back(Action::Finished);
            return;
        }
        if let Some(last) = &self.published {
            self.publish(Report::new(ReplicaState::Stopped, last.raft_index));
        }
        self.retire(now, found);
    }

    fn watch_kept(&mut self, now: Now, found: &[Found]) {
        let best = found
            .iter()
            .find(|container| container.status == Status::Running)
            .or(found.first());
        match best {
            Some(best) => {
                let index = best.raft_index.unwrap_or(0);
                self.watch(now, &best.id, index, Origin::Adopted(best.status));
            }
            None => self.phase = Phase::Waiting(None),
        }
    }

    fn start_or_adopt(&mut self, now: Now, wanted: &DesiredReplica, found: &[Found]) {
        let index = wanted.raft_index;
        let fits = |container: &&Found| container.raft_index == Some(index);
        let ended = self.has_finished() && !found.iter().any(|it| it.status == Status::Running);
        if ended || self.is_given_up() && !found.iter().any(|it| fits(&it)) {
            return self.stay_ended(now, index, found);
        }
        let running = |container: &&Found| container.status == Status::Running;
        let known = self.published.as_ref().map(|report| &report.container_id);
        let keep = found
            .iter()
            .filter(fits)
            .filter(running)
            .find(|container| known == Some(&container.id))
            .or_else(|| found.iter().filter(fits).find(running))
            .or_else(|| found.iter().find(fits));
        let others: Vec<Found> = found
            .iter()
            .filter(|container| keep.is_none_or(|keep| keep.id != container.id))
            .cloned()
            .collect();
        let stopped = keep.is_some_and(|keep| keep.status != Status::Running);
        if (keep.is_none() || stopped && self.holds_back_stopped(&wanted.gate))
            && !self.may_start(&wanted.gate)
        {
            return self.postpone(now, wanted, found);
        }
        self.target = Some(index);
        if !others.is_empty() {
            if keep.is_some_and(|keep| keep.status == Status::Running) {
                // Clients are led to the one that is kept.
                return self.discard(others.into_iter().map(|other| other.id).collect());
            }
            if keep.is_none() && self.needs_pull(wanted) && others.iter().any(|it| running(&it)) {
                // The container that serves stays during the pull, which may take minutes.
                self.pulls_ahead = true;
                self.pulled = false;
                return self.prepare(None);
            }
            if keep.is_none() {
                self.publish(Report::new(ReplicaState::Updating, index));
            }
            return self.retire(now, others);
        }
        match keep {
            Some(keep) => self.adopt(now, keep, wanted),
            None => {
                self.pulled = self.pulled_ahead == Some(index);
                self.prepare(None);
            }
        }
    }

    /// Whether the container of the wanted row has ended and does not start again.
    pub(super) fn has_finished(&self) -> bool {
        let (Assignment::Own(wanted), Some(last)) = (&self.assignment, &self.published) else {
            return false;
        };
        let ended = last
            .finished()
            .filter(|_| last.raft_index == wanted.raft_index);
        ended.is_some_and(|exit_code| !wanted.restart.restarts_after(exit_code))
    }

    /// Whether the wanted row has spent its restart budget: it is not started again, also when its
    /// container is removed.
    pub(super) fn is_given_up(&self) -> bool {
        self.exhausted.is_some() && self.exhausted == self.raft_index()
    }

    /// Keeps the ended container of row `index`, if it is still there, and removes all others.
    fn stay_ended(&mut self, now: Now, index: u64, found: &[Found]) {
        let kept = found.iter().find(|it| it.raft_index == Some(index));
        let others = found
            .iter()
            .filter(|it| kept.is_none_or(|kept| kept.id != it.id));
        let others: Vec<Found> = others.cloned().collect();
        if !others.is_empty() {
            return self.retire(now, others);
        }
        match kept {
            Some(kept) => self.watch(now, &kept.id, index, Origin::Adopted(kept.status)),
            None => {
                self.target = None;
                self.phase = Phase::Waiting(None);
            }
        }
    }

    /// Whether the gate holds back a stopped container of the wanted row, too.
    fn holds_back_stopped(&self, gate: &StartGate) -> bool {
        match gate {
            StartGate::Open | StartGate::Deferred(_) => false,
            // The cluster may have moved its replica elsewhere.
            StartGate::NotCaughtUp => true,
            // One whose restart budget is exhausted is not started anyway.
            StartGate::IsolationMissing => self.exhausted.is_none(),
        }
    }

    /// Prepares the start of an existing container, or of a new one.
    fn prepare(&mut self, existing: Option<String>) {
        self.phase = Phase::Preparing(existing);
        let generation = self.next_generation();
        self.actions.push_back(Action::Prepare(generation));
    }

    /// Whether a start may begin; a restart does not wait for dependencies again.
    pub(super) fn may_start(&self, gate: &StartGate) -> bool {
        match gate {
            StartGate::Open => true,
            StartGate::Deferred(_) => self.restarting,
            StartGate::NotCaughtUp => self.restarts_here(),
            StartGate::IsolationMissing => false,
        }
    }

    /// Whether the current start replaces a container that failed under this actor.
    fn restarts_here(&self) -> bool {
        self.restarting && self.failed_here
    }

    /// Whether the gate has closed during a start. Dependencies are checked only once, so a
    /// deferral does not stop it.
    pub(super) fn is_gate_closed(&self) -> bool {
        match &self.assignment {
            Assignment::Own(wanted) => {
                !matches!(wanted.gate, StartGate::Deferred(_)) && !self.may_start(&wanted.gate)
            }
            Assignment::Gone | Assignment::Kept { .. } => false,
        }
    }

    /// Whether a container of an earlier row still serves because its successor has to wait.
    pub(super) fn keeps_serving(&self) -> bool {
        let (Assignment::Own(wanted), Some(last)) = (&self.assignment, &self.published) else {
            return false;
        };
        last.state == ReplicaState::Running
            && last.raft_index != wanted.raft_index
            && (self.pulls_ahead || !self.may_start(&wanted.gate))
    }

    /// Postpones the start. A container of an earlier row keeps serving until then and is watched.
    fn postpone(&mut self, now: Now, wanted: &DesiredReplica, found: &[Found]) {
        self.target = None;
        let index = wanted.raft_index;
        let outdated = |status: Status| {
            let outdated = |container: &&Found| container.raft_index != Some(index);
            let mut outdated = found.iter().filter(outdated);
            outdated.find(|container| container.status == status)
        };
        if let Some(alive) = outdated(Status::Running).or_else(|| outdated(Status::Other)) {
            let index = alive.raft_index.unwrap_or(0);
            return self.watch(now, &alive.id, index, Origin::Adopted(alive.status));
        }
        if wanted.gate == StartGate::IsolationMissing {
            self.phase = Phase::Waiting(Some(now.instant + RETRY));
            let report = Report::new(ReplicaState::Pending, index);
            return self.publish(report.because(
                code::ISOLATION_UNAVAILABLE,
                "the node cannot isolate deployments from each other",
            ));
        }
        self.phase = Phase::Waiting(None);
        if self.keeps_serving() {
            self.publish(Report::new(ReplicaState::Pending, index));
        }
    }

    /// Takes over an existing container of the wanted row.
    fn adopt(&mut self, now: Now, keep: &Found, wanted: &DesiredReplica) {
        let index = wanted.raft_index;
        match keep.status {
            Status::Running => self.watch(now, &keep.id, index, Origin::Adopted(keep.status)),
            // Its creation may be incomplete: a network may be missing.
            Status::Created => self.discard(vec![keep.id.clone()]),
            // Its restart budget is exhausted: leave it as it is and watch it, in case it recovers.
            Status::Exited | Status::Dead | Status::Other if self.exhausted.is_some() => {
                self.watch(now, &keep.id, index, Origin::Adopted(keep.status));
            }
            Status::Exited | Status::Dead if !wanted.restart.restarts_after(0) => {
                match self.has_counted(keep) {
                    true => self.back_off(now, index, keep.id.clone(), false),
                    // Its exit code decides.
                    false => self.watch(now, &keep.id, index, Origin::Adopted(keep.status)),
                }
            }
            Status::Exited | Status::Dead | Status::Other => {
                self.prepare(Some(keep.id.clone()));
            }
        }
    }

    /// Starts an existing container.
    fn start(&mut self, container: String, wanted: &DesiredReplica) {
        self.phase = Phase::Starting(container.clone());
        let condition = StartCondition {
            raft_index: wanted.raft_index,
            restart: self.restarts_here(),
        };
        let generation = self.next_generation();
        self.actions
            .push_back(Action::Start(generation, container, condition));
    }

    /// Handles the outcome of [`Action::Start`].
    pub fn handle_started(&mut self, now: Now, generation: u64, result: Result<(), StartError>) {
        if !self.expects(generation) {
            return;
        }
        let Phase::Starting(container) = &mut self.phase else {
            return;
        };
        let container = std::mem::take(container);
        let Some(index) = self.target.filter(|_| self.on_target()) else {
            return self.lookup();
        };
        match result {
            Ok(()) => self.watch(now, &container, index, Origin::New),
            Err(StartError::Revoked) => self.lookup(),
            Err(StartError::Engine(error @ EngineError::Unreachable(_))) => {
                self.engine_failed(now, &error);
            }
            Err(StartError::Engine(
                EngineError::NotFound(_) | EngineError::Conflict(_) | EngineError::Api { .. },
            )) => self.discard(vec![container]),
        }
    }

    /// Handles the outcome of [`Action::Prepare`].
    pub fn handle_prepared(&mut self, now: Now, generation: u64, result: Result<(), PrepareError>) {
        if !self.expects(generation) {
            return;
        }
        let Assignment::Own(wanted) = self.assignment.clone() else {
            return self.lookup();
        };
        if self.is_gate_closed() {
            return self.lookup();
        }
        let Phase::Preparing(existing) = &mut self.phase else {
            return;
        };
        let existing = existing.take();
        if result.is_ok() {
            self.prepare_failures = 0;
        }
        if let (Ok(()), Some(container)) = (&result, existing) {
            return self.start(container, &wanted);
        }
        match result {
            Ok(()) if self.restarting || self.pulled || !wanted.pull => self.launch(&wanted),
            Ok(()) => self.first_pull(now, &wanted),
            Err(PrepareError::Engine(error)) => self.engine_failed(now, &error),
            Err(PrepareError::Retry(reason)) => {
                let delay = exponential(self.prepare_failures, RETRY);
                self.prepare_failures = self.prepare_failures.saturating_add(1);
                self.phase = Phase::Waiting(Some(now.instant + delay));
                // A single setback is normal during a leader election or a network change; report
                // only repeated ones.
                if self.prepare_failures > UNREPORTED_PREPARE_FAILURES {
                    let report = Report::new(ReplicaState::Pending, wanted.raft_index)
                        .because(code::DOCKER_ERROR, &reason)
                        .with("reason", reason);
                    self.publish(report);
                }
            }
            Err(error @ PrepareError::SecretClosed { .. }) => {
                self.phase = Phase::Waiting(Some(now.instant + RETRY));
                let reason = error.to_string();
                let report = Report::new(ReplicaState::Pending, wanted.raft_index)
                    .because(code::SECRET_DECRYPT_FAILED, &reason)
                    .with("reason", reason)
                    .with("host", &self.host);
                self.publish(report);
            }
            Err(PrepareError::PoolExhausted { network }) => {
                self.phase = Phase::Waiting(Some(now.instant + RETRY));
                let report = Report::new(ReplicaState::Failed, wanted.raft_index)
                    .because(
                        code::SUBNET_POOL_EXHAUSTED,
                        "no address block is left for a network",
                    )
                    .with("deployment", &wanted.deployment)
                    .with("network", network)
                    .with("host", &self.host);
                self.publish(report);
            }
        }
    }

    /// Whether the image of the wanted row is to be pulled before its container is made.
    fn needs_pull(&self, wanted: &DesiredReplica) -> bool {
        wanted.pull && !self.restarting && self.pulled_ahead != Some(wanted.raft_index)
    }

    fn first_pull(&mut self, now: Now, wanted: &DesiredReplica) {
        let pulled_before = self.progress.as_ref().map(|last| last.raft_index);
        if !self.pulls_ahead || pulled_before != Some(wanted.raft_index) {
            self.pull_attempts = 0;
        }
        let report = Report::new(ReplicaState::Pulling, wanted.raft_index)
            .because(code::PULLING, format!("pulling {}", wanted.image))
            .with("deployment", &wanted.deployment)
            .with("host", &self.host);
        self.publish(report);
        self.pull(now);
    }

    pub(super) fn pull(&mut self, now: Now) {
        self.phase = Phase::Pulling(now.instant + PULL_PROGRESS_TIMEOUT);
        self.pull_attempts = self.pull_attempts.saturating_add(1);
        let generation = self.next_generation();
        self.actions.push_back(Action::Pull(generation));
    }

    /// Handles progress of [`Action::Pull`]; at most one call per [`PROGRESS_EVERY`] is expected.
    ///
    /// [`PROGRESS_EVERY`]: super::PROGRESS_EVERY
    pub fn handle_pull_progress(&mut self, now: Now, generation: u64) {
        if self.expects(generation)
            && let Phase::Pulling(until) = &mut self.phase
        {
            *until = now.instant + PULL_PROGRESS_TIMEOUT;
        }
    }

    /// Fails a pull attempt without progress.
    pub(super) fn pull_timed_out(&mut self, now: Now) {
        self.actions.push_back(Action::Cancel);
        // A later outcome of the cancelled attempt must be ignored.
        self.next_generation();
        let message = format!(
            "no progress for {} seconds",
            PULL_PROGRESS_TIMEOUT.as_secs()
        );
        self.pulled(now, Err(EngineError::Api { status: 0, message }));
    }

    /// Handles the outcome of [`Action::Pull`].
    pub fn handle_pulled(&mut self, now: Now, generation: u64, result: Result<(), EngineError>) {
        if self.expects(generation) {
            self.pulled(now, result);
        }
    }

    fn pulled(&mut self, now: Now, result: Result<(), EngineError>) {
        let Assignment::Own(wanted) = self.assignment.clone() else {
            return self.lookup();
        };
        if self.is_gate_closed() {
            return self.lookup();
        }
        match result {
            Ok(()) if self.pulls_ahead => {
                self.pulled_ahead = Some(wanted.raft_index);
                self.lookup();
            }
            Ok(()) => {
                self.pulled = true;
                self.launch(&wanted);
            }
            Err(error @ EngineError::Unreachable(_)) => self.engine_failed(now, &error),
            Err(error) => {
                let delay = exponential(self.pull_attempts.saturating_sub(1), PULL_BACKOFF_MAX);
                self.phase = Phase::PullBackoff(now.instant + delay);
                let reason = format!("{}: {error}", wanted.image);
                let report = Report::new(ReplicaState::Pending, wanted.raft_index)
                    .because(code::IMAGE_PULL_FAILED, &reason)
                    .with("deployment", &wanted.deployment)
                    .with("host", &self.host)
                    .with("reason", reason)
                    .with("attempt", self.pull_attempts)
                    .with("next_retry_at", Timestamp::from(now.wall + delay));
                self.publish(report);
            }
        }
    }

    fn launch(&mut self, wanted: &DesiredReplica) {
        self.listed = false;
        self.phase = Phase::Launching;
        let condition = StartCondition {
            raft_index: wanted.raft_index,
            restart: self.restarts_here(),
        };
        let generation = self.next_generation();
        self.actions
            .push_back(Action::Launch(generation, condition));
    }

    /// Handles the outcome of [`Action::Launch`]: the id of the container.
    pub fn handle_launched(
        &mut self,
        now: Now,
        generation: u64,
        result: Result<String, StartError>,
    ) {
        if !self.expects(generation) {
            return;
        }
        let wanted = match &self.assignment {
            Assignment::Own(wanted) if self.on_target() => wanted.clone(),
            Assignment::Own(_) | Assignment::Kept { .. } | Assignment::Gone => {
                return self.lookup();
            }
        };
        let error = match result {
            Ok(container) => {
                self.conflicts = 0;
                return self.watch(now, &container, wanted.raft_index, Origin::New);
            }
            Err(StartError::Revoked) => return self.lookup(),
            Err(StartError::Engine(error)) => error,
        };
        // The gate may have closed while the engine worked on a container that it did not make.
        if self.is_gate_closed() {
            return self.lookup();
        }
        match error {
            EngineError::Unreachable(_) => self.engine_failed(now, &error),
            EngineError::NotFound(_) if self.restarting && wanted.pull && !self.pulled => {
                self.first_pull(now, &wanted);
            }
            EngineError::Conflict(_) if self.conflicts < CONFLICTS => {
                // A create of an earlier actor instance may still be in progress under this name.
                self.conflicts += 1;
                self.phase = Phase::Waiting(Some(now.instant + exponential(0, RETRY)));
            }
            error => {
                self.conflicts = 0;
                self.phase = Phase::Waiting(Some(now.instant + RETRY));
                self.publish(
                    Report::new(ReplicaState::Failed, wanted.raft_index)
                        .because(code::DOCKER_ERROR, error.to_string())
                        .with("reason", error),
                );
            }
        }
    }

    /// Whether the row being started is still the wanted one.
    fn on_target(&self) -> bool {
        self.target.is_some() && self.raft_index() == self.target
    }

    fn watch(&mut self, now: Now, container: &str, index: u64, origin: Origin) {
        self.target = None;
        self.restarting = false;
        self.abandoned = false;
        self.withdrawn.clear();
        let known = self.published.as_ref();
        let watch = Watch::new(now.instant, container, index, origin, known);
        self.phase = Phase::Watching(Box::new(watch));
        // Inspect at once: to learn its address, and because it may have exited already.
        self.inspect(false);
    }
}
