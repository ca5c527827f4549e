//! The lock of the domain, which one node holds at a time.

use std::time::{Duration, SystemTime};

use super::{Action, Core, writes::pace};
use crate::runtime::replica::core::Now;

/// Length of the lock's lease.
pub const LEASE: Duration = Duration::from_secs(5 * 60);
/// Age of a lease at which it is renewed.
pub const LEASE_RENEWAL: Duration = Duration::from_secs(2 * 60);

impl Core {
    /// Releases the lock if this node holds it.
    pub(super) fn release(&mut self, now: Now) {
        let held = self.facts.lock.filter(|lock| lock.ours);
        if held.is_some_and(|lock| now.wall < lock.until) {
            if pace(&mut self.writes.unlock, now) {
                self.actions.push_back(Action::Unlock);
            }
            self.wake_at(self.writes.unlock);
        }
    }

    /// Whether another node holds the lock; if so, waits for the end of its lease.
    pub(super) fn awaits_lock(&mut self, now: Now) -> bool {
        let lock = self.facts.lock.filter(|lock| !lock.ours);
        let left = lock.and_then(|lock| lock.until.duration_since(now.wall).ok());
        let Some(left) = left.filter(|left| !left.is_zero()) else {
            return false;
        };
        // Bounded, as the holder's clock may be ahead.
        let wait = left.clamp(Duration::from_secs(1), LEASE);
        self.wake_at(Some(now.instant + wait));
        true
    }

    /// Ensures that this node holds the lock, and renews it in time.
    ///
    /// A lease of an earlier leadership does not count: the facts may be older than what another
    /// leader has stored since. One that was asked for in this leadership shows that they are not.
    pub(super) fn hold_lock(&mut self, now: Now) -> bool {
        if self.awaits_lock(now) {
            return false;
        }
        let asked = self.asked;
        let renewed = |until: SystemTime| asked.is_some_and(|asked| asked <= until);
        let ours = self.facts.lock;
        let ours = ours.filter(|lock| lock.ours && renewed(lock.until));
        let left = ours.and_then(|lock| lock.until.duration_since(now.wall).ok());
        let left = left.unwrap_or_default();
        if left > LEASE - LEASE_RENEWAL {
            self.wake_at(Some(now.instant + (left - (LEASE - LEASE_RENEWAL))));
            return true;
        }
        if pace(&mut self.writes.lock, now) {
            let until = now.wall + LEASE;
            self.asked = Some(self.asked.map_or(until, |asked| asked.min(until)));
            self.actions.push_back(Action::Lock { until });
        }
        self.wake_at(self.writes.lock);
        !left.is_zero()
    }
}
