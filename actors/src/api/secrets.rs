//! The `Secrets` service: the operator's access to the secrets key.

use std::sync::Arc;

use jaco_net::secrets::SecretsKey;
use jaco_proto::{
    Error, ErrorCode,
    v1::{self, AuditEventType, command::Payload, secrets_server::Secrets},
};
use jaco_raftnode::{ForwardingProposer as _, StateReader as _};
use jaco_state::command;
use tonic::{Request, Response, Status};
use zeroize::Zeroize as _;

use super::caller::Caller;
use crate::{
    commit::{outcome, propose},
    node::{MemberContext, NodeContext, leader::LeaderLocation},
    peer::Sender,
    secrets::{from_message, to_message},
};

pub(super) struct SecretsService(pub(super) Arc<NodeContext>);

#[tonic::async_trait]
impl Secrets for SecretsService {
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
mod tests {
    use jaco_proto::{
        error::DecodedError,
        v1::{internal_client::InternalClient, secrets_client::SecretsClient},
    };

    use super::*;
    use crate::{
        api::admission::Transport,
        testing::cluster::{Cluster, with},
    };

    const BEARER: (&str, &str) = ("authorization", "Bearer secret");

    fn code<T>(result: Result<T, Status>) -> String {
        DecodedError::from(result.err().unwrap()).code
    }

    #[tokio::test(start_paused = true)]
    async fn only_members_give_and_get_the_key() {
        let cluster = Cluster::start(2).await;
        for transport in [Transport::Local, Transport::Api] {
            let mut client = InternalClient::new(cluster.member_api(2, transport));
            let message = to_message(&SecretsKey::new([1; 32]));
            let stored = client.store_secrets_key(with(message, &[BEARER])).await;
            assert_eq!(code(stored), "peer_only");
            let request = v1::SecretsKeyId::default();
            let fetched = client.fetch_secrets_key(with(request, &[BEARER])).await;
            assert_eq!(code(fetched), "peer_only");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_leader_gives_a_valid_key() {
        let cluster = Cluster::start(3).await;
        let message = to_message(&SecretsKey::new([1; 32]));
        let mut follower = InternalClient::new(cluster.peer_api(2, 3));
        let stored = follower.store_secrets_key(message.clone()).await;
        assert_eq!(code(stored), "no_leader");
        let mut leader = InternalClient::new(cluster.peer_api(2, 1));
        for (id, key) in [
            ("other", &message.key[..]),
            (message.id.as_str(), &message.key[1..]),
        ] {
            let message = v1::SecretsKey {
                id: id.to_owned(),
                key: key.to_vec(),
            };
            let stored = leader.store_secrets_key(message).await;
            assert_eq!(code(stored), "validation_failed", "{id}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_exported_on_the_control_socket_only() {
        let cluster = Cluster::start(1).await;
        let mut client = SecretsClient::new(cluster.member_api(1, Transport::Api));
        let exported = client.export_key(with(v1::ExportKeyRequest {}, &[BEARER]));
        assert_eq!(code(exported.await), "privilege_denied");
        let import = v1::ImportKeyRequest { key: vec![1; 31] };
        let imported = client.import_key(with(import, &[BEARER])).await;
        assert_eq!(code(imported), "validation_failed");
    }
}
