//! Receives a snapshot outside raft's thread.

use std::time::Instant;

use jaco_proto::chain;
use jaco_state::State;
use protobuf::Message as _;
use raft::eraftpb::{Message, MessageType};

use super::{RaftHandle, handle::HandleInner, msg::Msg};
use crate::{
    core::{Role, SnapshotId},
    snapshot::{SlotGuard, SnapshotRefused, Spool},
    storage::SnapshotRows,
};

/// A snapshot that is being received from a peer. Dropped before [`IncomingSnapshot::finish`], its
/// file is removed.
#[derive(Debug)]
pub struct IncomingSnapshot {
    handle: RaftHandle,
    message: Message,
    spool: Spool,
    slot: SlotGuard,
}

/// A complete and verified snapshot, ready to be installed by raft's thread.
pub(crate) struct Received {
    pub(super) message: Message,
    pub(super) state: State,
    pub(super) rows: SnapshotRows,
    pub(super) _slot: SlotGuard,
}

impl RaftHandle {
    /// Starts to receive a snapshot: `message` is the sender's [`OutgoingSnapshot::message`], and
    /// `from` is the raft id authenticated by the connection. Returns `None` if this node has
    /// already committed all of it; the caller must then acknowledge the snapshot, or the sender
    /// offers it again indefinitely.
    ///
    /// This and the methods of [`IncomingSnapshot`] may block on the disk.
    ///
    /// [`OutgoingSnapshot::message`]: crate::OutgoingSnapshot::message
    ///
    /// # Errors
    /// [`SnapshotRefused`] if the message is invalid, or another snapshot is being received.
    pub fn receive_snapshot(
        &self,
        from: u64,
        message: Vec<u8>,
    ) -> Result<Option<IncomingSnapshot>, SnapshotRefused> {
        let received = self.receive(from, &message);
        received.inspect_err(|refused| self.shared.reject_snapshot(from, refused))
    }

    fn receive(
        &self,
        from: u64,
        bytes: &[u8],
    ) -> Result<Option<IncomingSnapshot>, SnapshotRefused> {
        let mut message = Message::default();
        message
            .merge_from_bytes(bytes)
            .map_err(|_| SnapshotRefused::Undecodable)?;
        if message.from != from {
            let claimed = message.from;
            return Err(SnapshotRefused::Sender { from, claimed });
        }
        let snapshot = message.get_snapshot();
        let empty = snapshot.data.is_empty() && message.entries.is_empty();
        if message.msg_type != MessageType::MsgSnapshot as i32 || !empty {
            return Err(SnapshotRefused::NotASnapshot);
        }
        let status = self.status();
        if status.role == Role::Stopped {
            return Err(SnapshotRefused::Unavailable);
        }
        // The leader may have missed that this node installed an earlier snapshot.
        if snapshot.get_metadata().index <= status.commit {
            return Ok(None);
        }
        let directory = self.shared.snapshots();
        let slot = self.shared.incoming.claim(message.term, Instant::now());
        let slot = slot.ok_or(SnapshotRefused::Busy)?;
        let limit = self.shared.limits.snapshot_bytes;
        let spool = Spool::create(&directory, slot.number(), limit).map_err(SnapshotRefused::Io)?;
        Ok(Some(IncomingSnapshot {
            handle: self.clone(),
            message,
            spool,
            slot,
        }))
    }
}

impl IncomingSnapshot {
    /// Writes the next bytes, in order.
    ///
    /// # Errors
    /// [`SnapshotRefused`]; the transfer has failed then, and the remaining bytes need not be sent.
    pub fn write(&mut self, chunk: &[u8]) -> Result<(), SnapshotRefused> {
        let written = if self.slot.renew(Instant::now()) {
            self.spool.write(chunk)
        } else {
            Err(SnapshotRefused::Superseded)
        };
        let Self {
            handle, message, ..
        } = self;
        written.inspect_err(|refused| handle.shared.reject_snapshot(message.from, refused))
    }

    /// Verifies and decodes the received bytes and passes the result to raft, which installs it or
    /// ignores it if it has committed past it. Blocks for as long as decoding takes.
    ///
    /// Content that this version does not know halts the node if the sender is its leader.
    ///
    /// # Errors
    /// [`SnapshotRefused`] if the content is damaged or is not a valid state.
    pub fn finish(self) -> Result<(), SnapshotRefused> {
        let handle = self.handle.clone();
        let from = self.message.from;
        let snapshot = SnapshotId::of(&self.message);
        self.hand_over().inspect_err(|refused| {
            handle.shared.reject_snapshot(from, refused);
            // The refusal is counted before the status shows that the node halted.
            if let SnapshotRefused::Newer(_) = refused {
                let reason = format!("snapshot of index {}: {}", snapshot.index, chain(refused));
                let unknown = Msg::UnknownSnapshot {
                    from,
                    snapshot,
                    reason,
                };
                // A thread that is gone applies nothing either.
                let _ = handle.cast(unknown);
            }
        })
    }

    fn hand_over(self) -> Result<(), SnapshotRefused> {
        let Self {
            handle,
            message,
            spool,
            slot,
        } = self;
        if !slot.renew(Instant::now()) {
            return Err(SnapshotRefused::Superseded);
        }
        let index = message.get_snapshot().get_metadata().index;
        let state = spool.finish(index)?;
        // Counted as a raft thread, so that the process does not exit while this one closes the
        // database.
        let thread = handle.thread();
        let storage = handle
            .shared
            .storage()
            .ok_or(SnapshotRefused::Unavailable)?;
        let rows = storage.prepare(&state).map_err(SnapshotRefused::Storage);
        drop(storage);
        drop(thread);
        let received = Received {
            message,
            state,
            rows: rows?,
            _slot: slot,
        };
        handle
            .cast(Msg::Install(Box::new(received)))
            .map_err(|()| SnapshotRefused::Unavailable)
    }
}

impl HandleInner {
    fn reject_snapshot(&self, from: u64, refused: &SnapshotRefused) {
        let counter = self
            .rejected_snapshots
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        tracing::warn!(
            subsystem = "raft",
            from,
            error = %chain(refused),
            refused = counter + 1,
            "snapshot of a peer refused"
        );
    }
}
