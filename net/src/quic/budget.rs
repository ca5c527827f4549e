//! Limit on the received bytes that are held for one member.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that may be held of what one member sends, shared by any number of its streams. Clones
/// share the budget.
///
/// A reader reserves the announced length of a frame before it allocates memory for it, so an
/// exhausted budget leaves the rest of the data to flow control. Waiting readers are served in
/// order.
#[derive(Clone, Debug)]
pub struct ReceiveBudget {
    bytes: Arc<Semaphore>,
    limit: usize,
    least: usize,
    /// Held while a message of several frames is received whole. Two of them could otherwise each
    /// hold a part of the budget and wait for the part of the other.
    assembly: Arc<Semaphore>,
}

impl ReceiveBudget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            bytes: Arc::new(Semaphore::new(limit)),
            limit,
            least: 0,
            assembly: Arc::new(Semaphore::new(1)),
        }
    }

    /// Charges `bytes` for each shorter frame: what it occupies as an allocation of its own.
    #[must_use]
    pub fn with_least_share(mut self, bytes: usize) -> Self {
        self.least = bytes;
        self
    }

    /// Bytes that are not reserved.
    #[must_use]
    pub fn available(&self) -> usize {
        self.bytes.available_permits()
    }

    /// Waits until `bytes`, or the whole budget if they are more, are free, and reserves them; at
    /// least the share of a short frame.
    pub(super) async fn reserve(&self, bytes: usize) -> Reservation {
        let bytes = bytes.max(self.least).min(self.limit);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.bytes).acquire_many_owned(bytes).await;
        Reservation(permit.ok()) // the semaphore is never closed
    }

    /// Waits until no other message of several frames is being received whole.
    pub(super) async fn assemble(&self) -> Reservation {
        let permit = Arc::clone(&self.assembly).acquire_owned().await;
        Reservation(permit.ok())
    }
}

/// Share of a [`ReceiveBudget`], given back when it is dropped.
#[derive(Debug, Default)]
pub struct Reservation(Option<OwnedSemaphorePermit>);

impl Reservation {
    /// Adds `other`, a share of the same budget. Many shares occupy more memory than one.
    ///
    /// # Panics
    /// If the shares are of different budgets.
    pub fn merge(&mut self, other: Self) {
        match (&mut self.0, other.0) {
            (Some(own), Some(other)) => own.merge(other),
            (own @ None, other) => *own = other,
            (Some(_), None) => {}
        }
    }

    /// Number of reserved bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn short_frames_are_charged_least_share() {
        let budget = ReceiveBudget::new(100).with_least_share(30);
        let mut all = Reservation::default();
        for bytes in [0, 1, 40] {
            all.merge(budget.reserve(bytes).await);
        }
        assert_eq!((all.bytes(), budget.available()), (100, 0));
        all.merge(Reservation::default());
        drop(all);
        assert_eq!(budget.available(), 100);
        // A budget that is smaller than the least share still serves one frame at a time.
        let small = ReceiveBudget::new(10).with_least_share(30);
        assert_eq!(small.reserve(1).await.bytes(), 10);
    }
}
