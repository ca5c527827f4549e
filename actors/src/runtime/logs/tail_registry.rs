//! Tracks the log tails of each replica and how far they have read.
//!
//! The engine drops a container's remaining output when it is removed. Before a removal,
//! [`TailRegistry::wait_drained`] therefore announces that the container has stopped and waits
//! until every tail of the replica has listed the containers since then and has read their output.
//! The wait is bounded: a stalled tail must not delay the replica's next container.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

/// Longest wait before a removal while no tail makes progress.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait before a removal in total.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Log tails of one node, by replica.
#[derive(Default)]
pub(crate) struct TailRegistry(Mutex<BTreeMap<String, Weak<ReplicaTails>>>);

/// Log tails of one replica.
#[derive(Debug, Default)]
struct ReplicaTails {
    /// Number of containers stopped for removal.
    stops: watch::Sender<u64>,
    /// For each tail, by its number: the stops up to which it has read all output.
    read: watch::Sender<BTreeMap<u64, u64>>,
    /// Incremented whenever a tail reads a frame or lists containers.
    progress: AtomicU64,
    next: AtomicU64,
}

impl TailRegistry {
    /// Registers a tail of a replica.
    pub(super) fn join(&self, replica_id: &str) -> TailProgress {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, tails| tails.strong_count() > 0);
        let known = all.get(replica_id).and_then(Weak::upgrade);
        let tails = known.unwrap_or_else(|| {
            let tails = Arc::default();
            all.insert(replica_id.to_owned(), Arc::downgrade(&tails));
            tails
        });
        TailProgress::new(tails)
    }

    /// Waits until every tail has read the output of a replica whose container has stopped; gives
    /// up after `STALL_TIMEOUT` without progress or after `DRAIN_TIMEOUT`.
    pub(crate) async fn wait_drained(&self, replica_id: &str) {
        let tails = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(replica_id).and_then(Weak::upgrade)
        };
        let Some(tails) = tails else { return };
        let mut read = tails.read.subscribe();
        let mut stop = 0;
        tails.stops.send_modify(|stops| {
            *stops += 1;
            stop = *stops;
        });
        let end = Instant::now() + DRAIN_TIMEOUT;
        loop {
            let before = tails.progress.load(Ordering::Relaxed);
            let until = end.min(Instant::now() + STALL_TIMEOUT);
            let all = read.wait_for(|read| read.values().all(|&stops| stops >= stop));
            if timeout_at(until, all).await.is_ok() {
                return;
            }
            if tails.progress.load(Ordering::Relaxed) == before || Instant::now() >= end {
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

/// Registration of one tail; dropping it removes the tail from those waited for.
#[derive(Debug)]
pub(super) struct TailProgress {
    tails: Arc<ReplicaTails>,
    number: u64,
    stops: watch::Receiver<u64>,
    /// Value of `stops` when the tail last listed the containers.
    seen: u64,
}

impl TailProgress {
    fn new(tails: Arc<ReplicaTails>) -> Self {
        let number = tails.next.fetch_add(1, Ordering::Relaxed);
        let mut stops = tails.stops.subscribe();
        let seen = *stops.borrow_and_update();
        let reader = Self {
            tails,
            number,
            stops,
            seen,
        };
        reader.mark_read();
        reader
    }

    /// Records that the tail is about to list the containers.
    pub(super) fn begin_listing(&mut self) {
        self.seen = *self.stops.borrow_and_update();
        self.record_progress();
    }

    /// Records that the tail has read something.
    pub(super) fn record_progress(&self) {
        self.tails.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the tail has read all output present at its last listing.
    pub(super) fn mark_read(&self) {
        let (number, seen) = (self.number, self.seen);
        self.tails.read.send_modify(|read| {
            read.insert(number, seen);
        });
    }

    /// Waits for a container to be stopped after the tail's last listing.
    pub(super) async fn stopped(&mut self) {
        let seen = self.seen;
        // Cannot fail: `tails` keeps the sender alive.
        let _ = self.stops.wait_for(|stops| *stops > seen).await;
    }
}

impl Drop for TailProgress {
    fn drop(&mut self) {
        self.tails.read.send_modify(|read| {
            read.remove(&self.number);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn removal_waits_only_for_its_replicas_tails() {
        let readers = TailRegistry::default();
        let mut reader = readers.join("web-0");
        let begun = Instant::now();
        readers.wait_drained("web-1").await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let read = async {
            reader.stopped().await;
            reader.begin_listing();
            tokio::time::sleep(Duration::from_millis(300)).await;
            reader.mark_read();
        };
        tokio::join!(readers.wait_drained("web-0"), read);
        assert_eq!(begun.elapsed(), Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn output_read_before_stop_does_not_count() {
        let readers = TailRegistry::default();
        let mut reader = readers.join("web-0");
        let begun = Instant::now();
        let read = async {
            reader.begin_listing();
            // The stop happens during the read.
            tokio::time::sleep(Duration::from_millis(100)).await;
            reader.mark_read();
            reader.stopped().await;
            reader.begin_listing();
            tokio::time::sleep(Duration::from_millis(100)).await;
            reader.mark_read();
        };
        let stop = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            readers.wait_drained("web-0").await;
        };
        tokio::join!(stop, read);
        assert_eq!(begun.elapsed(), Duration::from_millis(200));
    }

    #[tokio::test(start_paused = true)]
    async fn removal_waits_for_every_live_tail() {
        let readers = TailRegistry::default();
        let (mut quick, slow) = (readers.join("web-0"), readers.join("web-0"));
        let begun = Instant::now();
        let read = async {
            quick.stopped().await;
            quick.begin_listing();
            quick.mark_read();
            tokio::time::sleep(Duration::from_millis(700)).await;
            drop(slow);
        };
        tokio::join!(readers.wait_drained("web-0"), read);
        assert_eq!(begun.elapsed(), Duration::from_millis(700));
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_tail_delays_removal_briefly() {
        let readers = TailRegistry::default();
        let _reader = readers.join("web-0");
        let begun = Instant::now();
        readers.wait_drained("web-0").await;
        assert_eq!(begun.elapsed(), STALL_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn progressing_tail_delays_removal_up_to_limit() {
        let readers = TailRegistry::default();
        let reader = readers.join("web-0");
        let begun = Instant::now();
        let reads = async {
            for _ in 0..100 {
                tokio::time::sleep(STALL_TIMEOUT * 2 / 3).await;
                reader.record_progress();
            }
        };
        tokio::select! {
            () = readers.wait_drained("web-0") => {}
            () = reads => unreachable!("waited for ever"),
        }
        assert_eq!(begun.elapsed(), DRAIN_TIMEOUT);
    }

    #[test]
    fn dropped_tails_are_unregistered() {
        let readers = TailRegistry::default();
        drop(readers.join("web-0"));
        let kept = readers.join("web-1");
        assert!(Arc::ptr_eq(&kept.tails, &readers.join("web-1").tails));
        assert_eq!(readers.0.lock().unwrap().len(), 1);
        assert_eq!(kept.tails.read.borrow().len(), 1);
    }
}
