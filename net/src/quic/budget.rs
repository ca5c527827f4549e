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
            assembly: Arc::new(Semaphore::new(1)),
        }
    }

    /// Bytes that are not reserved.
    #[must_use]
    pub fn available(&self) -> usize {
        self.bytes.available_permits()
    }

    /// Waits until `bytes`, or the whole budget if they are more, are free, and reserves them.
    pub(super) async fn reserve(&self, bytes: usize) -> Reservation {
        let bytes = u32::try_from(bytes.min(self.limit)).unwrap_or(u32::MAX);
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
    /// Number of reserved bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }
}
