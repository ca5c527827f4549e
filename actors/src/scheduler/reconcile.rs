//! One pass of the scheduler: from the state to the commands that bring it nearer to what the
//! deployments ask for.
//!
//! Pure: the same state gives the same batch. Planning again over a state that has the batch
//! applied gives what the batch had no room for, and then nothing, which is what keeps an idle
//! cluster from writing.

mod batch;
mod rearm;
mod service;

pub use rearm::Rearmed;

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::{State, command};
use prost_types::Timestamp;

use batch::Children;

use super::{
    placement::{Hosts, Load},
    projects::Projects,
    restarts::{self, Counted},
};

/// Who the commands of a pass are signed by.
pub const IDENTITY: &str = "scheduler";

/// Everything a pass keeps between calls; losing it costs time, never correctness.
#[derive(Default)]
pub struct Memo {
    /// Compose documents that were read.
    pub projects: Projects,
    /// Container failures that were counted.
    pub counted: Counted,
    /// Replicas that were tried again after an apply.
    pub rearmed: Rearmed,
}

/// Outcome of one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// The one command to propose; `None` when the state is as it should be.
    pub batch: Option<v1::Command>,
    /// What the batch holds, for the log.
    pub summary: Summary,
}

/// How much a pass changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Replicas created, moved or re-issued.
    pub upserts: usize,
    /// Replicas removed.
    pub removals: usize,
    /// Deployments whose status changes.
    pub statuses: usize,
    /// Restart counters counted up or removed.
    pub counters: usize,
    /// Commands that the batch has no room for: the next pass is due as soon as it is applied.
    pub left: usize,
}

/// Plans one pass over `state` at time `now`.
pub fn reconcile(state: &State, memo: &mut Memo, now: Timestamp) -> Pass {
    memo.projects.retain(state);
    memo.rearmed.retain(state);
    let mut plan = Plan::new(state, now);
    plan.remove_orphans();
    for deployment in state.deployments.values() {
        let templates = memo.projects.of(deployment);
        plan.children.begin_section();
        plan.deployment(deployment, &templates, &mut memo.rearmed);
    }
    plan.children.begin_section();
    plan.count_restarts(&mut memo.counted);
    plan.finish()
}

/// A pass in the making.
struct Plan<'a> {
    state: &'a State,
    now: Timestamp,
    hosts: Hosts,
    load: Load,
    /// Rows by (deployment, service, id), so that a service finds its own without a scan.
    rows: BTreeMap<(&'a str, &'a str), BTreeMap<&'a str, &'a v1::ReplicaDesired>>,
    /// Ids this pass issues, with their owner.
    issued: BTreeMap<String, (&'a str, &'a str)>,
    removed: BTreeSet<&'a str>,
    children: Children,
}

impl<'a> Plan<'a> {
    fn new(state: &'a State, now: Timestamp) -> Self {
        let mut rows: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for (id, row) in &state.replicas_desired {
            rows.entry((row.deployment.as_str(), row.service.as_str()))
                .or_default()
                .insert(id.as_str(), row.as_ref());
        }
        Self {
            state,
            now,
            hosts: Hosts::of(state),
            load: Load::of(state),
            rows,
            issued: BTreeMap::new(),
            removed: BTreeSet::new(),
            children: Children::default(),
        }
    }

    /// Removes what belongs to no deployment, and blocks of no member: a write may have crossed the
    /// deletion of either.
    fn remove_orphans(&mut self) {
        let state = self.state;
        for (id, row) in &state.replicas_desired {
            if !state.deployments.contains_key(&row.deployment) {
                self.remove(id, &row.host);
            }
        }
        for subnet in state.subnets.values() {
            // An empty name would match the blocks of every deployment.
            let named = !subnet.deployment.is_empty();
            let needed = state.deployments.contains_key(&subnet.deployment)
                && (subnet.host.is_empty() || state.nodes.contains_key(&subnet.host));
            if named && !needed {
                self.push(Payload::SubnetFree(v1::SubnetFree {
                    deployment: subnet.deployment.clone(),
                    network: subnet.network.clone(),
                    host: subnet.host.clone(),
                }));
            }
        }
    }

    fn remove(&mut self, id: &'a str, host: &str) {
        self.load.remove(host);
        self.removed.insert(id);
        self.push(Payload::ReplicaDesiredRemove(v1::ReplicaDesiredRemove {
            id: id.to_owned(),
        }));
    }

    /// Counts container failures of the replicas this pass leaves as they are.
    fn count_restarts(&mut self, counted: &mut Counted) {
        for change in restarts::account(self.state, counted) {
            // A replica that is re-issued or removed starts with a full budget anyway.
            let id = change.replica_id.as_str();
            if self.issued.contains_key(id) || self.removed.contains(id) {
                continue;
            }
            let (failed_at, payload) = change.into_parts();
            self.children
                .push(command(IDENTITY, failed_at.unwrap_or(self.now), payload));
        }
    }

    fn push(&mut self, payload: Payload) {
        self.children.push(command(IDENTITY, self.now, payload));
    }

    fn finish(self) -> Pass {
        self.children.finish(self.now)
    }
}

#[cfg(test)]
mod tests;
