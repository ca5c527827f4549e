//! Proposals: completed once the local state includes them, answered to clients, or made under a
//! lock.

mod lock;

use jaco_policy::COMMIT_BUDGET;
use jaco_proto::{Error, ErrorCode, v1};
use jaco_raftnode::{
    Committed, ForwardingProposer, LeaderProposer, ProposeError, StateReader,
    propose::ProposeFuture,
};

pub(crate) use lock::{CommitGuard, CommitLock};

/// Proposes `command` on this node, which has to lead, and waits until the local state includes it,
/// so that the next decision is based on it.
///
/// # Errors
/// The error of the proposal; [`ProposeError::Unavailable`] also if the state ends before it
/// includes the command.
pub(crate) async fn commit(
    raft: &dyn LeaderProposer,
    command: v1::Command,
) -> Result<Committed, ProposeError> {
    included(raft, raft.propose(command)).await
}

/// Submits `command` to the leader, and waits like [`commit`].
///
/// # Errors
/// As those of [`commit`].
pub(crate) async fn submit(
    raft: &dyn ForwardingProposer,
    command: v1::Command,
) -> Result<Committed, ProposeError> {
    included(raft, raft.submit(command)).await
}

/// Waits for the end of `proposal`, and then until the state of `reader` includes it.
///
/// # Errors
/// As those of [`commit`].
pub(crate) async fn included(
    reader: &dyn StateReader,
    proposal: ProposeFuture,
) -> Result<Committed, ProposeError> {
    let committed = proposal.await?;
    let mut states = reader.subscribe();
    let shown = states
        .wait_for(|state| state.applied_index >= committed.index)
        .await;
    shown
        .map(|_| committed)
        .map_err(|_| ProposeError::Unavailable)
}

/// Proposes a command of a client on this node, which has to lead.
///
/// # Errors
/// As those of [`outcome`].
pub(crate) async fn propose(
    raft: &dyn LeaderProposer,
    command: v1::Command,
) -> Result<Committed, Error> {
    outcome(raft.propose(command)).await
}

/// Limits the time of a proposal and maps its failure to the client's error.
///
/// # Errors
/// The rejection's own code; `no_leader` or `raft_unavailable` if nothing was written;
/// `raft_apply_failed` with `outcome=unknown` if it may have been.
pub(crate) async fn outcome(
    proposal: impl Future<Output = Result<Committed, ProposeError>>,
) -> Result<Committed, Error> {
    match tokio::time::timeout(COMMIT_BUDGET, proposal).await {
        Ok(Ok(committed)) => Ok(committed),
        Ok(Err(ProposeError::Rejected(error))) => Err(error),
        Ok(Err(ProposeError::NoLeader)) => {
            Err(Error::new(ErrorCode::NoLeader, "this node does not lead"))
        }
        Ok(Err(error @ (ProposeError::Busy | ProposeError::Unavailable))) => {
            Err(Error::new(ErrorCode::RaftUnavailable, error.to_string()))
        }
        Ok(Err(ProposeError::Unknown(reason))) => Err(unknown_outcome(reason)),
        Err(_) => Err(unknown_outcome("no answer within 5 s".to_owned())),
    }
}

/// Error for a change that may or may not take effect.
pub(crate) fn unknown_outcome(reason: String) -> Error {
    Error::new(
        ErrorCode::RaftApplyFailed,
        "the commit's outcome is unknown",
    )
    .with("outcome", "unknown")
    .because(reason)
}
