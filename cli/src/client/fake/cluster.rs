//! The `Cluster` service of the fake daemon.

use jaco_proto::v1;
use tonic::{Request, Response, Status};

use super::{Boxed, Service};

fn absent<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not scripted"))
}

#[tonic::async_trait]
impl v1::cluster_server::Cluster for Service {
    async fn init(
        &self,
        request: Request<v1::ClusterInitRequest>,
    ) -> Result<Response<v1::ClusterInitResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::ClusterInitResponse {
            cluster_id: "c-1".to_owned(),
            operator_token: "t0k3n".to_owned(),
        }))
    }

    async fn join(
        &self,
        request: Request<v1::ClusterJoinRequest>,
    ) -> Result<Response<v1::ClusterJoinResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::ClusterJoinResponse {}))
    }

    async fn bootstrap(
        &self,
        _: Request<v1::BootstrapRequest>,
    ) -> Result<Response<v1::BootstrapResponse>, Status> {
        absent()
    }

    async fn issue_join_token(
        &self,
        request: Request<v1::IssueJoinTokenRequest>,
    ) -> Result<Response<v1::IssueJoinTokenResponse>, Status> {
        self.admit(&request)?;
        let script = &self.inner().script;
        let nodes = script.cluster.nodes.iter();
        let addresses = match script.raft_leader_addrs {
            true => nodes.map(|node| node.address.clone()).collect(),
            false => nodes
                .map(|node| node.grpc_address.clone())
                .collect::<Vec<_>>(),
        };
        Ok(Response::new(v1::IssueJoinTokenResponse {
            token: "jaco1.5ec2e7.d19e57".to_owned(),
            ca_cert: b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n".to_vec(),
            leader_addrs: (addresses.into_iter())
                .filter(|address| !address.is_empty())
                .collect(),
        }))
    }

    async fn node_join(
        &self,
        _: Request<v1::NodeJoinRequest>,
    ) -> Result<Response<v1::NodeJoinResponse>, Status> {
        absent()
    }

    async fn node_remove(
        &self,
        request: Request<v1::NodeRemoveRequest>,
    ) -> Result<Response<v1::NodeRemoveResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::NodeRemoveResponse {}))
    }

    async fn node_cordon(
        &self,
        request: Request<v1::NodeCordonRequest>,
    ) -> Result<Response<v1::NodeCordonResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::NodeCordonResponse {}))
    }

    async fn node_list(
        &self,
        request: Request<v1::NodeListRequest>,
    ) -> Result<Response<v1::NodeListResponse>, Status> {
        self.admit(&request)?;
        let nodes = self.inner().script.cluster.nodes.clone();
        Ok(Response::new(v1::NodeListResponse { nodes }))
    }

    type BackupStream = Boxed<v1::BackupChunk>;

    async fn backup(
        &self,
        request: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        self.admit(&request)?;
        let pieces = self.inner().script.backup.clone().into_iter();
        let pieces = pieces.map(|piece| Ok(v1::BackupChunk { data: piece? }));
        Ok(Response::new(Box::pin(futures::stream::iter(pieces))))
    }

    async fn restore(
        &self,
        _: Request<tonic::Streaming<v1::BackupChunk>>,
    ) -> Result<Response<v1::RestoreResponse>, Status> {
        absent()
    }

    async fn status(
        &self,
        request: Request<v1::ClusterStatusRequest>,
    ) -> Result<Response<v1::ClusterStatusResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(self.inner().script.cluster.clone()))
    }

    async fn actors(
        &self,
        request: Request<v1::ActorsRequest>,
    ) -> Result<Response<v1::ActorsResponse>, Status> {
        self.admit(&request)?;
        let actors = self.inner().script.actors.clone();
        Ok(Response::new(v1::ActorsResponse { actors }))
    }

    async fn kill_actor(
        &self,
        request: Request<v1::KillActorRequest>,
    ) -> Result<Response<v1::KillActorResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::KillActorResponse {}))
    }

    async fn digest(
        &self,
        request: Request<v1::DigestRequest>,
    ) -> Result<Response<v1::DigestResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(self.inner().script.digest.clone()))
    }

    async fn network_status(
        &self,
        request: Request<v1::NetworkStatusRequest>,
    ) -> Result<Response<v1::NetworkStatusResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(self.inner().script.network.clone()))
    }
}
