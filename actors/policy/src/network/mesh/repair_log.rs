//! Repairs of the mesh on their way to the audit log of the cluster.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use super::{
    plan::{Observed, Step},
    repair::{Repair, Target, repairs},
};

/// Shortest time between two audit events: a program that fights with this one must not fill the
/// log of the cluster.
const AUDIT_INTERVAL: Duration = Duration::from_secs(60);
/// Most repairs of an event.
const MAX_REPAIRS: usize = 64;

/// Collects the repairs of passes that succeed.
#[derive(Clone, Debug)]
pub(super) struct RepairLog {
    /// Mesh that the pass in progress leads to.
    target: Option<Target>,
    /// Mesh that the last pass reached; `None` after one that failed.
    reached: Option<Target>,
    /// Repairs by the pass in progress and those that failed before it.
    repairing: BTreeSet<Repair>,
    /// Repairs that are yet to be audited.
    repaired: BTreeSet<Repair>,
    /// Time before which none are audited.
    audit_at: Instant,
    due: bool,
}

impl RepairLog {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            target: None,
            reached: None,
            repairing: BTreeSet::new(),
            repaired: BTreeSet::new(),
            audit_at: now,
            due: false,
        }
    }

    /// Handles the plan of a pass; without a target the node is a member no more.
    pub(super) fn handle_plan(
        &mut self,
        target: Option<Target>,
        observed: &Observed,
        steps: &[Step],
    ) {
        if target.is_none() {
            *self = Self::new(self.audit_at);
        } else if let Some(reached) = &self.reached
            && !steps.is_empty()
        {
            let found = repairs(reached, observed, steps);
            collect(&mut self.repairing, found);
        }
        self.target = target;
    }

    /// Handles the end of a pass.
    pub(super) fn handle_finished(&mut self, succeeded: bool) {
        // After a failure some steps may have been carried out, which would look like damage.
        if let Some(target) = self.target.take() {
            self.reached = Some(target).filter(|_| succeeded);
        }
        if succeeded {
            let repaired = std::mem::take(&mut self.repairing);
            collect(&mut self.repaired, repaired);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if !self.repaired.is_empty() && self.audit_at <= now {
            self.due = true;
            self.audit_at = now + AUDIT_INTERVAL;
        }
    }

    /// Returns the repairs of the next event.
    pub(super) fn poll_audit(&mut self) -> Option<BTreeSet<Repair>> {
        let due = std::mem::take(&mut self.due);
        due.then(|| std::mem::take(&mut self.repaired))
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        Some(self.audit_at).filter(|_| !self.repaired.is_empty())
    }
}

/// Adds `more` as far as an event has room.
fn collect(repairs: &mut BTreeSet<Repair>, more: BTreeSet<Repair>) {
    for repair in more {
        if repairs.len() < MAX_REPAIRS {
            repairs.insert(repair);
        }
    }
}
