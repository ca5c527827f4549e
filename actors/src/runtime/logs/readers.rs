//! Who is amid the output of which replica.
//!
//! The last lines of a container go with it. A tail that follows it holds a lock from its first
//! read to its last one, and whoever removes the container waits for that lock, though not for
//! ever: a tail that does not come on must not keep a replica from its next container.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedRwLockReadGuard, RwLock},
    time::{Instant, timeout_at},
};

/// Longest wait for readers of a container that is to be removed while none of them comes on.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait for them in all.
const LIMIT: Duration = Duration::from_secs(10);

/// The tails of one node.
#[derive(Default)]
pub(crate) struct Readers(Mutex<BTreeMap<String, Weak<Amid>>>);

/// What the tails of a replica share.
#[derive(Default)]
pub(super) struct Amid {
    lock: Arc<RwLock<()>>,
    /// How much they have read.
    read: AtomicU64,
}

impl Amid {
    /// A tail has read something.
    pub(super) fn came_on(&self) {
        self.read.fetch_add(1, Ordering::Relaxed);
    }
}

impl Readers {
    /// What the tails of a replica share.
    pub(super) fn of(&self, replica_id: &str) -> Arc<Amid> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, amid| amid.strong_count() > 0);
        if let Some(amid) = all.get(replica_id).and_then(Weak::upgrade) {
            return amid;
        }
        let amid = Arc::default();
        all.insert(replica_id.to_owned(), Arc::downgrade(&amid));
        amid
    }

    /// Waits until nobody is amid the output of a replica whose container has stopped.
    pub(crate) async fn done(&self, replica_id: &str) {
        let amid = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(replica_id).and_then(Weak::upgrade)
        };
        let Some(amid) = amid else { return };
        let end = Instant::now() + LIMIT;
        loop {
            let before = amid.read.load(Ordering::Relaxed);
            let until = end.min(Instant::now() + PATIENCE);
            if timeout_at(until, amid.lock.write()).await.is_ok() {
                return;
            }
            if amid.read.load(Ordering::Relaxed) == before || Instant::now() >= end {
                break;
            }
        }
        tracing::debug!(
            subsystem = "runtime/reconciler",
            replica_id,
            "a log tail is behind and may miss the last lines"
        );
    }
}

/// Held by a tail that is amid the output of a replica.
#[derive(Default)]
pub(super) struct Hold(Option<OwnedRwLockReadGuard<()>>);

impl Hold {
    /// Takes the lock unless it is held already.
    pub(super) async fn take(&mut self, amid: &Amid) {
        if self.0.is_none() {
            self.0 = Some(Arc::clone(&amid.lock).read_owned().await);
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
        let amid = readers.of("web-0");
        let mut hold = Hold::default();
        hold.take(&amid).await;
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
        let amid = readers.of("web-0");
        let mut hold = Hold::default();
        hold.take(&amid).await;
        let begun = Instant::now();
        readers.done("web-0").await;
        assert_eq!(begun.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_comes_on_is_waited_for_a_while() {
        let readers = Readers::default();
        let amid = readers.of("web-0");
        let mut hold = Hold::default();
        hold.take(&amid).await;
        let begun = Instant::now();
        let reads = async {
            for _ in 0..100 {
                tokio::time::sleep(PATIENCE * 2 / 3).await;
                amid.came_on();
            }
        };
        tokio::select! {
            () = readers.done("web-0") => {}
            () = reads => unreachable!("waited for ever"),
        }
        assert_eq!(begun.elapsed(), LIMIT);
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
