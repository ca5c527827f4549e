//! Exclusion of concurrent instances of one child.
//!
//! A supervisor that is killed takes its children down, but its end is reported before theirs. So
//! every instance holds the [`InstanceGuard`] of its [`InstanceLock`], as do its tasks, and each
//! guard keeps that of the parent instance alive. The next instance acquires the lock only after
//! the last holder has released it: the instance, its tasks and everything that ran below it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Failure;

/// Lock of one child, held by its running instance.
#[derive(Clone)]
pub(crate) struct InstanceLock(Arc<Semaphore>);

/// Proof of being the only instance of a child.
pub(crate) struct InstanceGuard {
    _permit: OwnedSemaphorePermit,
    _parent: Option<Arc<InstanceGuard>>,
}

impl InstanceLock {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }

    /// Waits until no earlier instance is left and acquires the lock. `parent` is released with it.
    pub(crate) async fn acquire(
        &self,
        parent: Option<Arc<InstanceGuard>>,
    ) -> Result<Arc<InstanceGuard>, Failure> {
        let permit = Arc::clone(&self.0).acquire_owned().await?;
        Ok(Arc::new(InstanceGuard {
            _permit: permit,
            _parent: parent,
        }))
    }

    pub(crate) fn is_free(&self) -> bool {
        self.0.available_permits() > 0
    }

    /// Waits until no instance is left.
    pub(crate) async fn released(&self) {
        // The semaphore is never closed, so there is no error to handle.
        let _ = self.0.acquire().await;
    }
}
