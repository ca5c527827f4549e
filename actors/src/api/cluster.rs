//! The `Cluster` service: life cycle of the cluster and of this node in it.

use std::{sync::Arc, time};

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, cluster_server::Cluster, node_suffrage::Kind},
};
use jaco_raftnode::StateReader;
use jaco_supervision::{ActorState, KillMode};
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::{
    admission::{ANONYMOUS, Transport},
    backup,
    caller::Caller,
    context::ApiContext,
    cordon, digest,
    forward::{self, Resumed},
    join,
    leave::Removal,
    names, network,
    stream::{ResponseStream, guarded},
};

pub(super) struct ClusterService(pub(super) Arc<ApiContext>);

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn init(
        &self,
        request: Request<v1::ClusterInitRequest>,
    ) -> Result<Response<v1::ClusterInitResponse>, Status> {
        let identity = Caller::of(&request)?.identity;
        let name = request.into_inner().cluster_name;
        let response = self.0.node().init(name, &identity).await?;
        Ok(Response::new(response))
    }

    async fn join(
        &self,
        request: Request<v1::ClusterJoinRequest>,
    ) -> Result<Response<v1::ClusterJoinResponse>, Status> {
        self.0.node().join(request.into_inner()).await?;
        Ok(Response::new(v1::ClusterJoinResponse {}))
    }

    async fn bootstrap(
        &self,
        _: Request<v1::BootstrapRequest>,
    ) -> Result<Response<v1::BootstrapResponse>, Status> {
        Err(unimplemented("Cluster.Bootstrap"))
    }

    async fn issue_join_token(
        &self,
        request: Request<v1::IssueJoinTokenRequest>,
    ) -> Result<Response<v1::IssueJoinTokenResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.node().running()?;
        Ok(Response::new(join::issue(&node, &caller).await?))
    }

    async fn node_join(
        &self,
        request: Request<v1::NodeJoinRequest>,
    ) -> Result<Response<v1::NodeJoinResponse>, Status> {
        let node = self.0.node().running()?;
        let admitted = join::admit(&node, request.into_inner()).await?;
        Ok(Response::new(admitted))
    }

    async fn node_remove(
        &self,
        request: Request<v1::NodeRemoveRequest>,
    ) -> Result<Response<v1::NodeRemoveResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.node().running()?;
        let removal = Removal {
            node: &node,
            caller: &caller,
            deadline: forward::deadline(request.metadata().as_ref(), Instant::now()),
            stopping: self.0.node().stopping_for(caller.transport),
            resumed: request.extensions().get::<Resumed>().is_some(),
        };
        removal.run(request.into_inner()).await?;
        Ok(Response::new(v1::NodeRemoveResponse {}))
    }

    async fn node_cordon(
        &self,
        request: Request<v1::NodeCordonRequest>,
    ) -> Result<Response<v1::NodeCordonResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.node().running()?;
        cordon::cordon(&node, &caller, request.into_inner()).await?;
        Ok(Response::new(v1::NodeCordonResponse {}))
    }

    async fn node_list(
        &self,
        _: Request<v1::NodeListRequest>,
    ) -> Result<Response<v1::NodeListResponse>, Status> {
        let node = self.0.node().running()?;
        let state = node.raft.state();
        let nodes = state
            .nodes
            .values()
            .map(|node| v1::Node::clone(node))
            .collect();
        Ok(node.read_response(&state, v1::NodeListResponse { nodes }))
    }

    type BackupStream = ResponseStream<v1::BackupChunk>;

    async fn backup(
        &self,
        request: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.node().running()?;
        let pieces = backup::begin(&self.0, &caller).await?;
        Ok(Response::new(guarded(
            pieces,
            &caller,
            node.raft.subscribe(),
            self.0.node().end_of_service_for(caller.transport),
        )))
    }

    async fn restore(
        &self,
        _: Request<Streaming<v1::BackupChunk>>,
    ) -> Result<Response<v1::RestoreResponse>, Status> {
        Err(unimplemented("Cluster.Restore"))
    }

    async fn status(
        &self,
        request: Request<v1::ClusterStatusRequest>,
    ) -> Result<Response<v1::ClusterStatusResponse>, Status> {
        let caller = Caller::of(&request)?;
        let anonymous = caller.transport == Transport::Api && caller.identity == ANONYMOUS;
        let removed = self.0.node().is_removed();
        let Some(node) = self.0.node().try_running() else {
            return Ok(Response::new(v1::ClusterStatusResponse {
                initialized: self.0.node().is_member(),
                removed: removed && !anonymous,
                ..Default::default()
            }));
        };
        // An anonymous caller learns only that there is a cluster.
        if anonymous {
            return Ok(Response::new(v1::ClusterStatusResponse {
                initialized: true,
                ..Default::default()
            }));
        }
        let (state, raft) = (node.raft.state(), node.raft.status());
        // A node out of touch would name the leader of that time.
        let in_touch = !raft.quorum_lost && !raft.is_stalled();
        let leader = state
            .nodes
            .values()
            .find(|n| in_touch && raft.leader_id == Some(n.raft_id));
        let since = |at: time::Instant| {
            let time = node.clock.now().checked_sub(at.elapsed());
            time.map(jaco_proto::timestamp)
        };
        // This node's view of the configuration, which may still be empty.
        let suffrage = |n: &Arc<v1::Node>| v1::NodeSuffrage {
            hostname: n.hostname.clone(),
            kind: if raft.voters.contains(&n.raft_id) {
                Kind::Voter.into()
            } else {
                Kind::Nonvoter.into()
            },
        };
        let members = state.nodes.values().filter(|_| !raft.voters.is_empty());
        let suffrages = members.map(suffrage).collect();
        let response = v1::ClusterStatusResponse {
            nodes: state.nodes.values().map(|n| v1::Node::clone(n)).collect(),
            leader: leader.map(|n| n.address.clone()).unwrap_or_default(),
            raft_index: raft.last_index,
            initialized: true,
            suffrages,
            leader_hostname: leader.map(|n| n.hostname.clone()).unwrap_or_default(),
            applied_index: state.applied_index,
            removed,
            quorum_lost_since: raft.quorum_lost_since.and_then(since),
            stalled_since: raft.stalled_since.and_then(since),
        };
        Ok(node.read_response(&state, response))
    }

    async fn actors(
        &self,
        request: Request<v1::ActorsRequest>,
    ) -> Result<Response<v1::ActorsResponse>, Status> {
        let path = request.into_inner().path;
        let below = format!("{path}/");
        let actors = self
            .0
            .node()
            .actors()
            .into_iter()
            .filter(|actor| path.is_empty() || actor.path == path || actor.path.starts_with(&below))
            .map(|actor| v1::ActorInfo {
                path: actor.path,
                kind: actor.kind.to_string(),
                state: match actor.state {
                    ActorState::Starting => "starting",
                    ActorState::Running => "running",
                    ActorState::Backoff => "backoff",
                    ActorState::Stopped => "stopped",
                    ActorState::Exhausted => "exhausted",
                }
                .to_owned(),
                restarts: u32::try_from(actor.restarts_in_window).unwrap_or(u32::MAX),
                uptime_ms: actor.uptime.map_or(0, |uptime| {
                    u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX)
                }),
                last_failure: actor.last_failure.unwrap_or_default(),
                mailbox_depth: actor.mailbox_depth as u64,
            })
            .collect();
        Ok(Response::new(v1::ActorsResponse { actors }))
    }

    async fn kill_actor(
        &self,
        request: Request<v1::KillActorRequest>,
    ) -> Result<Response<v1::KillActorResponse>, Status> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        names::require("path", &request.path)?;
        let mode = match request.mode() {
            v1::FailureMode::Panic => KillMode::Panic,
            v1::FailureMode::Kill | v1::FailureMode::Unspecified => KillMode::Kill,
        };
        tracing::warn!(
            subsystem = "actor",
            actor = %request.path, ?mode, %caller,
            "fault injected"
        );
        self.0.node().kill_actor(&request.path, mode)?;
        Ok(Response::new(v1::KillActorResponse {}))
    }

    async fn digest(
        &self,
        _: Request<v1::DigestRequest>,
    ) -> Result<Response<v1::DigestResponse>, Status> {
        let node = self.0.node().running()?;
        let response = digest::compare(&node).await;
        let state = node.raft.state();
        Ok(node.read_response(&state, response))
    }

    async fn network_status(
        &self,
        _: Request<v1::NetworkStatusRequest>,
    ) -> Result<Response<v1::NetworkStatusResponse>, Status> {
        let node = self.0.node().running()?;
        let state = node.raft.state();
        let response = network::status(&node, &state);
        Ok(node.read_response(&state, response))
    }
}

fn unimplemented(method: &str) -> Status {
    Error::new(
        ErrorCode::Unimplemented,
        format!("{method} is not served by this daemon"),
    )
    .with("method", method)
    .into()
}
