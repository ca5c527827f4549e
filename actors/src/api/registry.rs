//! The `RegistryCredentials` service: pull credentials shared by all nodes.

use std::sync::Arc;

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, command::Payload, registry_credentials_server::RegistryCredentials},
};
use jaco_raftnode::StateReader;
use jaco_state::registry::canonical_key;
use tonic::{Request, Response, Status};

use super::{caller::Caller, names};
use crate::{commit::propose, node::NodeContext};

pub(super) struct RegistryService(pub(super) Arc<NodeContext>);

fn key(registry: &str) -> Result<String, Error> {
    canonical_key(registry).ok_or_else(|| {
        Error::new(
            ErrorCode::ValidationFailed,
            format!("the registry {registry:?} has no host"),
        )
        .with("field", "registry")
        .with("value", registry)
    })
}

#[tonic::async_trait]
impl RegistryCredentials for RegistryService {
    async fn add(
        &self,
        request: Request<v1::RegistryCredentialAddRequest>,
    ) -> Result<Response<v1::RegistryCredentialAddResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let v1::RegistryCredentialAddRequest {
            registry,
            username,
            secret,
        } = request.into_inner();
        let registry = key(&registry)?;
        names::require("username", &username)?;
        names::require("secret", &secret)?;
        let updated_at = Some(node.clock.timestamp());
        let credential = v1::RegistryCredential {
            registry: registry.clone(),
            username,
            secret,
            updated_at,
        };
        let payload = Payload::RegistryCredentialUpsert(v1::RegistryCredentialUpsert {
            credential: Some(credential),
        });
        propose(&node.raft, node.command(&caller.identity, payload)).await?;
        Ok(Response::new(v1::RegistryCredentialAddResponse {
            registry,
            updated_at,
        }))
    }

    async fn remove(
        &self,
        request: Request<v1::RegistryCredentialRemoveRequest>,
    ) -> Result<Response<v1::RegistryCredentialRemoveResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let registry = key(&request.into_inner().registry)?;
        let payload = Payload::RegistryCredentialRemove(v1::RegistryCredentialRemove { registry });
        propose(&node.raft, node.command(&caller.identity, payload)).await?;
        Ok(Response::new(v1::RegistryCredentialRemoveResponse {}))
    }

    async fn list(
        &self,
        _request: Request<v1::RegistryCredentialListRequest>,
    ) -> Result<Response<v1::RegistryCredentialListResponse>, Status> {
        let node = self.0.running()?;
        let state = node.raft.state();
        let credentials = state
            .registry_credentials
            .values()
            .map(|credential| v1::RegistryCredentialSummary {
                registry: credential.registry.clone(),
                username: credential.username.clone(),
                updated_at: credential.updated_at,
            })
            .collect();
        Ok(node.read_response(&state, v1::RegistryCredentialListResponse { credentials }))
    }
}
