//! The steps of an attempt: turn, preflight, lock, order, self-check, store.

use std::time::{Duration, SystemTime};

use super::{
    Action, Core, NEW_LEADER, PREFLIGHT_MAX, PREFLIGHT_MIN, PREFLIGHT_TIMEOUT, Step, WINDOW,
    renewal::CHECK, turn::Turn, writes::pace,
};
use crate::{
    ingress::certificate::{
        Chain, Environment, FailureClass, OrderFailure, Slot, audit, backoff::Failed,
    },
    runtime::replica::core::Now,
};

impl Core {
    /// Takes the attempt as far as it goes now.
    pub(super) fn work(&mut self, now: Now) {
        if self.step == Step::Idle {
            self.begin(now);
        }
        match self.step.clone() {
            Step::Idle => self.release(now),
            Step::Queued => match (self.need(now.wall), self.turn) {
                (None, _) => {
                    self.step = Step::Idle;
                    self.work(now);
                }
                (Some(slot), Turn::Taken) => {
                    self.take_turn(now, slot);
                    self.work(now);
                }
                (Some(_), Turn::None | Turn::Waiting) => {}
            },
            Step::Preflight { until } => {
                if until <= now.instant {
                    self.end_preflight(now, Err("the domain was not checked in time".to_owned()));
                    return self.work(now);
                }
                self.wake_at(Some(until));
            }
            Step::Locking { slot } => {
                // The need may have gone while waiting: another leader's certificate may have landed.
                if self.need(now.wall) != Some(slot) {
                    self.step = Step::Idle;
                    return self.work(now);
                }
                if self.hold_lock(now) {
                    self.attempts = self.attempts.saturating_add(1);
                    let failed = self.failure_of(slot);
                    self.order(now, slot, failed);
                }
            }
            Step::Ordering {
                slot,
                until,
                failed,
            } => {
                let reason = if until <= now.instant {
                    "the order did not end in time"
                } else if !self.hold_lock(now) {
                    "the lock was lost"
                } else if self.is_superseded(slot, now.wall) {
                    self.abandon();
                    return self.work(now);
                } else {
                    return self.wake_at(Some(until));
                };
                let failure = OrderFailure {
                    class: FailureClass::Transient,
                    retry_after: None,
                    reason: reason.to_owned(),
                };
                self.fail(now, slot, failed, failure);
                self.work(now);
            }
            Step::Storing { slot, chain, event } => {
                let stored = self.stored(slot);
                if stored == Some(chain) {
                    self.finish(now, slot, &chain);
                    return self.work(now);
                }
                // Another certificate may have been stored while this node did not lead.
                if !improves(stored, &chain) || self.is_superseded(slot, now.wall) {
                    self.abandon();
                    return self.work(now);
                }
                if pace(&mut self.writes.store, now) {
                    let attempt = self.attempt;
                    self.actions.push_back(Action::Store {
                        attempt,
                        slot,
                        event,
                    });
                }
                self.wake_at(self.writes.store);
            }
        }
    }

    /// Directory to order from at `wall`; `None` if the certificate needs nothing.
    fn need(&self, wall: SystemTime) -> Option<Slot> {
        let staged = self.facts.staging.filter(|chain| chain.is_valid(wall));
        match &self.facts.production {
            Some(chain) => (self.renewal_at(chain) <= wall).then_some(Slot::Production),
            None if self.settings.stage_first && (self.restage || staged.is_none()) => {
                Some(Slot::Staging)
            }
            None => Some(Slot::Production),
        }
    }

    /// Whether a certificate is stored that makes an order from `slot` needless.
    fn is_superseded(&self, slot: Slot, wall: SystemTime) -> bool {
        match (slot, &self.facts.production) {
            (_, None) => false,
            (Slot::Staging, Some(_)) => true,
            (Slot::Production, Some(chain)) => wall < self.renewal_at(chain),
        }
    }

    /// Row of the table of waits for a failed order from `slot`.
    fn failure_of(&self, slot: Slot) -> Failed {
        let first = self.facts.production.is_none();
        match slot {
            Slot::Production if first && self.settings.stage_first => Failed::Promotion,
            Slot::Production | Slot::Staging => Failed::Order,
        }
    }

    /// Begins an attempt if one is due, or sets the time of the next.
    fn begin(&mut self, now: Now) {
        self.end_turn();
        // A copy of this node may spare the order; it is stored first.
        let copy = self.facts.local.production;
        let reseeds = copy.is_some_and(|chain| chain.is_valid(now.wall));
        if reseeds && self.facts.production.is_none() {
            return;
        }
        if self.need(now.wall).is_none() {
            if let Some(chain) = &self.facts.production {
                // The wall clock may be set meanwhile.
                let wait = self.renewal_at(chain).duration_since(now.wall);
                let wait = wait
                    .unwrap_or_default()
                    .clamp(Duration::from_secs(1), CHECK);
                self.wake_at(Some(now.instant + wait));
            }
            return;
        }
        let next_attempt = self.backoff.until();
        let second = self.leading.filter(|_| self.attempts > 0);
        let second = second.map(|since| since + NEW_LEADER);
        let probed = self.preflight.map(|(_, next)| next);
        let waits = [next_attempt, second, probed];
        let until = waits.into_iter().flatten().max();
        if until.is_some_and(|until| now.instant < until) {
            return self.wake_at(until);
        }
        // It does not wait for another node's lease during its turn.
        if self.awaits_lock(now) {
            return;
        }
        let since = until.map(|until| now.instant.saturating_duration_since(until));
        let waited = since.map(|since| now.wall.checked_sub(since).unwrap_or(now.wall));
        let renewal = self.facts.production.map(|chain| self.renewal_at(&chain));
        let due = renewal.max(waited).unwrap_or(now.wall);
        self.actions.push_back(Action::Queue { due });
        self.turn = Turn::Waiting;
        self.step = Step::Queued;
    }

    /// Begins with the preflight of a first order, or with the lock.
    fn take_turn(&mut self, now: Now, slot: Slot) {
        let first = self.facts.production.is_none() && self.failure_of(slot) != Failed::Promotion;
        if self.settings.preflight && first {
            self.attempt += 1;
            let attempt = self.attempt;
            self.actions.push_back(Action::Preflight { attempt });
            let until = now.instant + PREFLIGHT_TIMEOUT;
            self.step = Step::Preflight { until };
        } else {
            self.step = Step::Locking { slot };
        }
    }

    /// Goes on to the order, or waits for the domain's records to be corrected.
    pub(super) fn end_preflight(&mut self, now: Now, verdict: Result<(), String>) {
        match verdict {
            Ok(()) => {
                self.preflight = None;
                self.waiting_dns = false;
                let need = self.need(now.wall);
                self.step = need.map_or(Step::Idle, |slot| Step::Locking { slot });
            }
            Err(reason) => {
                let wait = match self.preflight {
                    None => PREFLIGHT_MIN,
                    Some((last, _)) => (last * 2).min(PREFLIGHT_MAX),
                };
                self.preflight = Some((wait, now.instant + wait));
                if !self.waiting_dns || self.reason != reason {
                    let event = audit::waiting(now.wall, &self.domain, &reason);
                    self.actions.push_back(Action::Audit(event));
                }
                self.waiting_dns = true;
                self.reason = reason;
                self.step = Step::Idle;
            }
        }
    }

    fn order(&mut self, now: Now, slot: Slot, failed: Failed) {
        self.attempt += 1;
        self.actions.push_back(Action::Order {
            attempt: self.attempt,
            slot,
            contact: self.facts.contact.clone(),
            renews: slot == Slot::Production && self.facts.production.is_some(),
        });
        let until = now.instant + WINDOW;
        self.step = Step::Ordering {
            slot,
            until,
            failed,
        };
        self.wake_at(Some(until));
    }

    /// Checks an issued certificate before it is stored.
    pub(super) fn accept(&mut self, now: Now, slot: Slot, failed: Failed, chain: Chain) {
        let fault = if !chain.covers {
            "the certificate does not name the domain or does not belong to its key"
        } else if chain.not_after <= now.wall {
            "the certificate has already expired"
        } else if !improves(self.stored(slot), &chain) {
            "the certificate expires before the stored one"
        } else {
            let renewed = slot == Slot::Production && self.facts.production.is_some();
            let environment = self.environment(slot);
            let event = audit::stored(now.wall, &self.domain, environment, renewed);
            self.writes.store = None;
            self.step = Step::Storing { slot, chain, event };
            return;
        };
        let failed = match slot {
            Slot::Staging => Failed::SelfCheck,
            Slot::Production => failed,
        };
        let failure = OrderFailure {
            class: FailureClass::Unknown,
            retry_after: None,
            reason: fault.to_owned(),
        };
        self.fail(now, slot, failed, failure);
    }

    /// Ends an attempt that failed, and begins the wait before the next.
    pub(super) fn fail(&mut self, now: Now, slot: Slot, failed: Failed, failure: OrderFailure) {
        self.abandon();
        let wait = self.backoff.handle_failure(now.instant, failed, &failure);
        if failed == Failed::Promotion {
            self.restage = true;
        }
        let environment = self.environment(slot);
        let (wall, domain) = (now.wall, &self.domain);
        let event = audit::failed(wall, domain, environment, failed, &failure, wait);
        self.actions.push_back(Action::Audit(event));
        self.reason = failure.reason;
    }

    /// The state shows the certificate.
    fn finish(&mut self, now: Now, slot: Slot, chain: &Chain) {
        let attempt = self.attempt;
        self.actions.push_back(Action::Discard { attempt });
        self.reason.clear();
        self.step = Step::Idle;
        match slot {
            Slot::Production => {
                let left = chain.not_after.duration_since(now.wall);
                self.backoff
                    .handle_issued(now.instant, left.unwrap_or_default());
            }
            Slot::Staging => {
                self.restage = false;
                self.backoff.handle_staged();
                // One attempt goes from staging to production.
                if self.facts.production.is_none() && self.hold_lock(now) {
                    self.order(now, Slot::Production, Failed::Promotion);
                }
            }
        }
    }

    fn stored(&self, slot: Slot) -> Option<Chain> {
        match slot {
            Slot::Staging => self.facts.staging,
            Slot::Production => self.facts.production,
        }
    }

    fn environment(&self, slot: Slot) -> Environment {
        match slot {
            Slot::Staging => Environment::Staging,
            Slot::Production => self.settings.environment,
        }
    }
}

/// Whether storing `new` in place of `stored` makes what is served no worse.
fn improves(stored: Option<Chain>, new: &Chain) -> bool {
    stored.is_none_or(|stored| !stored.covers || stored.not_after < new.not_after)
}
