//! Makes a node without a cluster a member of one.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use jaco_proto::{Error, ErrorCode, v1};
use jaco_raftnode::{State, StateReader as _};

use super::{JoinRequest, place, request_admission};
use crate::node::{MemberContext, NodeContext, NodeMsg, already, files::Layout};

/// Time limit of a new member's catch-up, after which the operator gets an error.
const CATCH_UP_BUDGET: Duration = Duration::from_secs(45);

impl NodeContext {
    /// Joins the cluster that the token names; returns once the local state holds the join.
    ///
    /// An admission cannot be undone, so the join continues when the caller disconnects.
    pub(crate) async fn join(
        self: &Arc<Self>,
        request: v1::ClusterJoinRequest,
    ) -> Result<(), Error> {
        if let Some(node) = self.try_running() {
            return Err(already(&node.cluster_id));
        }
        if self.is_member() {
            let opening = "the node is opening its state";
            return Err(Error::new(ErrorCode::StateUnavailable, opening));
        }
        let request = JoinRequest::new(request)?;
        let one = self.begin_membership()?;
        let shared = Arc::clone(self);
        let joined = tokio::spawn(async move {
            let joined = shared.join_cluster(request).await;
            drop(one);
            joined
        });
        let mut stopping = self.stopping();
        tokio::select! {
            joined = joined => joined.unwrap_or_else(|error| {
                Err(Error::new(ErrorCode::Internal, "the join failed").because(error))
            }),
            _ = stopping.wait_for(|&stopping| stopping) => Err(Self::stopped()),
        }
    }

    async fn join_cluster(self: Arc<Self>, request: JoinRequest) -> Result<(), Error> {
        let starting = || Error::new(ErrorCode::StateUnavailable, "the node is starting");
        let hostname = self.hostname.get().ok_or_else(starting)?;
        let lifecycle = self.lifecycle.get().ok_or_else(starting)?;
        let admitted =
            request_admission(&self.config, hostname, self.mesh_public_key(), &request).await?;
        let raft_id = admitted.membership().raft_id;

        let shared = Arc::clone(&self);
        let placed = tokio::task::spawn_blocking(move || {
            let _one = shared.opened.lock().unwrap_or_else(PoisonError::into_inner);
            // After the shutdown another process may own the directory.
            if *shared.stopping.borrow() {
                return Err(Self::stopped());
            }
            place(&Layout::new(&shared.config.data_dir), &admitted)
        });
        let failed = |error| Error::new(ErrorCode::Internal, "the join failed").because(error);
        placed.await.map_err(failed)??;

        let mut startup_done = self.startup_done.subscribe();
        let _ = lifecycle.cast(NodeMsg::Open); // a restarted actor sends itself `Open`
        let member = loop {
            if let Some(member) = self.try_running() {
                break member;
            }
            // The sender is part of `self`.
            let _ = startup_done.changed().await;
        };
        caught_up(&member, raft_id).await
    }
}

/// Waits until the local state includes the join.
async fn caught_up(member: &MemberContext, raft_id: u64) -> Result<(), Error> {
    let mut states = member.raft.subscribe();
    let holds = |state: &Arc<State>| {
        let own = state.nodes.get(&member.hostname);
        own.is_some_and(|node| node.raft_id == raft_id)
    };
    match tokio::time::timeout(CATCH_UP_BUDGET, states.wait_for(holds)).await {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::new(
            ErrorCode::StateUnavailable,
            "this node has joined, but not caught up with its cluster yet",
        )),
    }
}
