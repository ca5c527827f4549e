//! Raft messages that wait for their connection.

use std::{
    collections::VecDeque,
    sync::Mutex,
    time::{Duration, Instant},
};

use jaco_raftnode::OutgoingSnapshot;
use tokio::sync::Notify;

use crate::supervision::lock;

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

    /// Swaps what waits with `taken`, which is empty; waits until there is something.
    pub(super) async fn take(&self, taken: &mut Vec<Vec<u8>>) {
        loop {
            {
                let mut queue = lock(&self.queue);
                if !queue.messages.is_empty() {
                    queue.bytes = 0;
                    std::mem::swap(&mut queue.messages, taken);
                    return;
                }
            }
            self.messages.notified().await;
        }
    }

    /// The next snapshot; waits until there is one.
    pub(super) async fn take_snapshot(&self) -> OutgoingSnapshot {
        loop {
            if let Some(snapshot) = lock(&self.queue).snapshots.pop_front() {
                return snapshot;
            }
            self.snapshots.notified().await;
        }
    }

    /// There is a connection, or none any more: what waited for the last one is gone.
    pub(super) fn set_open(&self, open: bool) {
        let mut queue = lock(&self.queue);
        queue.open = open;
        queue.messages.clear();
        queue.bytes = 0;
        queue.reported = None;
        let snapshots = std::mem::take(&mut queue.snapshots);
        drop(queue);
        drop(snapshots); // each tells raft
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_come_out_in_order_and_together() {
        let outbox = Outbox::default();
        outbox.set_open(true);
        let now = Instant::now();
        for byte in 0..3 {
            assert_eq!(outbox.put(vec![byte], now), Put::Queued);
        }
        let mut taken = Vec::new();
        outbox.take(&mut taken).await;
        assert_eq!(taken, [[0], [1], [2]]);
    }

    #[test]
    fn without_a_connection_or_room_raft_is_told_once_in_a_while() {
        let outbox = Outbox::default();
        let now = Instant::now();
        assert_eq!(outbox.put(vec![1], now), Put::Unreachable);
        assert_eq!(outbox.put(vec![1], now), Put::Dropped);
        assert_eq!(outbox.put(vec![1], now + REPORTS), Put::Unreachable);
        outbox.set_open(true);
        assert_eq!(outbox.put(vec![0; LIMIT], now), Put::Queued);
        assert_eq!(outbox.put(vec![1], now), Put::Unreachable);
    }

    #[tokio::test]
    async fn what_waited_for_an_old_connection_is_not_sent_on_a_new_one() {
        let outbox = Outbox::default();
        outbox.set_open(true);
        let now = Instant::now();
        outbox.put(vec![1], now);
        outbox.set_open(true);
        outbox.put(vec![2], now);
        let mut taken = Vec::new();
        outbox.take(&mut taken).await;
        assert_eq!(taken, [[2]]);
    }
}
