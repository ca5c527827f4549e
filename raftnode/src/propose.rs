//! How a change of the state is asked for.

use std::{future::Future, pin::Pin, sync::Arc};

use jaco_proto::{Error, v1};
use tokio::sync::watch;

use crate::State;

/// A command that was committed and applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its log index.
    pub index: u64,
}

/// Why a proposal did not become part of the state, or may not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// The state machine refused it; nothing changed on any node.
    #[error("rejected: {0}")]
    Rejected(Error),
    /// It was never appended; asking again is safe.
    #[error("no leader")]
    NoLeader,
    /// Too much is in flight; asking again later is safe.
    #[error("too many proposals in flight")]
    Busy,
    /// Raft is not running; nothing was appended.
    #[error("raft is not available")]
    Unavailable,
    /// It was appended, and may or may not be committed.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

/// Future of a proposal.
pub type ProposeFuture = Pin<Box<dyn Future<Output = Result<Committed, ProposeError>> + Send>>;

/// Something that can change the replicated state, and shows it.
pub trait Propose: Send + Sync + 'static {
    /// Proposes one command; `ts` and `identity` must be set by the caller.
    fn propose(&self, command: v1::Command) -> ProposeFuture;

    /// The newest applied state.
    fn state(&self) -> Arc<State>;

    /// Follows the newest applied state; intermediate states may be skipped.
    fn subscribe(&self) -> watch::Receiver<Arc<State>>;

    /// Follows what a node acts on. Like [`Propose::subscribe`], but a change of nothing but
    /// records (the audit trail, tokens, pull credentials and the applied index) need not be
    /// told: those of a state that is seen here may be older than its other tables.
    fn follow(&self) -> watch::Receiver<Arc<State>> {
        self.subscribe()
    }
}
