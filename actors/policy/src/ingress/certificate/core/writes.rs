//! Repetition of writes that the state does not show yet, and repairs of the store.

use std::time::{Duration, Instant};

use super::{Action, Core};
use crate::{
    COMMIT_BUDGET,
    ingress::certificate::{Chain, Slot},
    runtime::replica::core::Now,
};

/// Wait before a write is repeated that the state does not show: longer than a lost one may take.
pub const WRITE_RETRY: Duration = COMMIT_BUDGET.saturating_add(Duration::from_secs(1));

/// Times before which a write is not repeated.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Writes {
    pub(super) lock: Option<Instant>,
    pub(super) unlock: Option<Instant>,
    pub(super) store: Option<Instant>,
    pub(super) maintenance: Option<Instant>,
}

/// Whether a write is due, which is then not repeated for [`WRITE_RETRY`].
pub(super) fn pace(next: &mut Option<Instant>, now: Now) -> bool {
    let due = next.is_none_or(|next| next <= now.instant);
    if due {
        *next = Some(now.instant + WRITE_RETRY);
    }
    due
}

impl Core {
    /// Repairs the store: drops a staging certificate that is superseded, and stores copies again.
    pub(super) fn maintain(&mut self, now: Now) {
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
    pub(super) fn may_maintain(&mut self, now: Now) -> bool {
        let due = pace(&mut self.writes.maintenance, now);
        self.wake_at(self.writes.maintenance);
        due
    }
}
