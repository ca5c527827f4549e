//! The `Deploy` service: workloads.

use std::sync::Arc;

use jaco_policy::{api::views, ingress::table::replica_addr};
use jaco_proto::v1::{self, command::Payload, deploy_server::Deploy};
use jaco_raftnode::StateReader;
use tonic::{Request, Response, Status};

use super::{
    apply,
    caller::Caller,
    logs, names, network, rollout,
    stream::{ResponseStream, guarded},
    tls,
};
use crate::{ingress::certificate, node::NodeContext};

pub(super) struct DeployService(pub(super) Arc<NodeContext>);

#[tonic::async_trait]
impl Deploy for DeployService {
    async fn apply(
        &self,
        request: Request<v1::ApplyRequest>,
    ) -> Result<Response<v1::ApplyResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let response = apply::apply(&node, &caller, request.into_inner()).await?;
        Ok(Response::new(response))
    }

    async fn rollback(
        &self,
        request: Request<v1::RollbackRequest>,
    ) -> Result<Response<v1::RollbackResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let response = rollout::rollback(&node, &caller, request.into_inner()).await?;
        Ok(Response::new(response))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let deployment = request.into_inner().deployment;
        names::require("deployment", &deployment)?;
        let guard = node.apply_lock.lock(&node.raft).await?;
        let payload = Payload::DeploymentDelete(v1::DeploymentDelete { deployment });
        let command = node.command(&caller.identity, payload);
        guard.propose(&node.raft, command).await?;
        Ok(Response::new(v1::DeleteResponse {}))
    }

    async fn status(
        &self,
        request: Request<v1::DeployStatusRequest>,
    ) -> Result<Response<v1::DeployStatusResponse>, Status> {
        let node = self.0.running()?;
        let state = node.raft.state();
        let last_heartbeat = |host: &str| node.failure_detector.last_heartbeat(host);
        let mut response = views::status(&state, request.get_ref(), &last_heartbeat);
        let deployment = &request.get_ref().deployment_filter;
        response.certs = certificate::status_rows(&state, &response.routes, node.clock.now());
        response.network_faults = network::faults_of(&node, &state, deployment);
        Ok(node.read_response(&state, response))
    }

    type LogsStream = ResponseStream<v1::LogLine>;

    async fn logs(
        &self,
        request: Request<v1::LogsRequest>,
    ) -> Result<Response<Self::LogsStream>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let state = node.raft.state();
        names::require("deployment", &request.get_ref().deployment)?;
        let lines = logs::tail(&node, request.into_inner()).await?;
        let stream = guarded(
            lines,
            &caller,
            node.raft.subscribe(),
            self.0.end_of_service_for(caller.transport),
        );
        Ok(node.read_response(&state, stream))
    }

    async fn get_replicas(
        &self,
        request: Request<v1::GetReplicasRequest>,
    ) -> Result<Response<v1::GetReplicasResponse>, Status> {
        let node = self.0.running()?;
        let state = node.raft.state();
        let last_heartbeat = |host: &str| node.failure_detector.last_heartbeat(host);
        let response = views::replicas(&state, request.get_ref(), &last_heartbeat);
        Ok(node.read_response(&state, response))
    }

    async fn set_tls(
        &self,
        request: Request<v1::SetTlsRequest>,
    ) -> Result<Response<v1::SetTlsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let response = tls::set(&node, &caller, request.into_inner()).await?;
        Ok(Response::new(response))
    }

    async fn control_rollout(
        &self,
        request: Request<v1::ControlRolloutRequest>,
    ) -> Result<Response<v1::ControlRolloutResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let response = rollout::control(&node, &caller, request.into_inner()).await?;
        Ok(Response::new(response))
    }

    async fn get_route(
        &self,
        request: Request<v1::GetRouteRequest>,
    ) -> Result<Response<v1::GetRouteResponse>, Status> {
        let node = self.0.running()?;
        let state = node.raft.state();
        let domain = request.into_inner().domain;
        names::require("domain", &domain)?;
        // Counted for the cluster, not for this node: other nodes may reach other replicas.
        let is_fresh = |host: &str| node.failure_detector.last_heartbeat(host).is_some();
        let response = views::route(&state, &domain, |route, desired| {
            let address = replica_addr(&state, is_fresh, route, &desired.id)?;
            let observed = state.replicas_observed.get(&desired.id)?;
            Some((observed.host.clone(), address))
        })?;
        Ok(node.read_response(&state, response))
    }
}
