//! The raft group, as its membership is changed.

use futures::future::BoxFuture;
use jaco_raftnode::{ProposeError, RaftStatus};
use tokio::sync::watch;

/// A change of one member; each names its raft id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It follows without a vote: it is new, or loses its vote.
    Learner(u64),
    /// It votes.
    Voter(u64),
    /// It takes no part any more.
    Remove(u64),
}

/// What the membership actor needs of raft.
pub trait Group: Send + Sync + 'static {
    /// Where this node stands, as it changes.
    fn status(&self) -> watch::Receiver<RaftStatus>;

    /// Appends a change of members; it takes effect when it is applied, which the status shows.
    fn change(&self, change: Change) -> BoxFuture<'static, Result<(), ProposeError>>;

    /// Asks voter `to` to take over leadership.
    fn transfer(&self, to: u64);
}
