//! When a certificate is renewed, and when the authority is asked about it.

use std::time::{Duration, Instant, SystemTime};

use super::{Action, Core};
use crate::{
    ingress::certificate::{Chain, RenewalWindow},
    runtime::replica::core::Now,
};

/// Time between checks whether a renewal is due; renewals are spread over it.
pub(super) const CHECK: Duration = Duration::from_secs(10 * 60);
/// Time between queries about renewal, unless the authority names another.
pub(super) const QUERY_INTERVAL: Duration = Duration::from_secs(6 * 3600);
/// Shortest time between queries.
const QUERY_MIN: Duration = Duration::from_secs(60);
/// Longest time between queries.
const QUERY_MAX: Duration = Duration::from_secs(24 * 3600);

/// Queries about the renewal of the stored certificate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RenewalQueries {
    window: Option<RenewalWindow>,
    next: Option<Instant>,
}

impl RenewalQueries {
    /// Queries that begin at `first`.
    pub(super) fn starting(first: Instant) -> Self {
        Self {
            window: None,
            next: Some(first),
        }
    }

    /// Forgets the window, as another certificate is stored.
    pub(super) fn forget(&mut self, now: Instant) {
        *self = Self {
            window: None,
            next: self.next.map(|next| next.min(now + QUERY_INTERVAL)),
        };
    }

    pub(super) fn answered(
        &mut self,
        now: Instant,
        window: Option<RenewalWindow>,
        retry_after: Option<Duration>,
    ) {
        self.window = window.filter(|window| window.start <= window.end);
        let wait = retry_after.unwrap_or(QUERY_INTERVAL);
        self.next = Some(now + wait.clamp(QUERY_MIN, QUERY_MAX));
    }
}

impl Core {
    /// Time at which the certificate is to be renewed: a third of its life before its end, or
    /// earlier if the authority asks for it.
    pub(super) fn renewal_at(&self, chain: &Chain) -> SystemTime {
        if !chain.covers {
            return SystemTime::UNIX_EPOCH;
        }
        let lifetime = chain.lifetime();
        let spread = CHECK.min(lifetime / 20).mul_f64(self.jitter);
        let third = chain
            .not_after
            .checked_sub(lifetime / 3)
            .map_or(chain.not_after, |third| third + spread);
        let suggested = self.queries.window.map(|window| {
            let length = window.end.duration_since(window.start).unwrap_or_default();
            window.start + length.mul_f64(self.jitter)
        });
        suggested.map_or(third, |suggested| suggested.min(third))
    }

    /// Asks the authority about the stored certificate when it is time.
    pub(super) fn query_renewal(&mut self, now: Now) {
        if self.facts.production.is_none() {
            return;
        }
        if self.queries.next.is_some_and(|next| next <= now.instant) {
            // Repeated even if this query is never answered.
            self.queries.next = Some(now.instant + QUERY_INTERVAL);
            self.actions.push_back(Action::QueryRenewal);
        }
        self.wake_at(self.queries.next);
    }
}
