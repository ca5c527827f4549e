//! Messages of the raft actor.

use std::sync::Arc;

use jaco_state::State;
use tokio::sync::oneshot;

use super::{handle::ReadError, incoming::Received, peer_receiver::Delivery};
use crate::core::{ChangeRefused, MemberChange, SnapshotId};

pub(super) type ReadReply = oneshot::Sender<Result<u64, ReadError>>;

/// Requests to the actor and events around it.
pub(crate) enum Msg {
    /// Proposals are queued.
    Propose,
    /// Write everything that arrived before this message.
    Flush,
    /// The time limit of held proposals may have passed.
    HoldTimeout,
    /// A linearizable read.
    Read(ReadReply),
    /// A message of a peer.
    Deliver(Box<Delivery>),
    /// A snapshot of a peer, received completely.
    Install(Box<Received>),
    /// A peer's snapshot has content that this version does not know.
    UnknownSnapshot {
        /// Raft id of the sender.
        from: u64,
        /// The snapshot.
        snapshot: SnapshotId,
        /// Description of the unknown content.
        reason: String,
    },
    /// A message to this peer did not arrive.
    Unreachable(u64),
    /// Whether this snapshot for this peer was delivered.
    SnapshotSent(u64, SnapshotId, bool),
    /// A change of voters or learners; the reply says whether it was appended.
    ChangeMembers(MemberChange, oneshot::Sender<Result<(), ChangeRefused>>),
    /// Request for the state right after this entry, or the newest one if that entry is applied
    /// already.
    StateAt(u64, oneshot::Sender<Arc<State>>),
    /// Transfer leadership to this peer.
    Transfer(u64),
    /// A tick has passed that may have an effect. Every message counts the ticks before it.
    Tick,
}
