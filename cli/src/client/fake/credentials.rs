//! The `Tokens` and `RegistryCredentials` services of the fake daemon.

use jaco_proto::v1;
use prost_types::Timestamp;
use tonic::{Request, Response, Status};

use super::Service;

/// Time of every event.
const NOW: Timestamp = Timestamp {
    seconds: 1_795_174_813,
    nanos: 5,
};

#[tonic::async_trait]
impl v1::tokens_server::Tokens for Service {
    async fn issue(
        &self,
        request: Request<v1::TokenIssueRequest>,
    ) -> Result<Response<v1::TokenIssueResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::TokenIssueResponse {
            identity: request.into_inner().identity,
            token: "0123456789abcdef".repeat(4),
            issued_at: Some(NOW),
        }))
    }

    async fn revoke(
        &self,
        request: Request<v1::TokenRevokeRequest>,
    ) -> Result<Response<v1::TokenRevokeResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::TokenRevokeResponse {}))
    }

    async fn list(
        &self,
        request: Request<v1::TokenListRequest>,
    ) -> Result<Response<v1::TokenListResponse>, Status> {
        self.admit(&request)?;
        let tokens = self.inner().script.tokens.clone();
        Ok(Response::new(v1::TokenListResponse { tokens }))
    }
}

#[tonic::async_trait]
impl v1::registry_credentials_server::RegistryCredentials for Service {
    async fn add(
        &self,
        request: Request<v1::RegistryCredentialAddRequest>,
    ) -> Result<Response<v1::RegistryCredentialAddResponse>, Status> {
        self.admit(&request)?;
        let request = request.into_inner();
        let registry = request.registry.to_lowercase();
        self.inner().recorded.credentials.push(request);
        Ok(Response::new(v1::RegistryCredentialAddResponse {
            registry,
            updated_at: Some(NOW),
        }))
    }

    async fn remove(
        &self,
        request: Request<v1::RegistryCredentialRemoveRequest>,
    ) -> Result<Response<v1::RegistryCredentialRemoveResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::RegistryCredentialRemoveResponse {}))
    }

    async fn list(
        &self,
        request: Request<v1::RegistryCredentialListRequest>,
    ) -> Result<Response<v1::RegistryCredentialListResponse>, Status> {
        self.admit(&request)?;
        let credentials = self.inner().script.credentials.clone();
        Ok(Response::new(v1::RegistryCredentialListResponse {
            credentials,
        }))
    }
}
