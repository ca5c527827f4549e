//! Passes messages of a peer to raft.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use protobuf::Message as _;
use raft::eraftpb::{Message, MessageType};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{RaftHandle, msg::Msg};

/// Bytes of one connection that may wait for raft: more than a member within raft's inflight limits
/// ever has in flight.
const PENDING_BYTES: u32 = 64 << 20;
/// Smallest size a message is counted with: an empty message takes memory too.
const MIN_MESSAGE_BYTES: usize = 256;
/// Minimum interval between two log lines about the same error.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Reason why a message of a peer is not passed to raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMessage {
    /// Its bytes do not decode as a message.
    #[error("peer message does not decode")]
    Undecodable,
    /// Its sender is not the node authenticated by the connection.
    #[error("peer message of another sender")]
    Sender {
        /// Sender that the message names.
        claimed: u64,
    },
    /// Snapshots are received through [`RaftHandle::receive_snapshot`].
    #[error("snapshot among the messages of a peer")]
    Snapshot,
}

/// A message, and its share of the connection's budget until raft has taken it.
pub(crate) struct Delivery {
    pub(super) message: Message,
    _budget: Option<OwnedSemaphorePermit>,
}

/// Message queue from one connection to raft; see [`RaftHandle::peer_receiver`].
#[derive(Debug)]
pub struct PeerReceiver {
    handle: RaftHandle,
    from: u64,
    budget: Arc<Semaphore>,
    last_logged: Option<(InvalidMessage, Instant)>,
    invalid: u64,
}

impl RaftHandle {
    /// Creates the queue for messages of the peer with raft id `from`, as authenticated by its
    /// connection.
    #[must_use]
    pub fn peer_receiver(&self, from: u64) -> PeerReceiver {
        PeerReceiver {
            handle: self.clone(),
            from,
            budget: Arc::new(Semaphore::new(PENDING_BYTES as usize)),
            last_logged: None,
            invalid: 0,
        }
    }

    /// Passes an encoded message of the peer with raft id `from` to raft, without a limit on
    /// waiting messages. Dropped while raft does not run.
    ///
    /// # Errors
    /// [`InvalidMessage`]; the message is dropped.
    pub fn deliver(&self, from: u64, message: &[u8]) -> Result<(), InvalidMessage> {
        self.hand_over(from, message, None)
    }

    fn hand_over(
        &self,
        from: u64,
        bytes: &[u8],
        budget: Option<OwnedSemaphorePermit>,
    ) -> Result<(), InvalidMessage> {
        let mut message = Message::default();
        message
            .merge_from_bytes(bytes)
            .map_err(|_| InvalidMessage::Undecodable)?;
        if message.from != from {
            let claimed = message.from;
            return Err(InvalidMessage::Sender { claimed });
        }
        if message.msg_type == MessageType::MsgSnapshot as i32 {
            return Err(InvalidMessage::Snapshot);
        }
        let delivery = Delivery {
            message,
            _budget: budget,
        };
        // Dropped while raft does not run: raft sends it again.
        let _ = self.cast(Msg::Deliver(Box::new(delivery)));
        Ok(())
    }
}

impl PeerReceiver {
    /// Passes an encoded message to raft. Waits while too many bytes of this peer are pending, so
    /// that the connection's flow control throttles a peer that exceeds raft's limits.
    ///
    /// Drops an invalid message and logs it at most once a second.
    pub async fn deliver(&mut self, message: &[u8]) {
        let size = u32::try_from(message.len().max(MIN_MESSAGE_BYTES)).unwrap_or(PENDING_BYTES);
        let budget = Arc::clone(&self.budget).acquire_many_owned(size.min(PENDING_BYTES));
        // The semaphore is never closed.
        let budget = budget.await.ok();
        if let Err(invalid) = self.handle.hand_over(self.from, message, budget) {
            self.log_invalid(invalid);
        }
    }

    fn log_invalid(&mut self, invalid: InvalidMessage) {
        self.invalid += 1;
        let known = |(last_logged, at): (InvalidMessage, Instant)| {
            mem::discriminant(&last_logged) == mem::discriminant(&invalid)
                && at.elapsed() < LOG_INTERVAL
        };
        if self.last_logged.is_some_and(known) {
            return;
        }
        self.last_logged = Some((invalid, Instant::now()));
        let (from, dropped) = (self.from, self.invalid);
        match invalid {
            InvalidMessage::Sender { claimed } => {
                tracing::warn!(subsystem = "raft", from, claimed, dropped, "{invalid}");
            }
            InvalidMessage::Undecodable | InvalidMessage::Snapshot => {
                tracing::warn!(subsystem = "raft", from, dropped, "{invalid}");
            }
        }
    }
}
