//! The mailbox.

use raft::eraftpb::ConfChangeV2;
use tokio::sync::oneshot;

use super::handle::ReadError;
use crate::{Committed, ProposeError};

pub(super) type ProposeReply = oneshot::Sender<Result<Committed, ProposeError>>;
pub(super) type ReadReply = oneshot::Sender<Result<u64, ReadError>>;

/// What is asked of the actor, or happened around it.
pub(crate) enum Msg {
    /// An encoded command to append, and where its result goes.
    Propose(Vec<u8>, ProposeReply),
    /// Everything that arrived before this is to be written now.
    Flush,
    /// A linearizable read.
    Read(ReadReply),
    /// An encoded message of a peer.
    Deliver(Vec<u8>),
    /// A message to this peer did not arrive.
    Unreachable(u64),
    /// The snapshot for this peer was delivered, or was not.
    SnapshotSent(u64, bool),
    /// A change of voters or learners; answered with whether it was appended.
    ConfChange(ConfChangeV2, oneshot::Sender<bool>),
    /// Hand leadership to this peer.
    Transfer(u64),
    /// One tick of raft's clock.
    Tick,
}
