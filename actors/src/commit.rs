//! Proposals that complete once the local state includes them.

use jaco_proto::v1;
use jaco_raftnode::{Committed, Propose, ProposeError};

/// Proposes `command` and waits until the local state includes it, so that the next decision is
/// based on it.
///
/// # Errors
/// The error of the proposal; [`ProposeError::Unavailable`] also if the state ends before it
/// includes the command.
pub(crate) async fn commit(
    raft: &dyn Propose,
    command: v1::Command,
) -> Result<Committed, ProposeError> {
    let committed = raft.propose(command).await?;
    let mut states = raft.subscribe();
    let shown = states
        .wait_for(|state| state.applied_index >= committed.index)
        .await;
    shown
        .map(|_| committed)
        .map_err(|_| ProposeError::Unavailable)
}
