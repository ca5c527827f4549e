//! Limits on the memory that one member can occupy on this node, over all of its connections.

use std::time::Duration;

use jaco_net::quic::ReceiveBudget;
use jaco_proto::{Error, ErrorCode};
use jaco_raftnode::{PeerReceiver, RaftHandle};
use tokio::sync::{Mutex, MutexGuard, watch};
use tonic::Status;

/// Bytes of a member's calls, responses and snapshots that are held until they are served: two of
/// the largest requests. Raft messages have a budget of their own, in [`PeerReceiver`], so that
/// calls, which may wait for a commit, never hold up raft.
const CALL_BYTES: usize = 34 << 20;
/// Least charge for a frame of a call: until its body is read, a frame is an allocation of its own,
/// with a header and a place in a queue.
pub(super) const LEAST_FRAME: usize = 256;
/// Longest wait of a request for the budget, over all of its frames; shorter than the time in which a
/// request must arrive.
pub(super) const BUDGET_WAIT: Duration = Duration::from_secs(5);

/// Memory and streams of one member.
#[derive(Debug)]
pub(super) struct ReceiveLimits {
    calls: ReceiveBudget,
    raft: Mutex<Option<PeerReceiver>>,
    pub(super) raft_stream: SingleStream,
    pub(super) heartbeat_stream: SingleStream,
}

impl Default for ReceiveLimits {
    fn default() -> Self {
        Self {
            calls: ReceiveBudget::new(CALL_BYTES).with_least_share(LEAST_FRAME),
            raft: Mutex::default(),
            raft_stream: SingleStream::default(),
            heartbeat_stream: SingleStream::default(),
        }
    }
}

impl ReceiveLimits {
    /// Budget of calls, responses and snapshots.
    pub(super) fn calls(&self) -> &ReceiveBudget {
        &self.calls
    }

    /// Waits for the member's queue to raft, which its streams use one after the other.
    pub(super) async fn raft_queue(&self, raft: &RaftHandle, from: u64) -> RaftQueue<'_> {
        let mut queue = self.raft.lock().await;
        queue.get_or_insert_with(|| raft.peer_receiver(from));
        RaftQueue(queue)
    }
}

/// Exclusive use of a member's queue to raft.
pub(super) struct RaftQueue<'a>(MutexGuard<'a, Option<PeerReceiver>>);

impl RaftQueue<'_> {
    /// Passes a message to raft; see [`PeerReceiver::deliver`].
    pub(super) async fn deliver(&mut self, message: &[u8]) {
        if let Some(queue) = self.0.as_mut() {
            queue.deliver(message).await;
        }
    }
}

/// Allows one stream of a kind: a newer one replaces the one in use.
#[derive(Debug, Default)]
pub(super) struct SingleStream(watch::Sender<u64>);

impl SingleStream {
    /// Serves a stream until its end; `None` if the next call replaced it before.
    pub(super) async fn serve<T>(&self, stream: impl Future<Output = T>) -> Option<T> {
        let mut own = 0;
        let mut newest = self.0.subscribe();
        self.0.send_modify(|newest| {
            *newest = newest.wrapping_add(1);
            own = *newest;
        });
        tokio::select! {
            biased;
            // The sender lives as long as `self`.
            _ = newest.wait_for(|newest| *newest != own) => None,
            served = stream => Some(served),
        }
    }
}

/// Answer to a request for which the budget was exhausted; nothing was done for it.
pub(super) fn busy() -> Status {
    Error::new(
        ErrorCode::StateUnavailable,
        "this node holds too many bytes of the member that passed the request on",
    )
    .into()
}

#[cfg(test)]
mod tests {
    use std::{future::pending, pin::pin};

    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn newer_stream_replaces_the_one_in_use() {
        let streams = SingleStream::default();
        let mut first = pin!(streams.serve(pending::<()>()));
        assert!(poll!(&mut first).is_pending());
        let mut second = pin!(streams.serve(pending::<()>()));
        assert!(poll!(&mut second).is_pending());
        assert_eq!(first.await, None);
        assert!(poll!(&mut second).is_pending());
        assert_eq!(streams.serve(async { 3 }).await, Some(3));
        assert_eq!(second.await, None);
    }
}
