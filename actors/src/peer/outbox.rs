//! Queue of raft messages and snapshots for one member.

use std::{
    collections::VecDeque,
    future::pending,
    sync::Mutex,
    time::{Duration, Instant},
};

use jaco_raftnode::OutgoingSnapshot;
use tokio::sync::Notify;

use crate::lock::lock;

/// Maximum number of queued bytes. Raft retransmits dropped messages, so a longer queue would only
/// hold older ones.
const LIMIT: usize = 16 << 20;
/// Minimum time between two unreachable reports to raft.
const REPORTS: Duration = Duration::from_millis(50);

/// Outcome of queueing a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutOutcome {
    /// The message is queued, in order.
    Queued,
    /// The message was dropped; raft got an unreachable report less than [`REPORTS`] ago.
    Dropped,
    /// The message was dropped; the caller must report the member unreachable to raft.
    Unreachable,
}

/// Traffic of raft for one member. The raft thread puts, the connection's tasks take.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    messages: Notify,
    snapshots: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    /// Whether there is a connection.
    open: bool,
    /// Number of connections so far, the present one included.
    connections: u64,
    messages: Vec<Vec<u8>>,
    bytes: usize,
    snapshots: VecDeque<OutgoingSnapshot>,
    reported: Option<Instant>,
}

impl Outbox {
    /// Queues a message of raft. Blocks only for the lock, which is held briefly.
    pub(super) fn put(&self, message: Vec<u8>, now: Instant) -> PutOutcome {
        let mut queue = lock(&self.queue);
        if !queue.open || queue.bytes + message.len() > LIMIT {
            let known = queue
                .reported
                .is_some_and(|at| now.saturating_duration_since(at) < REPORTS);
            if known {
                return PutOutcome::Dropped;
            }
            queue.reported = Some(now);
            return PutOutcome::Unreachable;
        }
        queue.bytes += message.len();
        queue.messages.push(message);
        let first = queue.messages.len() == 1;
        drop(queue);
        if first {
            self.messages.notify_one();
        }
        PutOutcome::Queued
    }

    /// Queues a snapshot. Without a connection it is dropped, and its drop reports the failure to
    /// raft.
    pub(super) fn put_snapshot(&self, snapshot: OutgoingSnapshot) {
        let mut queue = lock(&self.queue);
        if queue.open {
            queue.snapshots.push_back(snapshot);
            drop(queue);
            self.snapshots.notify_one();
        } else {
            drop(queue);
            drop(snapshot);
        }
    }

    /// Waits for messages for `connection` and swaps the queue with `taken`, which must be empty.
    /// Cancel-safe.
    pub(super) async fn take(&self, connection: u64, taken: &mut Vec<Vec<u8>>) {
        let take = |queue: &mut Queue| {
            let some = !queue.messages.is_empty();
            if some {
                queue.bytes = 0;
                std::mem::swap(&mut queue.messages, taken);
            }
            some.then_some(())
        };
        self.next(connection, &self.messages, take).await;
    }

    /// Waits for the next snapshot for `connection`. Cancel-safe.
    pub(super) async fn take_snapshot(&self, connection: u64) -> OutgoingSnapshot {
        let take = |queue: &mut Queue| queue.snapshots.pop_front();
        self.next(connection, &self.snapshots, take).await
    }

    async fn next<T>(
        &self,
        connection: u64,
        notify: &Notify,
        mut take: impl FnMut(&mut Queue) -> Option<T>,
    ) -> T {
        loop {
            {
                let mut queue = lock(&self.queue);
                if queue.connections != connection {
                    break;
                }
                if let Some(taken) = take(&mut queue) {
                    return taken;
                }
            }
            notify.notified().await;
        }
        // The caller's connection was replaced and its task is about to be aborted: pass the wakeup
        // on to the new connection's task.
        notify.notify_one();
        pending().await
    }

    /// Starts a connection and returns its number. Traffic queued for the previous one is dropped.
    pub(super) fn open(&self) -> u64 {
        let mut queue = lock(&self.queue);
        let number = queue.connections + 1;
        let left = std::mem::take(&mut *queue);
        queue.connections = number;
        queue.open = true;
        drop(queue);
        drop(left); // a dropped snapshot reports its failure to raft
        number
    }

    /// Ends the connection and drops queued traffic.
    pub(super) fn close(&self) {
        let mut queue = lock(&self.queue);
        let connections = queue.connections;
        let left = std::mem::take(&mut *queue);
        queue.connections = connections;
        drop(queue);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn queued_messages_come_out_together_in_order() {
        let outbox = Outbox::default();
        let connection = outbox.open();
        let now = Instant::now();
        for byte in 0..3 {
            assert_eq!(outbox.put(vec![byte], now), PutOutcome::Queued);
        }
        let mut taken = Vec::new();
        outbox.take(connection, &mut taken).await;
        assert_eq!(taken, [[0], [1], [2]]);
    }

    #[test]
    fn unreachable_reports_are_rate_limited() {
        let outbox = Outbox::default();
        let now = Instant::now();
        assert_eq!(outbox.put(vec![1], now), PutOutcome::Unreachable);
        assert_eq!(outbox.put(vec![1], now), PutOutcome::Dropped);
        assert_eq!(outbox.put(vec![1], now + REPORTS), PutOutcome::Unreachable);
        outbox.open();
        assert_eq!(outbox.put(vec![0; LIMIT], now), PutOutcome::Queued);
        assert_eq!(outbox.put(vec![1], now), PutOutcome::Unreachable);
    }

    #[tokio::test]
    async fn new_connection_drops_messages_of_old_one() {
        let outbox = Outbox::default();
        outbox.open();
        let now = Instant::now();
        outbox.put(vec![1], now);
        let connection = outbox.open();
        outbox.put(vec![2], now);
        let mut taken = Vec::new();
        outbox.take(connection, &mut taken).await;
        assert_eq!(taken, [[2]]);
    }

    #[tokio::test]
    async fn old_connection_takes_nothing_from_new_one() {
        let outbox = Outbox::default();
        let old = outbox.open();
        let mut none = Vec::new();
        let mut left_over = Box::pin(outbox.take(old, &mut none));
        assert!(futures::poll!(&mut left_over).is_pending());
        let connection = outbox.open();
        let mut taken = Vec::new();
        let mut taking = Box::pin(outbox.take(connection, &mut taken));
        assert!(futures::poll!(&mut taking).is_pending());
        // The old one was polled first, so it is woken first.
        outbox.put(vec![1], Instant::now());
        assert!(futures::poll!(&mut left_over).is_pending());
        taking.await;
        assert_eq!(taken, [[1]]);
        drop(left_over);
        assert!(none.is_empty());
    }
}
