//! When all nodes have an entry of the log.

use futures::future::BoxFuture;
use jaco_proto::v1::NodeStatus;
use jaco_raftnode::{RaftHandle, StateReader as _};

/// Reports when all nodes have an entry of the log.
pub trait Spread: Send + Sync + 'static {
    /// Resolves once every ready node has the entry at `index`; may never do so.
    fn reached(&self, index: u64) -> BoxFuture<'static, ()>;
}

/// Reads the replication state of this node's raft, which leads.
pub struct RaftSpread(pub RaftHandle);

impl Spread for RaftSpread {
    fn reached(&self, index: u64) -> BoxFuture<'static, ()> {
        let raft = self.0.clone();
        Box::pin(async move {
            let mut status = raft.subscribe_status();
            let state = raft.state();
            let ready = state.nodes.values();
            let ready = ready.filter(|node| node.status() == NodeStatus::Ready);
            let ids: Vec<u64> = ready.map(|node| node.raft_id).collect();
            let reached = status.wait_for(|status| {
                let mut members = status.progress.iter();
                members.all(|member| !ids.contains(&member.raft_id) || member.matched >= index)
            });
            let _ = reached.await; // an end of raft ends the wait, too
        })
    }
}
