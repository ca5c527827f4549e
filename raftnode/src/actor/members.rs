//! Who takes part, and who leads.

use std::time::Duration;

use tokio::{
    sync::{oneshot, watch},
    time::{Instant, timeout, timeout_at},
};

use super::{RaftHandle, msg::Msg};
use crate::core::{ChangeRefused, MemberChange, RaftStatus, Role};

/// How long a change of members may take until it is applied.
const CHANGE_BUDGET: Duration = Duration::from_secs(2);

/// Why a change of members is not known to be in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// It was not appended; asking again is safe.
    #[error(transparent)]
    Refused(#[from] ChangeRefused),
    /// Raft does not run; nothing was appended.
    #[error("raft is not available")]
    Unavailable,
    /// It was appended, or may have been, and is not in effect yet. It may still come into effect.
    #[error("the change of members did not take effect in time")]
    Unknown,
}

impl RaftHandle {
    /// Changes one member of the configuration, and waits until that is in effect here: 2 s at
    /// most. What is so already succeeds at once. Only a leader can do it, one change at a time.
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
        // The sender lives as long as this handle.
        seen.map(drop).map_err(unknown)
    }

    /// Asks voter `to` to take over leadership; a request, without an answer.
    pub fn transfer_leadership(&self, to: u64) {
        // Without an actor there is no leadership to hand over.
        let _ = self.cast(Msg::Transfer(to));
    }

    /// Hands leadership to the voter that has most of the log, as before a stop, and waits until
    /// this node follows it: `budget` at most. `true` if this node does not lead any more, or did
    /// not.
    ///
    /// From the request on, [`RaftStatus::leading`] is false and no proposal is appended, so
    /// whatever runs on the leader only has stopped before another node leads. If nobody takes
    /// over within an election timeout, this node leads on and the best voter by then is asked.
    /// The only voter has nobody to ask.
    pub async fn step_down(&self, budget: Duration) -> bool {
        let attempt = async {
            let mut status = self.subscribe_status();
            loop {
                let now = status.borrow_and_update().clone();
                if now.role != Role::Leader {
                    return true;
                }
                if now.voters == [now.raft_id] {
                    return false;
                }
                match now.successor().filter(|_| now.leading) {
                    Some(to) => {
                        self.transfer_leadership(to);
                        follow(&mut status).await;
                    }
                    // Nobody can take over now. A heartbeat may show somebody.
                    None => {
                        let _ = status.changed().await;
                    }
                }
            }
        };
        timeout(budget, attempt).await.unwrap_or(false)
    }
}

/// Waits until the transfer that was asked for has begun, and then until it is over.
async fn follow(status: &mut watch::Receiver<RaftStatus>) {
    // A moment in between may be skipped, so this must not wait for it for long.
    let begun = status.wait_for(|s| !s.leading);
    let _ = timeout(Duration::from_millis(500), begun).await;
    let _ = status
        .wait_for(|s| s.leading || s.role != Role::Leader)
        .await;
}
