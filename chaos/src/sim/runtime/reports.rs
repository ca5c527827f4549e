//! Publication of replica observations to the cluster.

use std::collections::BTreeMap;

use jaco_policy::runtime::replica::report::Report;
use jaco_proto::v1::{self, ReplicaState, command::Payload};
use jaco_state::command;

use crate::sim::{
    calls::{Change, Reply, Requester},
    cluster::{Cluster, Local},
    time::{MS, Time},
};

/// Pause after an observation that could not be written.
const RETRY: Time = 500 * MS;

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
        daemon.runtime.waiting.insert(replica.to_owned(), row);
        self.note(&[32, id, report.raft_index], || {
            format!("n{id} reports {replica}: {report:?}")
        });
        self.flush_reports(id);
    }

    pub(super) fn flush_reports(&mut self, id: u64) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(&id) else {
            return;
        };
        let ts = machine.clock.timestamp(now);
        let Some(daemon) = &mut machine.daemon else {
            return;
        };
        let runtime = &mut daemon.runtime;
        if runtime.paused {
            return;
        }
        let (busy, rows): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut runtime.waiting)
            .into_iter()
            .partition(|(replica, _)| runtime.in_flight.contains_key(replica));
        runtime.waiting = busy;
        runtime.in_flight.extend(rows.clone());
        for (replica, row) in rows {
            let update = v1::ReplicaObservedUpdate { replica: Some(row) };
            let payload = Payload::ReplicaObservedUpdate(update);
            let command = command("runtime", ts, payload);
            self.submit(id, Requester::Publisher(replica), Change::Command(command));
        }
    }

    /// Handles the outcome of the write of `replica`'s observation.
    pub(in crate::sim) fn published(&mut self, id: u64, replica: &str, reply: &Reply) {
        let Some(daemon) = self.daemon(id) else {
            return;
        };
        let runtime = &mut daemon.runtime;
        let Some(row) = runtime.in_flight.remove(replica) else {
            return;
        };
        match reply {
            Reply::Done(_) | Reply::Rejected(_) => {}
            Reply::NotAppended | Reply::Unknown => {
                runtime.waiting.entry(row.id.clone()).or_insert(row);
                if !std::mem::replace(&mut runtime.paused, true) {
                    self.schedule_local(id, RETRY, Local::Publish);
                }
            }
        }
        self.flush_reports(id);
    }

    pub(in crate::sim) fn publish_again(&mut self, id: u64) {
        if let Some(daemon) = self.daemon(id) {
            daemon.runtime.paused = false;
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
                let silent = known.is_none_or(|seen| seen.state() != ReplicaState::Running);
                row.previous_host == machine.host && report.state == ReplicaState::Running && silent
            };
            unpublished.then(|| (id.clone(), report.clone()))
        });
        for (replica, report) in unpublished.collect::<Vec<_>>() {
            self.publish(id, &replica, &report);
        }
    }
}
