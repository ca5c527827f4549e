//! Raft messages that wait for their connection.

use std::{
    collections::VecDeque,
    future::pending,
    sync::Mutex,
    time::{Duration, Instant},
};

use jaco_raftnode::OutgoingSnapshot;
use tokio::sync::Notify;

use crate::lock::lock;

/// Bytes that may wait. Raft sends again what is dropped, so more would only be older.
const LIMIT: usize = 16 << 20;
/// Least time between two reports that the member cannot be reached.
const REPORTS: Duration = Duration::from_millis(50);

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It waits for the connection, in order.
    Queued,
    /// It is gone, as raft knows already.
    Dropped,
    /// It is gone, and raft should be told.
    Unreachable,
}

/// What raft has for one member. Raft's thread puts in, the connection takes out.
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
    /// How many there were, with this one.
    connections: u64,
    messages: Vec<Vec<u8>>,
    bytes: usize,
    snapshots: VecDeque<OutgoingSnapshot>,
    reported: Option<Instant>,
}

impl Outbox {
    /// A message of raft. Never waits for more than another message.
    pub(super) fn put(&self, message: Vec<u8>, now: Instant) -> Put {
        let mut queue = lock(&self.queue);
        if !queue.open || queue.bytes + message.len() > LIMIT {
            let known = queue
                .reported
                .is_some_and(|at| now.saturating_duration_since(at) < REPORTS);
            if known {
                return Put::Dropped;
            }
            queue.reported = Some(now);
            return Put::Unreachable;
        }
        queue.bytes += message.len();
        queue.messages.push(message);
        let first = queue.messages.len() == 1;
        drop(queue);
        if first {
            self.messages.notify_one();
        }
        Put::Queued
    }

    /// A snapshot of raft; dropped, which tells raft, while there is no connection.
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

    /// Swaps what waits with `taken`, which is empty; waits until there is something for
    /// `connection`. Cancel-safe.
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

    /// The next snapshot; waits until there is one for `connection`. Cancel-safe.
    pub(super) async fn take_snapshot(&self, connection: u64) -> OutgoingSnapshot {
        let take = |queue: &mut Queue| queue.snapshots.pop_front();
        self.next(connection, &self.snapshots, take).await
    }

    async fn next<T>(
        &self,
        connection: u64,
        news: &Notify,
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
            news.notified().await;
        }
        // What woke this, which is about to be aborted, is for its successor.
        news.notify_one();
        pending().await
    }

    /// There is a connection, which is told its number; what waited for the last one is gone.
    pub(super) fn open(&self) -> u64 {
        let mut queue = lock(&self.queue);
        let number = queue.connections + 1;
        let left = std::mem::take(&mut *queue);
        queue.connections = number;
        queue.open = true;
        drop(queue);
        drop(left); // each snapshot tells raft
        number
    }

    /// There is no connection any more.
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
    async fn messages_come_out_in_order_and_together() {
        let outbox = Outbox::default();
        let connection = outbox.open();
        let now = Instant::now();
        for byte in 0..3 {
            assert_eq!(outbox.put(vec![byte], now), Put::Queued);
        }
        let mut taken = Vec::new();
        outbox.take(connection, &mut taken).await;
        assert_eq!(taken, [[0], [1], [2]]);
    }

    #[test]
    fn without_a_connection_or_room_raft_is_told_once_in_a_while() {
        let outbox = Outbox::default();
        let now = Instant::now();
        assert_eq!(outbox.put(vec![1], now), Put::Unreachable);
        assert_eq!(outbox.put(vec![1], now), Put::Dropped);
        assert_eq!(outbox.put(vec![1], now + REPORTS), Put::Unreachable);
        outbox.open();
        assert_eq!(outbox.put(vec![0; LIMIT], now), Put::Queued);
        assert_eq!(outbox.put(vec![1], now), Put::Unreachable);
    }

    #[tokio::test]
    async fn what_waited_for_an_old_connection_is_not_sent_on_a_new_one() {
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
    async fn an_old_connection_takes_nothing_from_a_new_one() {
        let outbox = Outbox::default();
        let old = outbox.open();
        let mut none = Vec::new();
        let mut left_over = Box::pin(outbox.take(old, &mut none));
        assert!(futures::poll!(&mut left_over).is_pending());
        let connection = outbox.open();
        let mut taken = Vec::new();
        let mut taking = Box::pin(outbox.take(connection, &mut taken));
        assert!(futures::poll!(&mut taking).is_pending());
        // The old one has waited for longer, so it is woken first.
        outbox.put(vec![1], Instant::now());
        assert!(futures::poll!(&mut left_over).is_pending());
        taking.await;
        assert_eq!(taken, [[1]]);
        drop(left_over);
        assert!(none.is_empty());
    }
}
