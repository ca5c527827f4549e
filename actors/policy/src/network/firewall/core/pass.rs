//! One pass: read, compare, apply, read again, end connections, exempt.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use jaco_engine::cidr::Cidr;
use jaco_state::State;

use super::{
    super::{
        difference::Difference,
        ruleset::{HostInputs, Ruleset, Span},
    },
    Action, Core, Cut, FIRST_RETRY, MAX_DELAY, MAX_UNREAD, Phase, QUIET, Rendered, TICK, report,
};
use crate::{
    debounce::Debounce,
    network::{
        names::NetworkId,
        readiness::IsolationStatus,
        scopes::{internal_networks, scopes},
    },
};

impl Core {
    pub(super) fn pass_by(&mut self, at: Instant) {
        self.next_pass = self.next_pass.min(at);
    }

    /// Begins a pass, which covers all changes so far.
    pub(super) fn begin(&mut self, now: Instant) {
        self.changes = Debounce::new(QUIET, MAX_DELAY);
        self.next_pass = now + TICK;
        self.stirred = false;
        self.render(now);
        self.phase = Phase::Reading;
        self.actions.push(Action::Read);
    }

    /// Asserts the exemptions. Containers of a deleted deployment may run in a block that neither a row
    /// nor a table shows: nothing is accepted before the engine has listed its networks then.
    pub(super) fn exempt(&mut self, accepts: bool) {
        let accepts = accepts && (self.knows_blocks || self.retired.knows_local());
        self.accepts = accepts;
        self.phase = Phase::Exempting;
        self.actions.push(Action::Exempt { accepts });
    }

    fn render(&mut self, now: Instant) {
        self.render_after(now, None);
    }

    /// `adopted` is the table of an earlier process.
    fn render_after(&mut self, now: Instant, adopted: Option<&Ruleset>) {
        let before = [Some(&self.expected.ruleset), adopted];
        let before = before.into_iter().flatten().flat_map(Ruleset::internal);
        let mut confined: Vec<Span> = before.copied().collect();
        confined.sort_unstable();
        confined.dedup_by(|next, kept| next.last <= kept.last);
        let internal = internal_networks(&self.state);
        let inputs = HostInputs {
            outbound: self.attachments.outbound(&self.state, &internal),
            confined,
            pool: self.pool,
            retired: self.retired_blocks(now),
            attachments: self.attachments.rendered(),
        };
        let expected = Rendered::of(&self.state, inputs);
        if expected != *self.expected {
            self.expected = Arc::new(expected);
        }
    }

    /// Internal networks of the last ruleset whose deployment `state` does not have any more: their
    /// containers are being stopped.
    pub(super) fn abandoned(&self, state: &State) -> BTreeSet<NetworkId> {
        let internal = self.expected.scopes.iter().filter(|scope| scope.internal);
        let gone = internal.filter(|scope| !state.deployments.contains_key(scope.id.deployment()));
        gone.map(|scope| scope.id.clone()).collect()
    }

    pub(super) fn retired_blocks(&self, now: Instant) -> Vec<Cidr> {
        self.retired.blocks(now, self.pool, &self.state)
    }

    /// Retires the blocks of the tables of earlier instances: their containers may still run.
    fn adopt(&mut self, now: Instant, found: Option<&Ruleset>) {
        self.adopted = true;
        self.attachments.trust_rows_of(found);
        self.knows_blocks |= found.is_some_and(Ruleset::is_consistent);
        // The gate is shut until a table was tested: nothing started by that of an earlier process.
        let since = self.status.is_fresh().then_some(self.created);
        let last = [&self.status.enforced, &self.status.attempted];
        let last = last.into_iter().flatten().map(|last| &last.ruleset);
        let scopes = scopes(&self.state);
        for table in last.chain(found) {
            let rows = (self.pool, &*self.state, scopes.as_slice());
            self.retired.adopt(now, table, rows, since);
        }
        self.render_after(now, found);
    }

    pub(super) fn compare(&mut self, now: Instant, found: Result<Option<Ruleset>, String>) {
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.unread(now, error),
        };
        self.unread = 0;
        if !self.adopted {
            self.adopt(now, found.as_ref());
        }
        if found.as_ref() == Some(&self.expected.ruleset)
            || Difference::between(&self.expected.ruleset, found.as_ref()).is_empty()
        {
            return self.succeed(now);
        }
        // That of a failed pass is kept: it may be all that the kernel took back.
        let drift = self.status.drift(&self.expected.ruleset, found.as_ref());
        // Addresses that were another network's may still have its connections. After any other
        // change of the rows connections that were allowed go on.
        let moved = found.is_none_or(|found| self.expected.ruleset.gives_addresses(&found));
        if drift.is_some() || moved {
            self.suspect_flows();
        }
        self.drift = drift.or(self.drift.take());
        self.apply();
    }

    fn apply(&mut self) {
        self.status.attempted = Some(Arc::clone(&self.expected));
        self.phase = Phase::Applying;
        self.actions.push(Action::Apply(Arc::clone(&self.expected)));
    }

    /// Handles a table that cannot be read. One that was tested before is probably still there; after
    /// some attempts it is replaced, and the test that follows decides about the status.
    fn unread(&mut self, now: Instant, error: String) {
        self.unread = self.unread.saturating_add(1);
        if self.unread >= MAX_UNREAD {
            if !self.adopted {
                self.adopt(now, None);
            }
            self.suspect_flows();
            self.apply();
        } else if self.status.enforced.is_some() {
            self.retry(now);
        } else {
            self.fail(now, error);
        }
    }

    pub(super) fn suspect_flows(&mut self) {
        self.status.has_stale_flows = self.status.lists_flows != Some(false);
        if self.cut == Cut::Cutting {
            self.cut = Cut::Again;
        }
    }

    /// The ruleset in force, if connections may be established that it forbids.
    pub(super) fn stale_flows(&self) -> Option<Arc<Rendered>> {
        let enforced = self.status.isolation == IsolationStatus::Enforced;
        let due = self.status.has_stale_flows && self.cut == Cut::Idle;
        let due = due && enforced && matches!(self.phase, Phase::Idle | Phase::Cutting);
        { self.status.enforced.clone() }.filter(|_| due)
    }

    pub(super) fn verify(&mut self, now: Instant, found: Result<Option<Ruleset>, String>) {
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.fail(now, error),
        };
        let left = Difference::between(&self.expected.ruleset, found.as_ref());
        if left.is_empty() {
            return self.succeed(now);
        }
        let error = format!("{}: {}", report::SELF_TEST_FAILED, left.summary());
        self.fail(now, error);
    }

    fn succeed(&mut self, now: Instant) {
        if let Some(summary) = self.drift.take() {
            self.status.repairs += 1;
            self.reports.repaired(summary);
        }
        self.status.isolation = IsolationStatus::Enforced;
        self.status.enforced = Some(Arc::clone(&self.expected));
        self.status.attempted = Some(Arc::clone(&self.expected));
        self.note_outbound();
        self.retired.handle_enforced(now, &self.expected.retired);
        if self.cut == Cut::Failed {
            self.cut = Cut::Idle;
        }
        self.urgent = false;
        self.unread = 0;
        self.retry = FIRST_RETRY;
        self.retry_at = None;
        self.last_pass = Some(now);
        if self.status.has_stale_flows {
            // Accepted again, they would go on until they are ended.
            self.phase = Phase::Cutting;
        } else {
            self.exempt(true);
        }
    }

    pub(super) fn fail(&mut self, now: Instant, error: String) {
        if self.status.enforced.is_none() && self.status.isolation == IsolationStatus::Pending {
            self.reports.self_test_failed(&error);
        }
        self.status.isolation = IsolationStatus::Unavailable(error);
        self.retry(now);
        self.exempt(false);
    }

    fn retry(&mut self, now: Instant) {
        let at = now + self.retry;
        self.last_pass = Some(now);
        self.retry_at = Some(at);
        self.pass_by(at);
        self.retry = (self.retry * 2).min(TICK);
    }
}
