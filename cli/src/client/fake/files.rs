//! The `ClusterFiles` service of the fake daemon.

use jaco_proto::v1;
use tonic::{Request, Response, Status};

use super::Service;

#[tonic::async_trait]
impl v1::cluster_files_server::ClusterFiles for Service {
    async fn create(
        &self,
        request: Request<v1::ClusterFileCreateRequest>,
    ) -> Result<Response<v1::ClusterFileCreateResponse>, Status> {
        self.admit(&request)?;
        self.inner().recorded.files.push(request.into_inner());
        Ok(Response::new(v1::ClusterFileCreateResponse {}))
    }

    async fn list(
        &self,
        request: Request<v1::ClusterFileListRequest>,
    ) -> Result<Response<v1::ClusterFileListResponse>, Status> {
        self.admit(&request)?;
        let kind = request.into_inner().kind;
        let mut files = self.inner().script.files.clone();
        files.retain(|file| file.kind == kind);
        Ok(Response::new(v1::ClusterFileListResponse { files }))
    }

    async fn remove(
        &self,
        request: Request<v1::ClusterFileRemoveRequest>,
    ) -> Result<Response<v1::ClusterFileRemoveResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::ClusterFileRemoveResponse {}))
    }
}
