//! Messages of a peer, on their way to raft.

use std::{
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use protobuf::Message as _;
use raft::eraftpb::{Message, MessageType};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{RaftHandle, msg::Msg};

/// Bytes of one connection that may wait for raft: more than a member that keeps to raft's windows
/// ever has on its way.
const ROOM: u32 = 64 << 20;
/// What a message takes of it at least: an empty one takes memory too.
const LEAST: usize = 256;
/// Least time between two lines of the log about the same.
const TOLD: Duration = Duration::from_secs(1);

/// Why a message of a peer is none for raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Its bytes are no message.
    #[error("peer message does not decode")]
    Undecodable,
    /// It says that somebody else sent it.
    #[error("peer message of another sender")]
    Sender {
        /// Who it says it is from.
        claimed: u64,
    },
    /// Snapshots come by [`RaftHandle::receive_snapshot`].
    #[error("snapshot among the messages of a peer")]
    Snapshot,
}

/// A message, and its part of the room until raft has taken it.
pub(crate) struct Delivery {
    pub(super) message: Message,
    _room: Option<OwnedSemaphorePermit>,
}

/// What one connection has for raft; see [`RaftHandle::inlet`].
#[derive(Debug)]
pub struct Inlet {
    handle: RaftHandle,
    from: u64,
    room: Arc<Semaphore>,
    told: Option<(Unfit, Instant)>,
    unfit: u64,
}

impl RaftHandle {
    /// The way of messages from the peer with raft id `from`, which its connection proved.
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

    /// Hands an encoded message of the peer with raft id `from` to raft, whatever waits there
    /// already; dropped while raft does not run.
    ///
    /// # Errors
    /// [`Unfit`]; the message is dropped then.
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
        // Raft does without it while it does not run.
        let _ = self.cast(Msg::Deliver(Box::new(delivery)));
        Ok(())
    }
}

impl Inlet {
    /// Hands an encoded message to raft; waits while too much of this peer waits there, so that
    /// the connection's flow control holds back one that sends more than raft asks for.
    ///
    /// A message that is none for raft is dropped, and the log says so at most once a second.
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
