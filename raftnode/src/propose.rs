//! Interfaces to the replicated state: readers, and two kinds of proposers.
//!
//! A [`LeaderProposer`] is not a [`ForwardingProposer`], so that a decision of the leader is never
//! forwarded to its successor.

use std::{any::Any, future::Future, pin::Pin, sync::Arc};

use jaco_proto::{Error, v1};
use jaco_state::State;
use tokio::sync::watch;

/// A command that was committed and applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Log index of the command.
    pub index: u64,
}

/// Reason why a proposal was not, or may not have been, committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// The state machine rejected the command; no node's state changed.
    #[error("rejected: {0}")]
    Rejected(Error),
    /// The command was never appended; a retry is safe.
    #[error("no leader")]
    NoLeader,
    /// Too many bytes are in flight; a later retry is safe.
    #[error("too many proposals in flight")]
    Busy,
    /// Raft does not run, or did not take the command in time and never will; a later retry is
    /// safe.
    #[error("raft is not available")]
    Unavailable,
    /// The command was or may have been appended, and may or may not be committed.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

/// Future of a proposal.
pub type ProposeFuture = Pin<Box<dyn Future<Output = Result<Committed, ProposeError>> + Send>>;

/// Value that a proposal keeps until its outcome is certain, such as the guard of a lock.
pub type ProposalGuard = Box<dyn Any + Send>;

/// Gives access to the replicated state of this node.
pub trait StateReader: Send + Sync + 'static {
    /// Returns the newest applied state.
    fn state(&self) -> Arc<State>;

    /// Subscribes to the newest applied state; intermediate states may be skipped.
    fn subscribe(&self) -> watch::Receiver<Arc<State>>;

    /// Subscribes to the part of the state that a node acts on. Like [`StateReader::subscribe`], but
    /// changes of only records (the audit trail, tokens, pull credentials and the applied index)
    /// may not wake the receiver: its records may be older than its other tables.
    fn follow(&self) -> watch::Receiver<Arc<State>> {
        self.subscribe()
    }
}

/// Proposes changes of the replicated state while this node leads, for decisions that only the
/// leader makes: a deposed leader writes nothing.
pub trait LeaderProposer: StateReader {
    /// Returns the term in which this node leads, if it leads and its state includes every write
    /// of earlier terms. A state that is read afterwards is a valid base of a command for
    /// [`LeaderProposer::propose_in_term`].
    fn leading_term(&self) -> Option<u64>;

    /// Proposes one command to the local raft, which appends it only if this node leads and fails
    /// with [`ProposeError::NoLeader`] otherwise. `ts` and `identity` must be set by the caller.
    ///
    /// Dropping the future withdraws the command if raft has not taken it yet; otherwise it may
    /// still be committed.
    fn propose(&self, command: v1::Command) -> ProposeFuture;

    /// Proposes like [`LeaderProposer::propose`], but only while this node leads in `term`.
    ///
    /// `guard` is dropped once the command is applied, rejected or certain never to be appended,
    /// or once this node no longer leads in `term`: [`LeaderProposer::leading_term`] then returns a
    /// later term only with a state that shows what became of the command. It is kept when the
    /// caller drops the future or gets [`ProposeError::Unknown`] for lack of time.
    fn propose_in_term(
        &self,
        term: u64,
        command: v1::Command,
        guard: ProposalGuard,
    ) -> ProposeFuture;
}

/// Proposes changes of the replicated state on the leader, whichever node that is, for facts that
/// every node reports.
pub trait ForwardingProposer: StateReader {
    /// Submits one command to the leader, over the network if another node leads. `ts` and
    /// `identity` must be set by the caller.
    fn submit(&self, command: v1::Command) -> ProposeFuture;
}
