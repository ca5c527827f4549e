//! Who reads the output of which replica, and how far.
//!
//! The last lines of a container go with it. So whoever stops a container to remove it says that
//! it has stopped, and waits until every tail of the replica has looked since then and has read
//! what was there, though not for ever: a tail that does not come on must not keep a replica from
//! its next container.

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

/// Longest wait for the tails of a container that is to be removed while none of them comes on.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait for them in all.
const LIMIT: Duration = Duration::from_secs(10);

/// The tails of one node.
#[derive(Default)]
pub(crate) struct Readers(Mutex<BTreeMap<String, Weak<Tails>>>);

/// The tails of one replica.
#[derive(Debug, Default)]
struct Tails {
    /// How many containers were stopped to be removed.
    stops: watch::Sender<u64>,
    /// How many of these stops each tail has read up to, by its number.
    read: watch::Sender<BTreeMap<u64, u64>>,
    /// Grows while tails read.
    progress: AtomicU64,
    next: AtomicU64,
}

impl Readers {
    /// One more tail of a replica.
    pub(super) fn join(&self, replica_id: &str) -> Reader {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, tails| tails.strong_count() > 0);
        let known = all.get(replica_id).and_then(Weak::upgrade);
        let tails = known.unwrap_or_else(|| {
            let tails = Arc::default();
            all.insert(replica_id.to_owned(), Arc::downgrade(&tails));
            tails
        });
        Reader::new(tails)
    }

    /// Waits until every tail has read the output of a replica whose container has stopped.
    pub(crate) async fn done(&self, replica_id: &str) {
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
        let end = Instant::now() + LIMIT;
        loop {
            let before = tails.progress.load(Ordering::Relaxed);
            let until = end.min(Instant::now() + PATIENCE);
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

/// What a tail says of itself; dropped, it is waited for no more.
#[derive(Debug)]
pub(super) struct Reader {
    tails: Arc<Tails>,
    number: u64,
    stops: watch::Receiver<u64>,
    /// Stops before its last look at the containers.
    seen: u64,
}

impl Reader {
    fn new(tails: Arc<Tails>) -> Self {
        let number = tails.next.fetch_add(1, Ordering::Relaxed);
        let mut stops = tails.stops.subscribe();
        let seen = *stops.borrow_and_update();
        let reader = Self {
            tails,
            number,
            stops,
            seen,
        };
        reader.read_all();
        reader
    }

    /// It is about to look at the containers.
    pub(super) fn look(&mut self) {
        self.seen = *self.stops.borrow_and_update();
        self.come_on();
    }

    /// It has read something.
    pub(super) fn come_on(&self) {
        self.tails.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// It has read everything that was there at its last look.
    pub(super) fn read_all(&self) {
        let (number, seen) = (self.number, self.seen);
        self.tails.read.send_modify(|read| {
            read.insert(number, seen);
        });
    }

    /// Returns once a container was stopped that it has not looked at since.
    pub(super) async fn stopped(&mut self) {
        let seen = self.seen;
        // The sender lives as long as this.
        let _ = self.stops.wait_for(|stops| *stops > seen).await;
    }
}

impl Drop for Reader {
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
    async fn a_removal_waits_for_the_tails_of_its_replica_alone() {
        let readers = Readers::default();
        let mut reader = readers.join("web-0");
        let begun = Instant::now();
        readers.done("web-1").await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let read = async {
            reader.stopped().await;
            reader.look();
            tokio::time::sleep(Duration::from_millis(300)).await;
            reader.read_all();
        };
        tokio::join!(readers.done("web-0"), read);
        assert_eq!(begun.elapsed(), Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_before_the_stop_does_not_count() {
        let readers = Readers::default();
        let mut reader = readers.join("web-0");
        let begun = Instant::now();
        let read = async {
            reader.look();
            // The stop comes while it reads.
            tokio::time::sleep(Duration::from_millis(100)).await;
            reader.read_all();
            reader.stopped().await;
            reader.look();
            tokio::time::sleep(Duration::from_millis(100)).await;
            reader.read_all();
        };
        let stop = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            readers.done("web-0").await;
        };
        tokio::join!(stop, read);
        assert_eq!(begun.elapsed(), Duration::from_millis(200));
    }

    #[tokio::test(start_paused = true)]
    async fn every_tail_is_waited_for_until_it_is_gone() {
        let readers = Readers::default();
        let (mut quick, slow) = (readers.join("web-0"), readers.join("web-0"));
        let begun = Instant::now();
        let read = async {
            quick.stopped().await;
            quick.look();
            quick.read_all();
            tokio::time::sleep(Duration::from_millis(700)).await;
            drop(slow);
        };
        tokio::join!(readers.done("web-0"), read);
        assert_eq!(begun.elapsed(), Duration::from_millis(700));
    }

    #[tokio::test(start_paused = true)]
    async fn a_tail_that_does_not_come_on_is_not_waited_for_long() {
        let readers = Readers::default();
        let _reader = readers.join("web-0");
        let begun = Instant::now();
        readers.done("web-0").await;
        assert_eq!(begun.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tail_that_comes_on_is_waited_for_a_while() {
        let readers = Readers::default();
        let reader = readers.join("web-0");
        let begun = Instant::now();
        let reads = async {
            for _ in 0..100 {
                tokio::time::sleep(PATIENCE * 2 / 3).await;
                reader.come_on();
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
        drop(readers.join("web-0"));
        let kept = readers.join("web-1");
        assert!(Arc::ptr_eq(&kept.tails, &readers.join("web-1").tails));
        assert_eq!(readers.0.lock().unwrap().len(), 1);
        assert_eq!(kept.tails.read.borrow().len(), 1);
    }
}
