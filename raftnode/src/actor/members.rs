//! Membership changes and leadership transfer.

use std::time::Duration;

use tokio::{
    sync::{oneshot, watch},
    time::{Instant, timeout, timeout_at},
};

use super::{RaftHandle, msg::Msg};
use crate::core::{ChangeRefused, MemberChange, RaftStatus, Role};

/// Longest time until a membership change is applied.
const CHANGE_BUDGET: Duration = Duration::from_secs(2);

/// Reason why a membership change is not known to be in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The change was not appended; a retry is safe.
    #[error(transparent)]
    Refused(#[from] ChangeRefused),
    /// Raft does not run; nothing was appended.
    #[error("raft is not available")]
    Unavailable,
    /// The change was or may have been appended, and may still take effect.
    #[error("the change of members did not take effect in time")]
    Unknown,
}

impl RaftHandle {
    /// Changes one member of the configuration and waits at most 2 s until that is in effect on
    /// this node. A change that is in effect already succeeds at once. Only the leader can do it,
    /// one change at a time.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub async fn change_members(&self, change: MemberChange) -> Result<(), ChangeError> {
        let deadline = Instant::now() + CHANGE_BUDGET;
        let mut status = self.subscribe_status();
        let (reply, answer) = oneshot::channel();
        self.cast(Msg::ChangeMembers(change, reply))
            .map_err(|()| ChangeError::Unavailable)?;
        let unknown = |_| ChangeError::Unknown;
        let appended = timeout_at(deadline, answer).await.map_err(unknown)?;
        appended.map_err(|_| ChangeError::Unknown)??;
        let done = |status: &RaftStatus| {
            change.is_done(&status.voters, &status.learners) && !status.changing_members
        };
        let seen = timeout_at(deadline, status.wait_for(done)).await;
        // The sender is not dropped before this handle.
        seen.map(drop).map_err(unknown)
    }

    /// Requests that voter `to` takes over leadership; does not wait for the outcome.
    pub fn transfer_leadership(&self, to: u64) {
        // Without an actor this node does not lead.
        let _ = self.cast(Msg::Transfer(to));
    }

    /// Transfers leadership to the voter with the longest log, as before a stop, and waits at most
    /// `budget` until this node is a follower. Returns whether this node no longer leads, or did
    /// not lead before.
    ///
    /// From the request on, [`RaftStatus::leading`] is false and no proposal is appended, so
    /// leader-only work has stopped before another node leads. If the transfer does not complete
    /// within an election timeout, this node stays the leader and tries the best voter again. A
    /// single voter has no transfer target.
    pub async fn step_down(&self, budget: Duration) -> bool {
        let attempt = async {
            let mut status = self.subscribe_status();
            loop {
                let now = status.borrow_and_update().clone();
                if now.role != Role::Leader {
                    return true;
                }
                if now.voters == [now.raft_id] || now.is_stalled() {
                    return false;
                }
                match now.transfer_target().filter(|_| now.leading) {
                    Some(to) => {
                        self.transfer_leadership(to);
                        follow(&mut status).await;
                    }
                    // No voter can take over now; a heartbeat response may change that.
                    None => {
                        let _ = status.changed().await;
                    }
                }
            }
        };
        timeout(budget, attempt).await.unwrap_or(false)
    }
}

/// Waits until the requested transfer has begun, and then until it has ended.
async fn follow(status: &mut watch::Receiver<RaftStatus>) {
    // The receiver may miss that the transfer began, so the wait is short.
    let begun = status.wait_for(|s| !s.leading);
    let _ = timeout(Duration::from_millis(500), begun).await;
    let _ = status
        .wait_for(|s| s.leading || s.role != Role::Leader)
        .await;
}
