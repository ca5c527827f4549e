//! How far the routing of all nodes has followed the state.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::{BoxFuture, join_all};
use jaco_proto::v1::{self, NodeStatus, internal_client::InternalClient};
use jaco_raftnode::StateReader;
use tokio::time::{sleep, timeout};
use tonic::{Code, Request};

use super::{Serving, Spread};
use crate::peer::Peers;

/// Time that a call waits for another node, before it is repeated.
const WAIT: Duration = Duration::from_secs(2);
/// Time for the answer of another node in addition to the wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay before a call that failed is repeated.
const RETRY: Duration = Duration::from_millis(100);
/// Longest wait that is granted to another node.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// The routing of a cluster as one member sees it; clones share it.
///
/// Each other node is asked with one call at a time, whose answer ends all waits for entries up to its
/// index.
#[derive(Clone)]
pub(crate) struct ClusterRouting {
    host: String,
    raft: Arc<dyn StateReader>,
    serving: Serving,
    peers: Peers,
    known: Arc<Mutex<BTreeMap<String, KnownIndex>>>,
}

/// Highest index known to be in force on a node; locked during a call to it.
type KnownIndex = Arc<tokio::sync::Mutex<u64>>;

impl ClusterRouting {
    /// Creates the view of member `host`.
    pub(crate) fn new(
        host: String,
        raft: Arc<dyn StateReader>,
        serving: Serving,
        peers: Peers,
    ) -> Self {
        Self {
            host,
            raft,
            serving,
            peers,
            known: Arc::default(),
        }
    }

    /// Answers the query of another member.
    pub(crate) async fn answer(
        &self,
        request: &v1::AwaitRoutingRequest,
    ) -> v1::AwaitRoutingResponse {
        let wait = Duration::from_millis(request.wait_ms.into()).min(MAX_WAIT);
        let reached = timeout(wait, self.serving.reached(&*self.raft, request.index)).await;
        v1::AwaitRoutingResponse {
            index: reached.unwrap_or(0),
        }
    }

    /// Waits until the entry at `index` is in force on `host`; for ever if it never says so.
    async fn reached_on(self, host: String, index: u64) {
        if host == self.host {
            self.serving.reached(&*self.raft, index).await;
            return;
        }
        let known = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry(host.clone()).or_default())
        };
        let mut known = known.lock().await;
        while *known < index {
            let request = v1::AwaitRoutingRequest {
                index,
                wait_ms: u32::try_from(WAIT.as_millis()).unwrap_or(u32::MAX),
            };
            let mut member = InternalClient::new(self.peers.channel(&host));
            let answer = member.await_routing(Request::new(request));
            match timeout(WAIT + ANSWER_TIMEOUT, answer).await {
                Ok(Ok(answer)) => *known = answer.into_inner().index.max(*known),
                // A node of an earlier version does not say.
                Ok(Err(status)) if status.code() == Code::Unimplemented => {
                    drop(known);
                    return std::future::pending().await;
                }
                Ok(Err(_)) | Err(_) => sleep(RETRY).await,
            }
        }
    }
}

impl Spread for ClusterRouting {
    fn reached(&self, index: u64) -> BoxFuture<'static, ()> {
        let state = self.raft.state();
        let ready = state.nodes.iter();
        let ready = ready.filter(|(_, node)| node.status() == NodeStatus::Ready);
        let reached = ready.map(|(host, _)| self.clone().reached_on(host.clone(), index));
        let reached = join_all(reached);
        Box::pin(async move {
            reached.await;
        })
    }
}
