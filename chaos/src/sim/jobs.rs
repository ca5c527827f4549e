//! Services whose containers end by themselves, and those that wait for them.

use std::sync::Arc;

use jaco_policy::{
    runtime::replica::core::{Assignment, StartGate},
    scheduler::moves,
};
use jaco_proto::{
    manifest::compose::{Condition, Dependency, Restart, RestartCondition, Service},
    v1::{self, ReplicaDesired, ReplicaState},
};
use jaco_state::State;

use super::{
    cluster::{Cluster, Event, Local},
    documents,
    mutation::Mutation,
    oracle::Oracle,
    time::{MS, SECOND},
};

/// The service whose containers end by themselves.
pub(super) const JOB: &str = "job";
/// The service that waits for it, in deployments that have it.
pub(super) const WAITING: &str = "web";

/// Sets the policy of a job, and what waits for one in a document that `has_job`.
pub(super) fn configure(name: &str, service: &mut Service, has_job: bool) {
    if name == JOB {
        service.restart = Some(Restart {
            condition: RestartCondition::OnFailure,
            ..Restart::default()
        });
    } else if name == WAITING && has_job {
        let completed = Dependency {
            condition: Condition::ServiceCompletedSuccessfully,
            required: true,
        };
        service.depends_on.insert(JOB.to_owned(), completed);
    }
}

/// Whether a row at rest is as it should be, without a container that runs: its job has finished, or
/// it waits for one that was given up.
pub(super) fn is_at_rest(state: &State, row: &ReplicaDesired) -> bool {
    if row.service == JOB {
        return moves::finished(state, row) == Some(0);
    }
    let mut jobs = state.replicas_desired.values();
    row.service == WAITING
        && jobs.any(|job| {
            let awaited = job.deployment == row.deployment && job.service == JOB;
            awaited && moves::is_exhausted(state, job)
        })
}

impl Mutation {
    /// Plants a bug in what a node wants of a replica.
    pub(super) fn patch_assignment(self, state: &State, id: &str, wanted: &mut Assignment) {
        let Assignment::Own(wanted) = wanted else {
            return;
        };
        let seen = state.replicas_observed.get(id);
        if self == Self::RunJobsAgain && seen.is_some_and(|seen| seen.finished().is_some()) {
            wanted.restart = Restart::default();
        }
        if self == Self::StartBeforeJobs
            && matches!(&wanted.gate, StartGate::Deferred(why) if why.contains("completed"))
        {
            wanted.gate = StartGate::Open;
        }
    }

    /// State in which no job has finished, for a scheduler with this bug.
    pub(super) fn without_ends(state: &State) -> State {
        let mut seen = state.clone();
        for (id, observed) in &state.replicas_observed {
            if observed.finished().is_some() {
                let mut patched = v1::ReplicaObserved::clone(observed);
                patched.set_state(ReplicaState::Pending);
                seen.replicas_observed.insert(id.clone(), Arc::new(patched));
            }
        }
        seen
    }
}

impl Oracle {
    /// Records the end of a job.
    pub(super) fn note_end(&mut self, seen: &v1::ReplicaObserved) {
        if seen.finished() == Some(0) {
            let row = (seen.id.clone(), seen.desired_raft_index);
            self.completed.insert(row);
        }
    }

    /// Checks that entry `index` re-issues no row of a job with the same settings, if its end was
    /// known to the state that the entry was `planned` on.
    pub(super) fn check_finished_rows(
        &mut self,
        before: &State,
        after: &State,
        index: u64,
        planned: Option<u64>,
    ) {
        if before.replicas_desired.ptr_eq(&after.replicas_desired) {
            return;
        }
        let is_known = |id: &String| {
            let seen = before.replicas_observed.get(id);
            let since = seen.map_or(0, |seen| seen.observed_raft_index);
            planned.is_none_or(|planned| since <= planned)
        };
        let changed = after.replicas_desired.values();
        let again = changed.filter(|row| row.raft_index == index).find(|row| {
            let former = before.replicas_desired.get(&row.id);
            former.is_some_and(|former| {
                moves::finished(before, former) == Some(0)
                    && is_known(&row.id)
                    && former.image == row.image
                    && former.spec_hash == row.spec_hash
            })
        });
        if let Some(row) = again {
            let what = format!("{} is to run again on {}", row.id, row.host);
            self.violate("finished jobs stay", what);
        }
    }

    /// Checks the start of a container of row `raft_index` of `replica`: a finished job does not run
    /// again.
    pub(super) fn check_job_start(&mut self, replica: &str, raft_index: u64) {
        if self.completed.contains(&(replica.to_owned(), raft_index)) {
            let what = format!("row {raft_index} of {replica} starts again");
            self.violate("finished jobs stay", what);
        }
    }

    /// Checks that a node with this state prepares the first container of a row after the jobs that
    /// it waits for.
    pub(super) fn check_prepared(&mut self, state: &State, replica: &str) {
        let Some(row) = state.replicas_desired.get(replica) else {
            return;
        };
        if !self.has_container_of(replica, row.raft_index)
            && let Some(open) = awaited(state, row)
        {
            let what = format!("{replica} starts before {open} has completed");
            self.violate("dependents wait for jobs", what);
        }
    }
}

/// A job that `row` waits for, if there is one; a container of an earlier row serves until it has
/// completed.
pub(super) fn awaited<'a>(state: &'a State, row: &ReplicaDesired) -> Option<&'a str> {
    let deployment = state.deployments.get(&row.deployment)?;
    let has_job = documents::read(&deployment.compose_yaml).contains_key(JOB);
    if row.service != WAITING || !has_job {
        return None;
    }
    let jobs = state.replicas_desired.values();
    let mut jobs = jobs.filter(|job| job.deployment == row.deployment && job.service == JOB);
    let open = jobs.find(|job| moves::finished(state, job) != Some(0))?;
    Some(&open.id)
}

impl Cluster {
    /// Lets a job that was just started end after a while.
    pub(super) fn schedule_end(&mut self, id: u64, container: &str) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let mut running = machine.engine.running();
        let Some(container) = running.find(|it| it.id == container && is_job(&it.replica)) else {
            return;
        };
        let event = Event::JobEnds(id, container.id.clone(), container.starts);
        let takes = self.engine_chance.within(100 * MS..15 * SECOND);
        self.agenda.add(self.now + takes, event);
    }

    /// Ends the process of a job, unless it was started again since.
    pub(super) fn end_job(&mut self, id: u64, container: &str, start: u64) {
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        if let Some(replica) = machine.engine.exit(container, start, 0) {
            self.count("finished jobs");
            self.note(&[34, id], || format!("{replica} finishes on n{id}"));
            let after = self.engine_chance.within(MS..50 * MS);
            self.schedule_local(id, after, Local::EngineEvent(replica));
        }
    }
}

fn is_job(replica: &str) -> bool {
    replica.contains(&format!("-{JOB}-"))
}
