//! The raft group, as its membership is changed.

use futures::future::BoxFuture;
use jaco_raftnode::{MemberChange, RaftHandle, RaftStatus, actor::ChangeError};
use tokio::sync::watch;

/// What the membership actor needs of raft.
pub trait Group: Send + Sync + 'static {
    /// Where this node stands, as it changes.
    fn status(&self) -> watch::Receiver<RaftStatus>;

    /// Changes one member, and waits until that is in effect.
    fn change(&self, change: MemberChange) -> BoxFuture<'static, Result<(), ChangeError>>;

    /// Asks voter `to` to take over leadership.
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
