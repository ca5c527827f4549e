//! One pass of the scheduler: derives from the state the commands that bring the replicas closer to
//! the deployments.
//!
//! Pure: the same state gives the same batch. A pass over a state with the batch applied yields the
//! commands that did not fit, and finally none, so an idle cluster writes nothing.

mod batch;
mod rearm;
mod rolling;
mod service;

pub use batch::MAX_BATCH_BYTES;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use jaco_proto::v1::{self, command::Payload};
use jaco_state::{State, command};
use prost_types::Timestamp;

use batch::PassCommands;

use super::{
    placement::{Hosts, ReplicaCounts},
    projects::Projects,
    restarts::{self, Counted},
    rollout::Rollouts,
};

/// Identity under which the scheduler proposes commands.
pub const IDENTITY: &str = "scheduler";

/// Caches kept between passes; losing them costs time but not correctness.
#[derive(Default)]
pub struct PassCache {
    /// Parsed compose documents.
    pub projects: Projects,
    /// Container failures already counted.
    pub counted: Counted,
    /// Times of the rollouts in progress.
    pub rollouts: Rollouts,
}

impl PassCache {
    /// Time at which a pass is due if nothing changes until then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = [self.counted.poll_timeout(), self.rollouts.poll_timeout()];
        due.into_iter().flatten().min()
    }
}

/// Outcome of one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// Command to propose; `None` when nothing has to change.
    pub batch: Option<v1::Command>,
    /// Contents of the batch, for the log.
    pub summary: Summary,
}

/// Number of changes in a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Replicas created, moved or re-issued.
    pub upserts: usize,
    /// Replicas removed.
    pub removals: usize,
    /// Deployments whose status changes.
    pub statuses: usize,
    /// Restart counters incremented or reset.
    pub counters: usize,
    /// Commands that did not fit into the batch; the next pass is due as soon as it is applied.
    pub deferred: usize,
}

/// Computes one pass over `state` at the monotonic time `now`, with commands of the timestamp `ts`.
pub fn reconcile(state: &State, cache: &mut PassCache, now: Instant, ts: Timestamp) -> Pass {
    cache.projects.retain(state);
    cache.rollouts.begin_pass();
    let mut plan = Plan::new(state, &mut cache.rollouts, now, ts);
    plan.remove_orphans();
    for deployment in state.deployments.values() {
        let templates = cache.projects.of(deployment);
        plan.children.begin_section();
        plan.deployment(deployment, &templates);
    }
    plan.children.begin_section();
    plan.count_restarts(&mut cache.counted);
    plan.finish()
}

/// Pass under construction.
struct Plan<'a> {
    state: &'a State,
    rollouts: &'a mut Rollouts,
    now: Instant,
    ts: Timestamp,
    hosts: Hosts,
    load: ReplicaCounts,
    /// Rows by (deployment, service) and id, so that a service finds its rows without a scan.
    rows: BTreeMap<(&'a str, &'a str), BTreeMap<&'a str, &'a v1::ReplicaDesired>>,
    /// Ids issued by this pass, with their service.
    issued: BTreeMap<String, (&'a str, &'a str)>,
    removed: BTreeSet<&'a str>,
    children: PassCommands,
}

impl<'a> Plan<'a> {
    fn new(state: &'a State, rollouts: &'a mut Rollouts, now: Instant, ts: Timestamp) -> Self {
        let mut rows: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for (id, row) in &state.replicas_desired {
            rows.entry((row.deployment.as_str(), row.service.as_str()))
                .or_default()
                .insert(id.as_str(), row.as_ref());
        }
        Self {
            state,
            rollouts,
            now,
            ts,
            hosts: Hosts::of(state),
            load: ReplicaCounts::of(state),
            rows,
            issued: BTreeMap::new(),
            removed: BTreeSet::new(),
            children: PassCommands::default(),
        }
    }

    /// Removes replicas without a deployment and address blocks without a deployment that uses them, or a member:
    /// their write may have raced with the deletion. Blocks without a host come from older data.
    fn remove_orphans(&mut self) {
        let state = self.state;
        for (id, row) in &state.replicas_desired {
            if !state.deployments.contains_key(&row.deployment) {
                self.remove(id, &row.host);
            }
        }
        let used = state.networks_in_use();
        for subnet in state.subnets.values() {
            // An empty name would match the blocks of every deployment.
            let named = !subnet.deployment.is_empty();
            let needed = used.contains_block(subnet);
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

    /// Updates the restart counters of replicas that this pass neither issues nor removes.
    fn count_restarts(&mut self, counted: &mut Counted) {
        for change in restarts::counter_changes(self.state, counted, self.now) {
            // A re-issued replica starts with a full restart budget; a removed one needs none.
            let id = change.replica_id.as_str();
            if self.issued.contains_key(id) || self.removed.contains(id) {
                continue;
            }
            let (failed_at, payload) = change.into_parts();
            self.children
                .push(command(IDENTITY, failed_at.unwrap_or(self.ts), payload));
        }
    }

    fn push(&mut self, payload: Payload) {
        self.children.push(command(IDENTITY, self.ts, payload));
    }

    fn finish(self) -> Pass {
        self.children.finish(self.ts)
    }
}

#[cfg(test)]
mod tests;
