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
const ROOM: u32 = 64 << 20;
/// Smallest size a message is counted with: an empty message takes memory too.
const LEAST: usize = 256;
/// Minimum interval between two log lines about the same error.
const TOLD: Duration = Duration::from_secs(1);

/// Reason why a message of a peer is not passed to raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
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
    _room: Option<OwnedSemaphorePermit>,
}

/// Message queue from one connection to raft; see [`RaftHandle::inlet`].
#[derive(Debug)]
pub struct Inlet {
    handle: RaftHandle,
    from: u64,
    room: Arc<Semaphore>,
    told: Option<(Unfit, Instant)>,
    unfit: u64,
}

impl RaftHandle {
    /// Creates the queue for messages of the peer with raft id `from`, as authenticated by its
    /// connection.
    #[must_use]
    pub fn inlet(&self, from: u64) -> Inlet {
        Inlet {
            handle: self.clone(),
            from,
            room: Arc::new(Semaphore::new(ROOM as usize)),
            told: None,
            unfit: 0,
        }
    }

    /// Passes an encoded message of the peer with raft id `from` to raft, without a limit on
    /// waiting messages. Dropped while raft does not run.
    ///
    /// # Errors
    /// [`Unfit`]; the message is dropped.
    pub fn deliver(&self, from: u64, message: &[u8]) -> Result<(), Unfit> {
        self.hand_over(from, message, None)
    }

    fn hand_over(
        &self,
        from: u64,
        bytes: &[u8],
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<(), Unfit> {
        let mut message = Message::default();
        message
            .merge_from_bytes(bytes)
            .map_err(|_| Unfit::Undecodable)?;
        if message.from != from {
            let claimed = message.from;
            return Err(Unfit::Sender { claimed });
        }
        if message.msg_type == MessageType::MsgSnapshot as i32 {
            return Err(Unfit::Snapshot);
        }
        let delivery = Delivery {
            message,
            _room: room,
        };
        // Dropped while raft does not run: raft sends it again.
        let _ = self.cast(Msg::Deliver(Box::new(delivery)));
        Ok(())
    }
}

impl Inlet {
    /// Passes an encoded message to raft. Waits while too many bytes of this peer are pending, so
    /// that the connection's flow control throttles a peer that exceeds raft's limits.
    ///
    /// Drops an invalid message and logs it at most once a second.
    pub async fn deliver(&mut self, message: &[u8]) {
        let size = u32::try_from(message.len().max(LEAST)).unwrap_or(ROOM);
        let room = Arc::clone(&self.room).acquire_many_owned(size.min(ROOM));
        // The semaphore is never closed.
        let room = room.await.ok();
        if let Err(unfit) = self.handle.hand_over(self.from, message, room) {
            self.tell(unfit);
        }
    }

    fn tell(&mut self, unfit: Unfit) {
        self.unfit += 1;
        let known = |(told, at): (Unfit, Instant)| {
            mem::discriminant(&told) == mem::discriminant(&unfit) && at.elapsed() < TOLD
        };
        if self.told.is_some_and(known) {
            return;
        }
        self.told = Some((unfit, Instant::now()));
        let (from, dropped) = (self.from, self.unfit);
        match unfit {
            Unfit::Sender { claimed } => {
                tracing::warn!(subsystem = "raft", from, claimed, dropped, "{unfit}");
            }
            Unfit::Undecodable | Unfit::Snapshot => {
                tracing::warn!(subsystem = "raft", from, dropped, "{unfit}");
            }
        }
    }
}
