//! One instance of a child at a time.
//!
//! A supervisor that is killed takes its children down, but is reported dead before they are.
//! So every instance holds a pass for its place in the tree, and keeps the pass of its parent
//! instance alive too; the tasks it spawned hold it as well. The next instance enters the
//! place only when the last holder of the old pass is gone: the instance, its tasks and
//! everything that ran below it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Failure;

/// The entrance of one place in the tree.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Semaphore>);

/// Proof of being the only instance in a place.
pub(crate) struct Pass {
    _permit: OwnedSemaphorePermit,
    _parent: Option<Arc<Pass>>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }

    /// Waits until the place is empty and takes it.
    pub(crate) async fn enter(&self, parent: Option<Arc<Pass>>) -> Result<Arc<Pass>, Failure> {
        let permit = Arc::clone(&self.0).acquire_owned().await?;
        Ok(Arc::new(Pass {
            _permit: permit,
            _parent: parent,
        }))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.available_permits() > 0
    }

    /// Waits until the place is empty.
    pub(crate) async fn emptied(&self) {
        // The semaphore is never closed, so there is no error to act on.
        let _ = self.0.acquire().await;
    }
}
