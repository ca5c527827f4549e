//! The `Internal` service: refused on every listener that clients can reach.
//!
//! Admission already refuses these calls; this is the second fence.

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, internal_server::Internal},
};
use tonic::{Request, Response, Status};

use super::stream::ResponseStream;

pub(super) struct InternalService;

fn refused() -> Status {
    Error::new(
        ErrorCode::PeerOnly,
        "only members call this, over the peer transport",
    )
    .into()
}

#[tonic::async_trait]
impl Internal for InternalService {
    async fn submit(
        &self,
        _: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitResponse>, Status> {
        Err(refused())
    }

    async fn sign_node_cert(
        &self,
        _: Request<v1::SignNodeCertRequest>,
    ) -> Result<Response<v1::SignNodeCertResponse>, Status> {
        Err(refused())
    }

    type LogsStream = ResponseStream<v1::LogLine>;

    async fn logs(
        &self,
        _: Request<v1::LogsRequest>,
    ) -> Result<Response<Self::LogsStream>, Status> {
        Err(refused())
    }

    async fn ensure_subnet(
        &self,
        _: Request<v1::EnsureSubnetRequest>,
    ) -> Result<Response<v1::EnsureSubnetResponse>, Status> {
        Err(refused())
    }

    async fn state_digest(
        &self,
        _: Request<v1::StateDigestRequest>,
    ) -> Result<Response<v1::StateDigestResponse>, Status> {
        Err(refused())
    }
}
