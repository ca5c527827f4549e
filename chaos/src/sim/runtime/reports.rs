//! Publication of replica observations to the cluster.

use jaco_policy::runtime::{
    publisher::{Action, Outcome},
    replica::report::Report,
};
use jaco_proto::v1::{self, ReplicaState, command::Payload};
use jaco_state::command;

use crate::sim::{
    calls::{Change, Reply, Requester},
    cluster::{Cluster, Local},
};

impl Cluster {
    pub(super) fn publish(&mut self, id: u64, replica: &str, report: &Report) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let (host, ts) = (machine.host.clone(), machine.clock.timestamp(now));
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let row = report.observed(replica, &host, ts);
        daemon.runtime.publisher.handle_report(row.clone());
        self.note(&[32, id, report.raft_index], || {
            format!("n{id} reports {replica}: {report:?}")
        });
        self.judge_ready(id, replica, report);
        if !report.keeps_serving {
            self.report_locally(id, |reports| reports.insert(row));
        }
        self.flush_reports(id);
    }

    /// Shows node `id` the last report after the first inspection, which may leave it unchanged.
    pub(super) fn show_report(&mut self, id: u64, replica: &str) {
        let now = self.now;
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let (host, ts) = (&machine.host, machine.clock.timestamp(now));
        let daemon = machine.daemon.as_ref();
        let actor = daemon.and_then(|daemon| daemon.runtime.replicas.get(replica));
        let report = actor.and_then(|actor| actor.core.last_report());
        let Some(row) = report.map(|report| report.observed(replica, host, ts)) else {
            return;
        };
        self.report_locally(id, |reports| {
            if reports.get(replica).is_none() {
                reports.insert(row);
            }
        });
    }

    /// Carries out the actions of the publisher.
    pub(super) fn flush_reports(&mut self, id: u64) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let (clock, ts) = (machine.clock, machine.clock.timestamp(now));
        while let Some(Action::Propose(row)) = self
            .daemon(id)
            .and_then(|daemon| daemon.runtime.publisher.poll_action())
        {
            let replica = row.id.clone();
            let update = v1::ReplicaObservedUpdate {
                replica: Some(*row),
            };
            let payload = Payload::ReplicaObservedUpdate(update);
            let command = command("runtime", ts, payload);
            self.submit(id, Requester::Publisher(replica), Change::Command(command));
        }
        if let Some(daemon) = self.daemon(id) {
            let runtime = &mut daemon.runtime;
            let due = runtime.publisher.poll_timeout();
            let due = due.map(|at| clock.time_of(now, at));
            if std::mem::replace(&mut runtime.publisher_due, due) != due
                && let Some(at) = due
            {
                self.schedule_local(id, at - now, Local::Publish);
            }
        }
    }

    /// Handles the outcome of the write of `replica`'s observation.
    pub(in crate::sim) fn published(&mut self, id: u64, replica: &str, reply: &Reply) {
        let Some((instant, daemon)) = self.running(id) else {
            return;
        };
        let outcome = match reply {
            Reply::Done(_) | Reply::Rejected(_) => Outcome::Done,
            Reply::Block(_) | Reply::Exhausted | Reply::NotAppended | Reply::Unknown => {
                Outcome::Failed
            }
        };
        let publisher = &mut daemon.runtime.publisher;
        publisher.handle_proposed(instant, replica, outcome);
        self.flush_reports(id);
    }

    pub(in crate::sim) fn publish_again(&mut self, id: u64) {
        if let Some((instant, daemon)) = self.running(id) {
            daemon.runtime.publisher.handle_timeout(instant);
        }
        self.flush_reports(id);
    }

    /// Publishes again all reports that the state does not show.
    pub(super) fn republish(&mut self, id: u64) {
        let Some(machine) = self.machines.get(&id) else {
            return;
        };
        let Some(daemon) = &machine.daemon else {
            return;
        };
        let state = &daemon.state;
        let unpublished = daemon.runtime.replicas.iter().filter_map(|(id, actor)| {
            let row = state.replicas_desired.get(id)?;
            let report = actor.core.last_report()?;
            let known = state.replicas_observed.get(id);
            let unpublished = if row.host == machine.host {
                let heard =
                    known.is_some_and(|k| Report::from(k.as_ref()).is_equivalent_to(report));
                !heard && report.raft_index >= row.raft_index
            } else {
                let silent = known.is_none_or(|seen| !seen.has_arrived());
                row.previous_host == machine.host && report.state == ReplicaState::Running && silent
            };
            unpublished.then(|| (id.clone(), report.clone()))
        });
        for (replica, report) in unpublished.collect::<Vec<_>>() {
            self.publish(id, &replica, &report);
        }
    }
}
