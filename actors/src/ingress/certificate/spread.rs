//! When all nodes have applied an entry of the log.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::BoxFuture;
use jaco_proto::v1::NodeStatus;
use jaco_raftnode::LeaderProposer;
use tokio::sync::watch;

/// Reports when all nodes have applied an entry of the log.
pub trait Spread: Send + Sync + 'static {
    /// Resolves once every ready node has applied the entry at `index`; may never do so.
    fn reached(&self, index: u64) -> BoxFuture<'static, ()>;
}

/// Reads the applied indexes that the members report in their heartbeats.
///
/// Raft's own progress would not do: it tells which entries a member has stored, and a member
/// answers a challenge only once it has applied it.
pub struct HeartbeatSpread {
    /// Reads the members.
    pub raft: Arc<dyn LeaderProposer>,
    /// Hostname of this node, which has applied what it waits for.
    pub host: String,
    /// Index of the last applied entry by raft id.
    pub applied: watch::Receiver<BTreeMap<u64, u64>>,
}

impl Spread for HeartbeatSpread {
    fn reached(&self, index: u64) -> BoxFuture<'static, ()> {
        let state = self.raft.state();
        let others = state
            .nodes
            .values()
            .filter(|node| node.status() == NodeStatus::Ready && node.hostname != self.host);
        let ids: Vec<u64> = others.map(|node| node.raft_id).collect();
        let mut applied = self.applied.clone();
        Box::pin(async move {
            let has_all = |applied: &BTreeMap<u64, u64>| {
                let mut ids = ids.iter();
                ids.all(|id| applied.get(id).is_some_and(|applied| *applied >= index))
            };
            let _ = applied.wait_for(has_all).await; // the end of the node ends the wait, too
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use jaco_raftnode::{StateReader as _, testing::MemoryRaft};

    use super::*;

    #[tokio::test]
    async fn ready_nodes_are_waited_for() {
        let raft = MemoryRaft::with_ready_nodes(&["n1", "n2", "n3"]);
        let state = raft.state();
        let id = |host: &str| state.nodes[host].raft_id;
        let (sender, applied) = watch::channel(BTreeMap::new());
        let spread = HeartbeatSpread {
            raft: Arc::new(raft.clone()),
            host: "n1".to_owned(),
            applied,
        };
        let mut reached = spread.reached(7);
        assert!((&mut reached).now_or_never().is_none());
        sender.send_replace([(id("n2"), 8), (id("n3"), 6)].into());
        assert!((&mut reached).now_or_never().is_none());
        sender.send_replace([(id("n2"), 8), (id("n3"), 7)].into());
        assert!((&mut reached).now_or_never().is_some());
        assert!(spread.reached(7).now_or_never().is_some());
        drop(sender);
        assert!(spread.reached(9).now_or_never().is_some());
    }
}
