//! Decides when the ruleset is tested and repaired, and what is reported about it.
//!
//! A pass reads the kernel's table and compares it with the ruleset of the newest state. If they
//! differ, it applies the ruleset and reads the table once more. Then it ends the connections that may
//! have begun without it, and asserts the exemptions from the engine's rules; without the ruleset it
//! removes those that let packets pass, so that nothing is accepted without the rule that drops the
//! rest. Passes follow changes of the address blocks (debounced), changes of the kernel's tables (at
//! once), and a timer.

mod pass;
mod report;
mod status;

#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jaco_engine::cidr::Cidr;
use jaco_state::State;

use super::{
    attachments::Attachments,
    exemptions::{Exemption, Outcome},
    local::{LocalNetworks, LocalReports},
    retired::Retired,
    ruleset::{HostInputs, Ruleset},
};
use crate::{
    debounce::{self, Debounce},
    network::{
        names::NetworkId,
        readiness::{IsolationStatus, MeshStatus, assess},
        scopes::internal_networks,
    },
};
use report::Reports;

pub use report::{Report, Submitted};
pub use status::{Rendered, Status};

/// Quiet time after a change of the address blocks.
pub const QUIET: Duration = Duration::from_millis(200);
/// Longest delay of a pass after a change of the address blocks, and after a change of the kernel's
/// tables that follows a pass closely.
pub const MAX_DELAY: Duration = Duration::from_secs(1);
/// Time between two passes without changes.
pub const TICK: Duration = Duration::from_secs(30);
/// Attempts to read the table before it is replaced unread.
const MAX_UNREAD: u32 = 3;
/// Delay after a failed pass; doubles up to [`TICK`].
pub const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Action for the driver to run.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Assert the exemptions; unless `accepts`, remove those that let packets pass.
    Exempt {
        /// Whether the ruleset is in force, which drops what may not pass.
        accepts: bool,
    },
    /// Read the kernel's table.
    Read,
    /// Replace the kernel's table.
    Apply(Arc<Rendered>),
    /// End the tracked connections that this ruleset forbids.
    CutFlows(Arc<Rendered>),
    /// Publish this status.
    Publish(Status),
    /// Submit this report to the leader; one at a time.
    Submit(Box<Report>),
}

/// Part of a pass that is in progress.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Idle,
    Reading,
    Applying,
    Verifying,
    Cutting,
    Exempting,
}

/// Outcome of [`Action::Apply`] that replaced the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The kernel's tables are otherwise as they were when they were last read.
    Undisturbed,
    /// Others changed them in between, or may have: connections may have begun without the rules.
    Disturbed,
}

/// Outcome of [`Action::CutFlows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowsCut {
    /// No connection is left that the ruleset forbids.
    Done,
    /// Some may be left.
    Failed,
    /// The kernel lists no connections, and will not until its next boot.
    Unsupported,
}

/// Work on [`Status::has_stale_flows`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Idle,
    Cutting,
    /// More connections may have begun meanwhile.
    Again,
    /// It is tried again after the next pass.
    Failed,
}

/// State machine of the firewall; see the module documentation.
#[derive(Clone, Debug)]
pub struct Core {
    state: Arc<State>,
    /// Addresses of all blocks.
    pool: Cidr,
    retired: Retired,
    attachments: Attachments,
    /// Start of this instance.
    created: Instant,
    mesh: MeshStatus,
    /// Whether the table that an earlier process left was seen.
    adopted: bool,
    /// Whether a table showed the blocks of the containers that an earlier process started.
    knows_blocks: bool,
    /// Whether the exemptions that let packets pass were last asserted.
    accepts: bool,
    expected: Arc<Rendered>,
    status: Status,
    published: Status,
    phase: Phase,
    actions: Vec<Action>,
    reports: Reports,
    /// Whether a leader was known since the start; the state cannot become older from then on.
    open: bool,
    /// Whether a container waits for the next ruleset.
    urgent: bool,
    changes: Debounce,
    next_pass: Instant,
    last_pass: Option<Instant>,
    /// Whether the kernel's tables changed during the pass; the change may be its own.
    stirred: bool,
    /// Time of the pass after a failed one.
    retry_at: Option<Instant>,
    retry: Duration,
    /// Number of attempts to read the table since the last that succeeded.
    unread: u32,
    cut: Cut,
    /// Changes by others that no pass has repaired yet.
    drift: Option<String>,
}

impl Core {
    /// Creates the core of `host`. `last` is the status that an earlier instance in this process
    /// published.
    #[must_use]
    pub fn new(now: Instant, host: &str, state: Arc<State>, last: Status) -> Self {
        Self {
            expected: Arc::new(Rendered::of(&state, HostInputs::default())),
            attachments: Attachments::of(host, &state),
            reports: Reports::new(host, &state),
            state,
            pool: Cidr::aligned(u32::from_be_bytes([10, 244, 0, 0]), 16),
            retired: Retired::new(host),
            created: now,
            mesh: MeshStatus::Off,
            adopted: false,
            knows_blocks: !last.is_fresh(),
            accepts: false,
            // That instance had a state that was new enough.
            open: last.enforced.is_some(),
            published: last.clone(),
            status: Status {
                // An earlier process may have ended between a change of the rules and the cut.
                has_stale_flows: last.lists_flows != Some(false)
                    && (last.has_stale_flows || last.is_fresh()),
                ..last
            },
            phase: Phase::Idle,
            actions: Vec::new(),
            urgent: false,
            changes: Debounce::new(QUIET, MAX_DELAY),
            next_pass: now,
            last_pass: None,
            stirred: false,
            retry_at: None,
            retry: FIRST_RETRY,
            unread: 0,
            cut: Cut::Idle,
            drift: None,
        }
    }

    /// Handles the addresses of the cluster's blocks, `10.244.0.0/16` by default: those of
    /// [`ipam::Pool`](crate::network::ipam::Pool).
    pub fn handle_pool(&mut self, pool: Cidr) {
        self.pool = pool;
    }

    /// Handles the state of this node's mesh, which is off at first. A node that isolates
    /// deployments again is ready only with the mesh.
    pub fn handle_mesh(&mut self, mesh: MeshStatus) {
        self.mesh = mesh;
    }

    /// Handles a list of the networks of this host's engine: their containers may be those of a
    /// former network of a block.
    pub fn handle_local(&mut self, now: Instant, local: Arc<LocalNetworks>) {
        let moved = self.attachments.handle_bridges(&local.bridges);
        self.retired.handle_local(local);
        if !self.accepts && self.status.isolation == IsolationStatus::Enforced {
            self.pass_by(now);
        }
        if moved || self.adopted && self.retired_blocks(now) != self.expected.retired {
            self.changes.handle_change(now);
            if self.urgent {
                self.pass_by(now);
            }
        }
    }

    /// Handles the reports of this host's replicas.
    pub fn handle_reports(&mut self, now: Instant, reports: LocalReports) {
        let internal = internal_networks(&self.state);
        let before = self.attachments.outbound(&self.state, &internal);
        if !self.attachments.handle_reports(&self.state, reports) {
            return;
        }
        self.changes.handle_change(now);
        // The engine gives an address that was left to the container that starts next, which may be
        // on an internal network only.
        let after = self.attachments.outbound(&self.state, &internal);
        self.status.note_outbound(&after);
        if before.iter().any(|address| !after.contains(address)) {
            self.pass_by(now);
        }
    }

    /// Handles a new state of the cluster.
    pub fn handle_state(&mut self, now: Instant, state: Arc<State>) {
        if !state.subnets.ptr_eq(&self.state.subnets) {
            self.retired.handle_rows(now, &self.state, &state);
            self.changes.handle_change(now);
            if self.urgent {
                self.pass_by(now);
            }
        }
        let moved = self.attachments.handle_state(&self.state, &state)
            || self.attachments.any_reissued(&self.state, &state);
        if moved {
            self.changes.handle_change(now);
        }
        if !state.deployments.ptr_eq(&self.state.deployments)
            && (internal_networks(&state) != internal_networks(&self.state)
                || self.abandoned(&state) != self.abandoned(&self.state))
        {
            // Connections to the outside may go on that are no longer allowed.
            self.suspect_flows();
            self.changes.handle_change(now);
        }
        self.reports.handle_state(&state);
        self.state = state;
        if moved {
            self.note_outbound();
        }
    }

    /// Notes which addresses that a table leads out no container has any more.
    pub(super) fn note_outbound(&mut self) {
        let internal = internal_networks(&self.state);
        let used = self.attachments.outbound(&self.state, &internal);
        self.status.note_outbound(&used);
    }

    /// Handles the election or the loss of a leader.
    ///
    /// Before the first one is known, the state may lag behind the table that an earlier process
    /// left in the kernel.
    pub fn handle_leader(&mut self, now: Instant, known: bool) {
        if known && !self.open {
            self.open = true;
            self.pass_by(now);
        }
        self.reports.handle_leader(now, known);
    }

    /// Handles a change of the kernel's tables, made by anyone.
    pub fn handle_kernel_event(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Idle) {
            self.stirred = true;
            return;
        }
        // A program that rewrites its tables all the time must not cause as many passes. After a pass
        // that failed, the change may be the end of what made it fail.
        let rest = if self.retry_at.is_some() {
            FIRST_RETRY
        } else {
            QUIET
        };
        let earliest = self.last_pass.map_or(now, |last| last + rest);
        self.pass_by(now.max(earliest));
    }

    /// Handles a container that waits until the ruleset includes its block.
    pub fn handle_request(&mut self, now: Instant, network: &NetworkId, block: Cidr) {
        if self.status.isolates(network, block) {
            return;
        }
        self.urgent = true;
        if self.changes.pending_since().is_some() {
            self.pass_by(now);
        }
    }

    /// Handles the outcome of [`Action::Exempt`].
    pub fn handle_exempted(&mut self, now: Instant, outcomes: &[(Exemption, Outcome)]) {
        self.reports.handle_exemptions(outcomes);
        if matches!(self.phase, Phase::Exempting) {
            self.phase = Phase::Idle;
            if self.retry_at.is_none() && std::mem::take(&mut self.stirred) {
                self.pass_by(now + QUIET);
            }
        }
    }

    /// Handles the outcome of [`Action::Read`]; `None` is a table that does not exist.
    pub fn handle_read(&mut self, now: Instant, found: Result<Option<Ruleset>, String>) {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Reading => self.compare(now, found),
            Phase::Verifying => self.verify(now, found),
            // No answer is awaited.
            phase @ (Phase::Idle | Phase::Applying | Phase::Cutting | Phase::Exempting) => {
                self.phase = phase;
            }
        }
    }

    /// Handles the outcome of [`Action::Apply`].
    pub fn handle_applied(&mut self, now: Instant, outcome: Result<Applied, String>) {
        match (std::mem::replace(&mut self.phase, Phase::Idle), outcome) {
            (Phase::Applying, Ok(applied)) => {
                if applied == Applied::Disturbed {
                    self.suspect_flows();
                }
                self.phase = Phase::Verifying;
                self.actions.push(Action::Read);
            }
            (Phase::Applying, Err(error)) => self.fail(now, error),
            (phase, _) => self.phase = phase,
        }
    }

    /// Handles the outcome of [`Action::CutFlows`].
    pub fn handle_flows_cut(&mut self, outcome: FlowsCut) {
        let failed = outcome == FlowsCut::Failed;
        if !failed {
            self.status.lists_flows = Some(outcome == FlowsCut::Done);
        }
        if outcome == FlowsCut::Unsupported || outcome == FlowsCut::Done && self.cut == Cut::Cutting
        {
            self.status.has_stale_flows = false;
        }
        self.cut = if failed { Cut::Failed } else { Cut::Idle };
        // Others may have become suspect meanwhile.
        if matches!(self.phase, Phase::Cutting) && (failed || !self.status.has_stale_flows) {
            self.exempt(true);
        }
    }

    /// Handles the outcome of [`Action::Submit`].
    pub fn handle_submitted(&mut self, now: Instant, outcome: Submitted) {
        self.reports.handle_submitted(now, outcome);
    }

    /// Handles the passing of the deadline; has no effect before it.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.changes.handle_timeout(now);
        if self.changes.poll_action() == Some(debounce::Action::Run) {
            self.pass_by(now);
        }
        self.reports.handle_timeout(now);
        if now < self.next_pass || !matches!(self.phase, Phase::Idle) {
            return;
        }
        if !self.open {
            self.next_pass = now + TICK;
            return;
        }
        self.begin(now);
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.published != self.status {
            self.published = self.status.clone();
            return Some(Action::Publish(self.status.clone()));
        }
        if !self.actions.is_empty() {
            return Some(self.actions.remove(0));
        }
        if let Some(rendered) = self.stale_flows() {
            self.cut = Cut::Cutting;
            return Some(Action::CutFlows(rendered));
        }
        let isolation = &self.status.isolation;
        let readiness = assess(isolation, &self.mesh, self.state.nodes.len());
        let lists_flows = self.status.lists_flows;
        let report = self
            .reports
            .poll(isolation, (&self.mesh, lists_flows), &readiness);
        report.map(|report| Action::Submit(Box::new(report)))
    }

    /// Time at which to call [`Core::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let pass = matches!(self.phase, Phase::Idle).then_some(self.next_pass);
        let changes = self.changes.poll_timeout();
        [pass, changes, self.reports.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }
}
