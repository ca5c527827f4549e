//! Messages of the raft actor.

use std::{sync::Arc, time::Duration};

use jaco_state::State;
use tokio::{sync::oneshot, time::Instant};

use super::{
    handle::{BudgetShare, ReadError},
    incoming::Received,
    peer_receiver::Delivery,
};
use crate::{
    Committed, ProposeError,
    core::{ChangeRefused, MemberChange, SnapshotId},
};

/// Reply channel of a proposal, with its share of the in-flight budget.
pub(crate) struct PendingProposal {
    reply: oneshot::Sender<Result<Committed, ProposeError>>,
    share: BudgetShare,
    since: Instant,
}

impl PendingProposal {
    pub(super) fn new(
        reply: oneshot::Sender<Result<Committed, ProposeError>>,
        share: BudgetShare,
    ) -> Self {
        let since = Instant::now();
        Self {
            reply,
            share,
            since,
        }
    }

    /// Time since the proposal was made.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    pub(super) fn answer(self, result: Result<Committed, ProposeError>) {
        // Released first, so that the proposer can reuse the budget once it has the answer.
        drop(self.share);
        // The proposer may have gone; the proposal is committed all the same.
        let _ = self.reply.send(result);
    }
}

/// An encoded command to append, and its reply channel.
pub(crate) type Proposal = (Vec<u8>, PendingProposal);

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
    /// One tick of raft's clock.
    Tick,
}
