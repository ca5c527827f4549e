//! Who is amid the output of which replica.
//!
//! The last lines of a container go with it. A tail that follows it holds a lock from its first
//! read to its last one, and whoever removes the container waits for that lock, though not long:
//! a tail that does not come on must not keep a replica from its next container.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::{OwnedRwLockReadGuard, RwLock};

/// Longest wait for the readers of a container that is to be removed.
const PATIENCE: Duration = Duration::from_secs(1);

/// The tails of one node.
#[derive(Default)]
pub(crate) struct Readers(Mutex<BTreeMap<String, Weak<RwLock<()>>>>);

impl Readers {
    /// What the tails of a replica share.
    pub(super) fn of(&self, replica_id: &str) -> Arc<RwLock<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = all.get(replica_id).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        all.insert(replica_id.to_owned(), Arc::downgrade(&lock));
        lock
    }

    /// Waits until nobody is amid the output of a replica whose container has stopped.
    pub(crate) async fn done(&self, replica_id: &str) {
        let lock = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(replica_id).and_then(Weak::upgrade)
        };
        let Some(lock) = lock else { return };
        if tokio::time::timeout(PATIENCE, lock.write()).await.is_err() {
            tracing::debug!(
                subsystem = "runtime/reconciler",
                replica_id,
                "a log tail is behind and may miss the last lines"
            );
        }
    }
}

/// Held by a tail that is amid the output of a replica.
#[derive(Default)]
pub(super) struct Hold(Option<OwnedRwLockReadGuard<()>>);

impl Hold {
    /// Takes the lock unless it is held already.
    pub(super) async fn take(&mut self, lock: &Arc<RwLock<()>>) {
        if self.0.is_none() {
            self.0 = Some(lock.clone().read_owned().await);
        }
    }

    pub(super) fn release(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_removal_waits_for_the_readers_of_its_replica_alone() {
        let readers = Readers::default();
        let lock = readers.of("web-0");
        let mut hold = Hold::default();
        hold.take(&lock).await;
        let begun = Instant::now();
        readers.done("web-1").await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let release = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            hold.release();
        };
        tokio::join!(readers.done("web-0"), release);
        assert_eq!(begun.elapsed(), Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_does_not_come_on_is_not_waited_for_long() {
        let readers = Readers::default();
        let lock = readers.of("web-0");
        let mut hold = Hold::default();
        hold.take(&lock).await;
        let begun = Instant::now();
        readers.done("web-0").await;
        assert_eq!(begun.elapsed(), PATIENCE);
    }

    #[test]
    fn tails_that_are_gone_leave_nothing() {
        let readers = Readers::default();
        drop(readers.of("web-0"));
        let kept = readers.of("web-1");
        assert!(Arc::ptr_eq(&kept, &readers.of("web-1")));
        assert_eq!(readers.0.lock().unwrap().len(), 1);
    }
}
