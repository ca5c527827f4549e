//! Admits one incoming snapshot at a time.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Time without progress after which another snapshot may take the slot.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The slot of the one snapshot that is being received.
#[derive(Debug, Default)]
pub(crate) struct ReceiveSlot(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    taken: u64,
    holder: Option<Holder>,
}

#[derive(Debug)]
struct Holder {
    number: u64,
    term: u64,
    active: Instant,
}

/// Permission to receive a snapshot; released on drop.
#[derive(Debug)]
pub(crate) struct SlotGuard {
    slot: Arc<ReceiveSlot>,
    number: u64,
}

impl ReceiveSlot {
    /// Claims the slot for a snapshot of a leader of `term`. Succeeds if the slot is free, or its
    /// holder has stalled or is of an earlier term.
    pub(crate) fn claim(self: &Arc<Self>, term: u64, now: Instant) -> Option<SlotGuard> {
        let mut inner = self.inner();
        let held = inner.holder.as_ref().is_some_and(|holder| {
            holder.term >= term && now.saturating_duration_since(holder.active) < STALL_TIMEOUT
        });
        if held {
            return None;
        }
        inner.taken += 1;
        let number = inner.taken;
        inner.holder = Some(Holder {
            number,
            term,
            active: now,
        });
        Some(SlotGuard {
            slot: Arc::clone(self),
            number,
        })
    }

    /// Revokes the current claim.
    pub(crate) fn reset(&self) {
        self.inner().holder = None;
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Every change is one assignment, so the value is valid after a poisoning too.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotGuard {
    /// Records progress; `false` once another snapshot has taken the slot.
    pub(crate) fn renew(&self, now: Instant) -> bool {
        match &mut self.slot.inner().holder {
            Some(holder) if holder.number == self.number => {
                holder.active = now;
                true
            }
            _ => false,
        }
    }

    /// Returns the number of this claim, unique within this run.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let mut inner = self.slot.inner();
        let own = inner
            .holder
            .as_ref()
            .is_some_and(|h| h.number == self.number);
        if own {
            inner.holder = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_or_older_claim_is_replaced() {
        let slot = Arc::new(ReceiveSlot::default());
        let start = Instant::now();
        let first = slot.claim(3, start).unwrap();
        assert!(slot.claim(3, start).is_none());
        assert!(first.renew(start + STALL_TIMEOUT));
        assert!(
            slot.claim(3, start + STALL_TIMEOUT).is_none(),
            "the first made progress"
        );
        let second = slot.claim(3, start + 2 * STALL_TIMEOUT).unwrap();
        assert!(!first.renew(start + 2 * STALL_TIMEOUT), "it was replaced");
        let third = slot.claim(4, start + 2 * STALL_TIMEOUT).unwrap();
        assert!(!second.renew(start + 2 * STALL_TIMEOUT));
        drop((first, second));
        assert!(
            third.renew(start + 2 * STALL_TIMEOUT),
            "dropped claims of others do not release it"
        );
        drop(third);
        assert!(slot.claim(1, start).is_some());
    }

    #[test]
    fn reset_revokes_the_claim() {
        let slot = Arc::new(ReceiveSlot::default());
        let now = Instant::now();
        let claim = slot.claim(3, now).unwrap();
        slot.reset();
        assert!(!claim.renew(now));
        assert!(slot.claim(3, now).is_some());
    }
}
