//! Issuance and renewal of the certificate of one domain, on the leader.
//!
//! Writes are driven by the state: an action that writes is repeated until the state shows its
//! effect. So an unknown outcome needs no answer, and nothing is written twice.

mod action;
mod attempt;
mod lock;
mod renewal;
mod turn;
mod writes;

use std::{
    collections::VecDeque,
    time::{Duration, Instant, SystemTime},
};

use jaco_proto::v1::AuditEvent;

use super::{
    Chain, Facts, OrderFailure, Phase, RenewalWindow, Settings, Slot, Status,
    backoff::{Backoff, Failed},
};
use crate::runtime::replica::core::Now;
use renewal::RenewalQueries;
use turn::Turn;
use writes::Writes;

pub use action::Action;
pub use lock::{LEASE, LEASE_RENEWAL};
pub use writes::WRITE_RETRY;

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

/// Step of an attempt.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Idle,
    /// Waits for a turn among the domains.
    Queued,
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
    turn: Turn,
    backoff: Backoff,
    /// Wait after the last failed preflight, and its end.
    preflight: Option<(Duration, Instant)>,
    /// An order from production failed since the stored staging certificate was obtained.
    restage: bool,
    queries: RenewalQueries,
    reason: String,
    waiting_dns: bool,
    /// Earliest end of a lease that was asked for in this leadership.
    asked: Option<SystemTime>,
    /// Earliest repetitions of the writes.
    writes: Writes,
    wake: Option<Instant>,
    actions: VecDeque<Action>,
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
            turn: Turn::None,
            backoff: Backoff::default(),
            preflight: None,
            restage: false,
            queries: RenewalQueries::default(),
            reason: String::new(),
            waiting_dns: false,
            asked: None,
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
                self.asked = None;
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

    /// Handles the turn that [`Action::Queue`] asked for; returns whether it is still wanted.
    pub fn handle_turn(&mut self, now: Now) -> bool {
        let wanted = self.turn == Turn::Waiting;
        if wanted {
            self.turn = Turn::Taken;
        }
        self.advance(now);
        wanted
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

    /// Time at which to call [`Core::handle_timeout`]; `None` while this node does not lead, or only
    /// waits for an event.
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
        if self.leading.is_some() {
            self.lead(now);
        }
        if self.leading.is_none() || self.step == Step::Idle {
            self.end_turn();
        }
    }

    /// Does what is due on the leader.
    fn lead(&mut self, now: Now) {
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

    /// Ends the attempt without a verdict.
    fn abandon(&mut self) {
        match self.step {
            Step::Idle => return,
            Step::Ordering { .. } | Step::Storing { .. } => {
                let attempt = self.attempt;
                self.actions.push_back(Action::Discard { attempt });
            }
            Step::Queued | Step::Preflight { .. } | Step::Locking { .. } => {}
        }
        self.step = Step::Idle;
    }

    /// Calls [`Core::handle_timeout`] at `at` at the latest.
    fn wake_at(&mut self, at: Option<Instant>) {
        self.wake = match (self.wake, at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
}

#[cfg(test)]
mod tests;
