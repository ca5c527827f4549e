//! The mailbox.

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use super::{
    handle::{Claim, ReadError},
    incoming::Received,
    inlet::Delivery,
};
use crate::{
    Committed, ProposeError, State,
    core::{ChangeRefused, MemberChange},
};

/// Where the result of a proposal goes, and what it holds of the in-flight budget until then.
pub(crate) struct Waiting {
    reply: oneshot::Sender<Result<Committed, ProposeError>>,
    claim: Claim,
    since: Instant,
}

impl Waiting {
    pub(super) fn new(
        reply: oneshot::Sender<Result<Committed, ProposeError>>,
        claim: Claim,
    ) -> Self {
        let since = Instant::now();
        Self {
            reply,
            claim,
            since,
        }
    }

    /// How long the proposer has waited.
    pub(super) fn age(&self) -> Duration {
        self.since.elapsed()
    }

    pub(super) fn answer(self, result: Result<Committed, ProposeError>) {
        // Released first: who has the answer may use the room.
        drop(self.claim);
        // The proposer may be gone; the proposal holds all the same.
        let _ = self.reply.send(result);
    }
}

/// An encoded command to append, and where its result goes.
pub(crate) type Proposal = (Vec<u8>, Waiting);

pub(super) type ReadReply = oneshot::Sender<Result<u64, ReadError>>;

/// What is asked of the actor, or happened around it.
pub(crate) enum Msg {
    /// There are proposals to take.
    Propose,
    /// Everything that arrived before this is to be written now.
    Flush,
    /// Proposals may have been held for long enough.
    Held,
    /// A linearizable read.
    Read(ReadReply),
    /// A message of a peer.
    Deliver(Box<Delivery>),
    /// A snapshot of a peer, received whole.
    Install(Box<Received>),
    /// A snapshot of a peer holds what this version does not know: why.
    Halt(String),
    /// A message to this peer did not arrive.
    Unreachable(u64),
    /// The snapshot for this peer was delivered, or was not.
    SnapshotSent(u64, bool),
    /// A change of voters or learners; answered with whether it was appended.
    ChangeMembers(MemberChange, oneshot::Sender<Result<(), ChangeRefused>>),
    /// The state right after this entry; the newest one if it is applied already.
    Capture(u64, oneshot::Sender<Arc<State>>),
    /// Hand leadership to this peer.
    Transfer(u64),
    /// One tick of raft's clock.
    Tick,
}
