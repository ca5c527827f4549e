//! Issuance and renewal of the certificate of one domain, on the leader.
//!
//! Writes are driven by the state: an action that writes is repeated until the state shows its
//! effect. So an unknown outcome needs no answer, and nothing is written twice.

mod attempt;
mod renewal;

use std::{
    collections::VecDeque,
    time::{Duration, Instant, SystemTime},
};

use jaco_proto::v1::AuditEvent;

use super::{
    Chain, Facts, OrderFailure, Phase, RenewalWindow, Settings, Slot, Status,
    backoff::{Backoff, Failed},
};
use crate::{COMMIT_BUDGET, runtime::replica::core::Now};
use renewal::RenewalQueries;

/// Length of the lock's lease.
pub const LEASE: Duration = Duration::from_secs(5 * 60);
/// Age of a lease at which it is renewed.
pub const LEASE_RENEWAL: Duration = Duration::from_secs(2 * 60);
/// Longest time of one order.
pub const WINDOW: Duration = Duration::from_secs(5 * 60);
/// Time in which a new leader makes one attempt only.
pub const NEW_LEADER: Duration = Duration::from_secs(5 * 60);
/// First wait after a failed preflight; it doubles up to [`PREFLIGHT_MAX`].
pub const PREFLIGHT_MIN: Duration = Duration::from_secs(60);
/// Longest wait after a failed preflight.
pub const PREFLIGHT_MAX: Duration = Duration::from_secs(10 * 60);
/// Longest time of a preflight.
pub const PREFLIGHT_TIMEOUT: Duration = Duration::from_secs(60);
/// Wait before a write is repeated that the state does not show: longer than a lost one may take.
pub const WRITE_RETRY: Duration = COMMIT_BUDGET.saturating_add(Duration::from_secs(1));

/// Action for the driver to run.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Acquire or renew the domain's lock.
    Lock {
        /// End of the lease.
        until: SystemTime,
    },
    /// Release the domain's lock.
    Unlock,
    /// Ask the addresses of the domain; answered by [`Core::handle_preflight`].
    Preflight {
        /// Attempt that the verdict belongs to.
        attempt: u64,
    },
    /// Order a certificate; answered by [`Core::handle_order`], which keeps chain and key until
    /// they are stored or discarded.
    Order {
        /// Attempt that the outcome belongs to.
        attempt: u64,
        /// Directory to order from.
        slot: Slot,
        /// Contact of the account; empty for none.
        contact: String,
    },
    /// Cancel this and earlier orders if they are under way, and drop their chains and keys.
    Discard {
        /// Last attempt to discard.
        attempt: u64,
    },
    /// Store the chain and key of an attempt, together with an audit event.
    Store {
        /// Attempt that obtained them.
        attempt: u64,
        /// Directory that issued them.
        slot: Slot,
        /// Event to write in the same entry.
        event: AuditEvent,
    },
    /// Store the copy of this node again.
    Reseed(Slot),
    /// Delete the stored certificate of the staging directory.
    DeleteStaging,
    /// Delete all stored certificates of the domain.
    DeleteAll,
    /// Write an audit event.
    Audit(AuditEvent),
    /// Ask the authority when to renew; answered by [`Core::handle_renewal_window`].
    QueryRenewal,
}

/// Step of an attempt.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Idle,
    Preflight {
        until: Instant,
    },
    /// Waits for the lock.
    Locking {
        slot: Slot,
    },
    Ordering {
        slot: Slot,
        until: Instant,
        /// Whether it follows staging in the same attempt.
        failed: Failed,
    },
    /// Holds a certificate until the state shows it.
    Storing {
        slot: Slot,
        chain: Chain,
        event: AuditEvent,
    },
}

/// Decides about the certificate of one domain; see the module documentation.
#[derive(Clone, Debug)]
pub struct Core {
    domain: String,
    settings: Settings,
    /// Fraction by which this domain's renewals and queries are spread.
    jitter: f64,
    facts: Facts,
    /// Start of this node's leadership; `None` while it does not lead.
    leading: Option<Instant>,
    /// Orders begun in this leadership, a promotion after staging excluded.
    attempts: u32,
    /// Number of the last order or preflight.
    attempt: u64,
    step: Step,
    backoff: Backoff,
    /// Wait after the last failed preflight, and its end.
    preflight: Option<(Duration, Instant)>,
    /// An order from production failed since the stored staging certificate was obtained.
    restage: bool,
    queries: RenewalQueries,
    reason: String,
    waiting_dns: bool,
    /// Earliest repetitions of the writes.
    writes: Writes,
    wake: Option<Instant>,
    actions: VecDeque<Action>,
}

/// Times before which a write is not repeated.
#[derive(Clone, Copy, Debug, Default)]
struct Writes {
    lock: Option<Instant>,
    unlock: Option<Instant>,
    store: Option<Instant>,
    maintenance: Option<Instant>,
}

impl Core {
    /// Creates the core of `domain`, which does nothing until this node leads.
    ///
    /// `jitter` is a fraction from 0 to 1 that spreads domains over time; see
    /// [`jitter`](super::jitter).
    #[must_use]
    pub fn new(domain: &str, settings: Settings, jitter: f64, facts: Facts) -> Self {
        Self {
            domain: domain.to_owned(),
            settings,
            jitter: jitter.clamp(0.0, 1.0),
            facts,
            leading: None,
            attempts: 0,
            attempt: 0,
            step: Step::Idle,
            backoff: Backoff::default(),
            preflight: None,
            restage: false,
            queries: RenewalQueries::default(),
            reason: String::new(),
            waiting_dns: false,
            writes: Writes::default(),
            wake: None,
            actions: VecDeque::new(),
        }
    }

    /// Handles a change of this node's leadership. A new leader starts without backoffs.
    pub fn handle_leadership(&mut self, now: Now, leads: bool) {
        match (leads, self.leading) {
            (true, None) => {
                self.leading = Some(now.instant);
                self.attempts = 0;
                self.backoff = Backoff::default();
                self.preflight = None;
                self.restage = false;
                self.reason.clear();
                self.waiting_dns = false;
                self.writes = Writes::default();
                let spread = renewal::QUERY_INTERVAL.mul_f64(self.jitter);
                self.queries = RenewalQueries::starting(now.instant + spread);
            }
            (false, Some(_)) => {
                self.leading = None;
                // A certificate in hand is stored if this node leads again before another stored one.
                if !matches!(self.step, Step::Storing { .. }) {
                    self.abandon();
                }
            }
            (true, Some(_)) | (false, None) => {}
        }
        self.advance(now);
    }

    /// Handles a change of the state or of the disk's copies.
    pub fn handle_facts(&mut self, now: Now, facts: Facts) {
        if facts.production != self.facts.production {
            self.queries.forget(now.instant);
        }
        self.facts = facts;
        self.advance(now);
    }

    /// Handles the verdict on the domain's addresses; `Err` has the reason.
    pub fn handle_preflight(&mut self, now: Now, attempt: u64, verdict: Result<(), String>) {
        if attempt == self.attempt && matches!(self.step, Step::Preflight { .. }) {
            self.end_preflight(now, verdict);
        }
        self.advance(now);
    }

    /// Handles the outcome of an order.
    pub fn handle_order(&mut self, now: Now, attempt: u64, outcome: Result<Chain, OrderFailure>) {
        if let Step::Ordering { slot, failed, .. } = self.step
            && attempt == self.attempt
        {
            match outcome {
                Ok(chain) => self.accept(now, slot, failed, chain),
                Err(failure) => self.fail(now, slot, failed, failure),
            }
        }
        self.advance(now);
    }

    /// Handles the authority's answer about the stored certificate: a window, if it has one, and
    /// the time after which to ask again, if it named one.
    pub fn handle_renewal_window(
        &mut self,
        now: Now,
        window: Option<RenewalWindow>,
        retry_after: Option<Duration>,
    ) {
        self.queries.answered(now.instant, window, retry_after);
        self.advance(now);
    }

    /// Handles the passing of the deadline; has no effect before it.
    pub fn handle_timeout(&mut self, now: Now) {
        if self.wake.is_some_and(|wake| wake <= now.instant) {
            self.advance(now);
        }
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Time at which to call [`Core::handle_timeout`]; `None` while this node does not lead.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.wake
    }

    /// State of the certificate as this node knows it at `wall`; only the leader's is complete.
    #[must_use]
    pub fn status(&self, wall: SystemTime) -> Status {
        let valid = self.facts.production;
        let valid = self.facts.imported || valid.is_some_and(|chain| chain.is_valid(wall));
        let phase = if valid {
            Phase::Valid
        } else if self.waiting_dns {
            Phase::WaitingDns
        } else if self.step == Step::Idle && !self.reason.is_empty() {
            Phase::Failed
        } else {
            Phase::Ordering
        };
        Status {
            phase,
            reason: self.reason.clone(),
        }
    }

    /// Does everything that is due, and sets the next deadline.
    fn advance(&mut self, now: Now) {
        self.wake = None;
        if self.leading.is_none() {
            return;
        }
        if !self.facts.wanted {
            self.abandon();
            if self.facts.stored && self.may_maintain(now) {
                self.actions.push_back(Action::DeleteAll);
            }
            self.release(now);
            return;
        }
        if self.facts.imported {
            self.abandon();
            self.waiting_dns = false;
            self.reason.clear();
            self.release(now);
            return;
        }
        self.maintain(now);
        self.work(now);
        self.query_renewal(now);
    }

    /// Repairs the store: drops a staging certificate that is superseded, and stores copies again.
    fn maintain(&mut self, now: Now) {
        let valid = |chain: Option<Chain>| chain.filter(|chain| chain.is_valid(now.wall));
        let production = self.facts.production.is_some_and(|chain| chain.covers);
        let action = if production && self.facts.staging.is_some() {
            Action::DeleteStaging
        } else if !production && valid(self.facts.local.production).is_some() {
            Action::Reseed(Slot::Production)
        } else if !production
            && self.facts.staging.is_none()
            && self.settings.stage_first
            && !self.restage
            && valid(self.facts.local.staging).is_some()
        {
            Action::Reseed(Slot::Staging)
        } else {
            return;
        };
        if self.may_maintain(now) {
            self.actions.push_back(action);
        }
    }

    /// Whether the store may be repaired now; sets the time of the next repair.
    fn may_maintain(&mut self, now: Now) -> bool {
        let due = pace(&mut self.writes.maintenance, now);
        self.wake_at(self.writes.maintenance);
        due
    }

    /// Ends the attempt without a verdict.
    fn abandon(&mut self) {
        match self.step {
            Step::Idle => return,
            Step::Ordering { .. } | Step::Storing { .. } => {
                let attempt = self.attempt;
                self.actions.push_back(Action::Discard { attempt });
            }
            Step::Preflight { .. } | Step::Locking { .. } => {}
        }
        self.step = Step::Idle;
    }

    /// Releases the lock if this node holds it.
    fn release(&mut self, now: Now) {
        let held = self.facts.lock.filter(|lock| lock.ours);
        if held.is_some_and(|lock| now.wall < lock.until) {
            if pace(&mut self.writes.unlock, now) {
                self.actions.push_back(Action::Unlock);
            }
            self.wake_at(self.writes.unlock);
        }
    }

    /// Ensures that this node holds the lock, and renews it in time.
    fn hold_lock(&mut self, now: Now) -> bool {
        let remaining = |until: SystemTime| until.duration_since(now.wall).unwrap_or_default();
        let lock = self
            .facts
            .lock
            .map(|lock| (lock.ours, remaining(lock.until)));
        match lock {
            Some((false, left)) if !left.is_zero() => {
                // Bounded, as the holder's clock may be ahead.
                self.wake_at(Some(
                    now.instant + left.clamp(Duration::from_secs(1), LEASE),
                ));
                false
            }
            Some((true, left)) if left > LEASE - LEASE_RENEWAL => {
                self.wake_at(Some(now.instant + (left - (LEASE - LEASE_RENEWAL))));
                true
            }
            held => {
                if pace(&mut self.writes.lock, now) {
                    let until = now.wall + LEASE;
                    self.actions.push_back(Action::Lock { until });
                }
                self.wake_at(self.writes.lock);
                held.is_some_and(|(ours, left)| ours && !left.is_zero())
            }
        }
    }

    /// Calls [`Core::handle_timeout`] at `at` at the latest.
    fn wake_at(&mut self, at: Option<Instant>) {
        self.wake = match (self.wake, at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
}

/// Whether a write is due, which is then not repeated for [`WRITE_RETRY`].
fn pace(next: &mut Option<Instant>, now: Now) -> bool {
    let due = next.is_none_or(|next| next <= now.instant);
    if due {
        *next = Some(now.instant + WRITE_RETRY);
    }
    due
}

#[cfg(test)]
mod tests;
