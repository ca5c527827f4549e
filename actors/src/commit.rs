//! Proposals whose effect the proposer goes on from.

use jaco_proto::v1;
use jaco_raftnode::{Committed, Propose, ProposeError};

/// Proposes `command` and waits until the local state shows it, so that whoever decides next
/// decides upon it.
///
/// # Errors
/// The proposal's; [`ProposeError::Unavailable`] also if the state is gone before it shows the
/// command.
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
