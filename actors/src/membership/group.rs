//! Interface to the raft group for membership changes.

use futures::future::BoxFuture;
use jaco_raftnode::{MemberChange, RaftHandle, RaftStatus, actor::ChangeError};
use tokio::sync::watch;

/// Raft operations of the membership actor.
pub trait Group: Send + Sync + 'static {
    /// Subscribes to the raft status of this node.
    fn status(&self) -> watch::Receiver<RaftStatus>;

    /// Changes one member and waits until the change is in effect.
    fn change(&self, change: MemberChange) -> BoxFuture<'static, Result<(), ChangeError>>;

    /// Starts a transfer of leadership to voter `to`.
    fn transfer(&self, to: u64);
}

impl Group for RaftHandle {
    fn status(&self) -> watch::Receiver<RaftStatus> {
        self.subscribe_status()
    }

    fn change(&self, change: MemberChange) -> BoxFuture<'static, Result<(), ChangeError>> {
        let raft = self.clone();
        Box::pin(async move { raft.change_members(change).await })
    }

    fn transfer(&self, to: u64) {
        self.transfer_leadership(to);
    }
}
