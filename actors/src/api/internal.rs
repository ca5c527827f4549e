//! The `Internal` service: calls between members.
//!
//! Admission refuses these calls on every listener that clients can reach. Each handler checks the
//! sender as well, as a second barrier.

use std::sync::Arc;

use jaco_engine::cidr::Cidr;
use jaco_policy::{
    network::{bridge::refused_blocks::MAX_REFUSED_BLOCKS, ipam::SubnetKey},
    node::authorize,
};
use jaco_proto::{
    Error, ErrorCode,
    v1::{self, internal_server::Internal},
};
use jaco_raftnode::StateReader as _;
use tonic::{Request, Response, Status};

use super::{
    caller::Caller,
    digest, logs, network, secrets,
    stream::{ResponseStream, guarded},
};
use crate::{
    commit::propose,
    node::{MemberContext, NodeContext, authority, leader::LeaderLocation},
    peer::Sender,
    secrets::to_message,
};

pub(super) struct InternalService(pub(super) Arc<NodeContext>);

fn refused() -> Status {
    Error::new(
        ErrorCode::PeerOnly,
        "only members call this, over the peer transport",
    )
    .into()
}

impl InternalService {
    /// Returns the calling member, checked against the state, and the membership of this node.
    fn member<T>(&self, request: &Request<T>) -> Result<(Sender, Arc<MemberContext>), Status> {
        let sender = Caller::of(request)?.sender.ok_or_else(refused)?;
        let node = self.0.running()?;
        let state = node.raft.state();
        let row = state.nodes.get(&sender.hostname);
        if row.is_none_or(|row| row.raft_id != sender.raft_id) {
            return Err(refused());
        }
        Ok((sender, node))
    }

    /// As [`Self::member`], but fails unless this node leads.
    fn led<T>(&self, request: &Request<T>) -> Result<(Sender, Arc<MemberContext>), Status> {
        let (sender, node) = self.member(request)?;
        match node.leader.location() {
            LeaderLocation::Local => Ok((sender, node)),
            LeaderLocation::Remote(_) | LeaderLocation::Unknown => {
                Err(node.leader.leaderless().into())
            }
        }
    }
}

#[tonic::async_trait]
impl Internal for InternalService {
    async fn submit(
        &self,
        request: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitResponse>, Status> {
        let (sender, node) = self.led(&request)?;
        let bytes = request.into_inner().command_bytes;
        let command = jaco_state::fsm::decode(&bytes).map_err(|error| {
            Error::new(ErrorCode::ValidationFailed, "the command does not decode")
                .with("field", "command_bytes")
                .because(jaco_proto::chain(&error))
        })?;
        // The state that the command depends on must not change before it is committed.
        let guard = match authorize::clears_mark(&command) {
            true => Some(node.drain_mark_lock.lock(&node.raft).await?),
            false => None,
        };
        let name = jaco_state::command_name(&command);
        let (state, now) = (node.raft.state(), node.clock.timestamp());
        let command = match authorize::admit(&sender.hostname, command, &state, now) {
            Ok(command) => command,
            Err(error) => {
                tracing::warn!(
                    subsystem = "daemon/grpc",
                    sender = %sender.hostname,
                    command = name,
                    %error,
                    "a member submitted a command that it may not"
                );
                return Err(error.into());
            }
        };
        let committed = match guard {
            Some(guard) => guard.propose(&node.raft, command).await?,
            None => propose(&node.raft, command).await?,
        };
        Ok(Response::new(v1::SubmitResponse {
            raft_index: committed.index,
        }))
    }

    async fn sign_node_cert(
        &self,
        request: Request<v1::SignNodeCertRequest>,
    ) -> Result<Response<v1::SignNodeCertResponse>, Status> {
        let (sender, node) = self.member(&request)?;
        let v1::SignNodeCertRequest { hostname, csr_pem } = request.into_inner();
        if hostname != sender.hostname {
            return Err(Error::new(
                ErrorCode::PrivilegeDenied,
                "a member asks for a certificate of its own only",
            )
            .with("host", hostname)
            .into());
        }
        let signed_cert = authority::certificate(&node, &hostname, &csr_pem)?;
        Ok(Response::new(v1::SignNodeCertResponse { signed_cert }))
    }

    type LogsStream = ResponseStream<v1::LogLine>;

    async fn logs(
        &self,
        request: Request<v1::LogsRequest>,
    ) -> Result<Response<Self::LogsStream>, Status> {
        let caller = Caller::of(&request)?;
        let (_, node) = self.member(&request)?;
        let lines = logs::own(&node, request.into_inner()).await?;
        Ok(Response::new(guarded(
            lines,
            &caller,
            node.raft.subscribe(),
            self.0.end_of_service_for(caller.transport),
        )))
    }

    async fn ensure_subnet(
        &self,
        request: Request<v1::EnsureSubnetRequest>,
    ) -> Result<Response<v1::EnsureSubnetResponse>, Status> {
        let (sender, node) = self.led(&request)?;
        let v1::EnsureSubnetRequest {
            deployment,
            network,
            host,
            refused,
        } = request.into_inner();
        if host != sender.hostname {
            return Err(Error::new(
                ErrorCode::PrivilegeDenied,
                "a member asks for blocks of its own host only",
            )
            .with("host", host)
            .into());
        }
        let key = SubnetKey {
            deployment,
            network,
            host,
        };
        let refused = blocks(&refused)?;
        let given = node.allocator()?.ensure(key, refused).await;
        let cidr = given.map_err(Error::from)?;
        Ok(Response::new(v1::EnsureSubnetResponse {
            cidr: cidr.to_string(),
        }))
    }

    async fn state_digest(
        &self,
        request: Request<v1::StateDigestRequest>,
    ) -> Result<Response<v1::StateDigestResponse>, Status> {
        let (_, node) = self.member(&request)?;
        let response = digest::answer(&node, request.get_ref()).await;
        Ok(Response::new(response))
    }

    async fn await_routing(
        &self,
        request: Request<v1::AwaitRoutingRequest>,
    ) -> Result<Response<v1::AwaitRoutingResponse>, Status> {
        let (_, node) = self.member(&request)?;
        let response = node.routing().answer(request.get_ref()).await;
        Ok(Response::new(response))
    }

    async fn report_network(
        &self,
        request: Request<v1::ReportNetworkRequest>,
    ) -> Result<Response<v1::ReportNetworkResponse>, Status> {
        let (sender, node) = self.member(&request)?;
        let response = network::receive(&node, &sender, request.into_inner())?;
        Ok(Response::new(response))
    }

    async fn store_secrets_key(
        &self,
        request: Request<v1::SecretsKey>,
    ) -> Result<Response<v1::StoreSecretsKeyResponse>, Status> {
        let (sender, node) = self.member(&request)?;
        secrets::store(&node, &sender, request.into_inner()).await?;
        Ok(Response::new(v1::StoreSecretsKeyResponse {}))
    }

    async fn fetch_secrets_key(
        &self,
        request: Request<v1::SecretsKeyId>,
    ) -> Result<Response<v1::SecretsKey>, Status> {
        let (_, node) = self.member(&request)?;
        let key = node.secrets()?.fetch(request.into_inner().id).await?;
        Ok(Response::new(to_message(&key)))
    }
}

/// Parses the blocks that a host refuses.
fn blocks(texts: &[String]) -> Result<Vec<Cidr>, Error> {
    let invalid =
        |message| Error::new(ErrorCode::ValidationFailed, message).with("field", "refused");
    if texts.len() > MAX_REFUSED_BLOCKS {
        return Err(invalid("too many blocks are refused").with("limit", MAX_REFUSED_BLOCKS));
    }
    let block = |text: &String| {
        text.parse()
            .map_err(|_| invalid("a refused block is no IPv4 prefix").with("value", text))
    };
    texts.iter().map(block).collect()
}
