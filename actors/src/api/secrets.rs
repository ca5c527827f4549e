//! The `Secrets` service: secrets of deployments, and the operator's access to the key that seals them.

use std::sync::Arc;

use jaco_net::secrets::SecretsKey;
use jaco_policy::api::secrets;
use jaco_proto::{
    Error, ErrorCode,
    manifest::Resolved,
    secret::SecretBytes,
    v1::{self, AuditEventType, command::Payload, secrets_server::Secrets},
};
use jaco_raftnode::{ForwardingProposer as _, StateReader as _};
use jaco_state::{State, command, secret_not_found};
use tonic::{Request, Response, Status};
use zeroize::Zeroize as _;

use super::{caller::Caller, names};
use crate::{
    commit::{outcome, propose},
    node::{MemberContext, NodeContext, leader::LeaderLocation},
    peer::Sender,
    secrets::{ValueSealer, from_message, to_message},
};

pub(super) struct SecretsService(pub(super) Arc<NodeContext>);

#[tonic::async_trait]
impl Secrets for SecretsService {
    async fn set(
        &self,
        request: Request<v1::SecretSetRequest>,
    ) -> Result<Response<v1::SecretInfo>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let request = request.into_inner();
        let (deployment, name) = (request.deployment, request.name);
        let value = SecretBytes::new(request.value);
        names::require("deployment", &deployment)?;
        names::require("name", &name)?;
        let guard = node.sealing_lock.lock(&node.raft).await?;
        let sealer = ValueSealer(key_in_force(&node)?);
        let state = node.raft.state();
        let secret = secrets::next(&state, &deployment, &name, value.expose(), &sealer)?;
        if let Some(secret) = secret {
            let payload = Payload::SecretUpsert(v1::SecretUpsert {
                secret: Some(secret),
            });
            let command = node.command(&caller.identity, payload);
            guard.propose(&node.raft, command).await?;
        }
        let state = node.raft.state();
        let stored = state.secret(&deployment, &name);
        let info = stored.map(|secret| secrets::info(&state, secret));
        // Another operator may have removed it since.
        let info = info.ok_or_else(|| secret_not_found(&deployment, &name))?;
        Ok(node.read_response(&state, info))
    }

    async fn list(
        &self,
        request: Request<v1::SecretListRequest>,
    ) -> Result<Response<v1::SecretListResponse>, Status> {
        let node = self.0.running()?;
        let filter = request.into_inner().deployment_filter;
        let state = node.raft.state();
        let listed = state.secrets.values();
        let listed = listed.filter(|it| filter.is_empty() || it.deployment == filter);
        let response = v1::SecretListResponse {
            secrets: listed.map(|it| secrets::info(&state, it)).collect(),
        };
        Ok(node.read_response(&state, response))
    }

    async fn remove(
        &self,
        request: Request<v1::SecretRemoveRequest>,
    ) -> Result<Response<v1::SecretRemoveResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let v1::SecretRemoveRequest { deployment, name } = request.into_inner();
        names::require("deployment", &deployment)?;
        names::require("name", &name)?;
        let payload = Payload::SecretRemove(v1::SecretRemove { deployment, name });
        propose(&node.raft, node.command(&caller.identity, payload)).await?;
        Ok(Response::new(v1::SecretRemoveResponse {}))
    }

    async fn export_key(
        &self,
        request: Request<v1::ExportKeyRequest>,
    ) -> Result<Response<v1::SecretsKey>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let key = node.secrets()?.key()?;
        // The record comes first: a key that is out must be in the audit trail.
        let event = event("exported", &key.id(), &node.hostname);
        let record = command(caller.identity, node.clock.timestamp(), event);
        outcome(node.submitter().submit(record)).await?;
        Ok(Response::new(to_message(&key)))
    }

    async fn import_key(
        &self,
        request: Request<v1::ImportKeyRequest>,
    ) -> Result<Response<v1::SecretsKeyId>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let mut bytes = request.into_inner().key;
        let key = SecretsKey::from_slice(&bytes);
        bytes.zeroize();
        let key = key.map_err(|error| invalid(&error))?;
        let id = node.secrets()?.import(key).await?;
        let event = event("imported", &id, &node.hostname);
        propose(&node.raft, node.command(&caller.identity, event)).await?;
        Ok(Response::new(v1::SecretsKeyId { id }))
    }

    async fn rotate_key(
        &self,
        request: Request<v1::RotateKeyRequest>,
    ) -> Result<Response<v1::SecretsKeyId>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let id = node.secrets()?.rotate(caller.identity).await?;
        Ok(Response::new(v1::SecretsKeyId { id }))
    }
}

/// Returns the secrets of an apply whose values are new.
///
/// # Errors
/// Those of [`secrets::changed`].
pub(super) fn changed(
    state: &State,
    resolved: &Resolved,
    request: &v1::ApplyRequest,
    key: Option<&Arc<SecretsKey>>,
) -> Result<Vec<v1::Secret>, Error> {
    let Some(key) = key else {
        return Ok(Vec::new());
    };
    let sealer = ValueSealer(Arc::clone(key));
    let values = &request.secret_values;
    secrets::changed(
        state,
        &resolved.deployment,
        &resolved.secrets,
        values,
        &sealer,
    )
}

/// Writes a key that the leader gives to this member's disk.
///
/// # Errors
/// `no_leader` if the sender does not lead, as far as this node knows; `validation_failed` for a
/// message that holds no key, or one of another id.
pub(super) async fn store(
    node: &MemberContext,
    sender: &Sender,
    message: v1::SecretsKey,
) -> Result<(), Error> {
    match node.leader.location() {
        LeaderLocation::Remote(leader) if leader.hostname == sender.hostname => {}
        LeaderLocation::Remote(_) | LeaderLocation::Local | LeaderLocation::Unknown => {
            return Err(Error::new(ErrorCode::NoLeader, "the caller does not lead"));
        }
    }
    let id = message.id.clone();
    let key = from_message(message).map_err(|error| invalid(&error))?;
    if key.id() != id {
        let message = "the id is that of another key";
        return Err(Error::new(ErrorCode::ValidationFailed, message).with("field", "id"));
    }
    node.secrets()?.store(key).await
}

fn invalid(error: &jaco_net::secrets::Error) -> Error {
    Error::new(ErrorCode::ValidationFailed, error.to_string()).with("field", "key")
}

/// Record of what an operator did with the key `key_id` on `node`.
fn event(action: &str, key_id: &str, node: &str) -> Payload {
    let payload = [("action", action), ("key_id", key_id), ("node", node)];
    let payload = payload.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Payload::AuditAppend(v1::AuditAppend {
        event: Some(v1::AuditEvent {
            r#type: AuditEventType::SecretsKey.into(),
            payload: payload.into(),
            ..Default::default()
        }),
    })
}

/// The secrets key that the newest state names, while the sealing lock is held.
pub(super) fn key_in_force(node: &MemberContext) -> Result<Arc<SecretsKey>, Error> {
    let key = node.secrets()?.key()?;
    let state = node.raft.state();
    let named = state.cluster.as_deref();
    match named.is_some_and(|cluster| cluster.secrets_key_id == key.id()) {
        true => Ok(key),
        false => Err(Error::new(
            ErrorCode::StateUnavailable,
            "the secrets key was rotated just now",
        )),
    }
}

#[cfg(test)]
mod tests;
