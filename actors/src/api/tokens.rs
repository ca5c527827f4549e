//! The `Tokens` service: operator credentials.

use std::sync::Arc;

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, command::Payload, tokens_server::Tokens},
};
use jaco_raftnode::StateReader;
use tonic::{Request, Response, Status};

use super::{admission, caller::Caller, names};
use crate::{commit::propose, identity::random_token, node::NodeContext};

pub(super) struct TokensService(pub(super) Arc<NodeContext>);

/// Identities of internal writers and listeners.
const RESERVED: [&str; 17] = [
    "local",
    "bootstrap",
    "setup",
    "anonymous",
    "scheduler",
    "scheduler/rebalance",
    "rollout",
    "restarter",
    "runtime",
    "firewall",
    "ingress",
    "node-update-self",
    "node-health",
    "pressure-heartbeat",
    "migration",
    "restore",
    "system",
];

fn check_identity(identity: &str) -> Result<(), Error> {
    let problem = if identity.is_empty() {
        "is empty"
    } else if RESERVED.contains(&identity) {
        "is reserved"
    } else if identity.contains(':') || identity.chars().any(char::is_control) {
        "contains a colon or a control character"
    } else {
        return Ok(());
    };
    Err(Error::new(
        ErrorCode::ValidationFailed,
        format!("token identity {identity:?} {problem}"),
    )
    .with("field", "identity")
    .with("value", identity))
}

#[tonic::async_trait]
impl Tokens for TokensService {
    async fn issue(
        &self,
        request: Request<v1::TokenIssueRequest>,
    ) -> Result<Response<v1::TokenIssueResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let v1::TokenIssueRequest {
            identity,
            allows_privileged,
        } = request.into_inner();
        check_identity(&identity)?;
        let token = random_token()?;
        let command = node.command(
            &caller.identity,
            Payload::TokenIssue(v1::TokenIssue {
                identity: identity.clone(),
                hashed_secret: admission::hash(token.expose().as_bytes()).to_vec(),
                allows_privileged,
            }),
        );
        let issued_at = command.ts;
        propose(&node.raft, command).await?;
        Ok(Response::new(v1::TokenIssueResponse {
            identity,
            token: token.expose().to_owned(),
            issued_at,
        }))
    }

    async fn revoke(
        &self,
        request: Request<v1::TokenRevokeRequest>,
    ) -> Result<Response<v1::TokenRevokeResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.running()?;
        let identity = request.into_inner().identity;
        names::require("identity", &identity)?;
        let payload = Payload::TokenRevoke(v1::TokenRevoke { identity });
        propose(&node.raft, node.command(&caller.identity, payload)).await?;
        Ok(Response::new(v1::TokenRevokeResponse {}))
    }

    async fn list(
        &self,
        _request: Request<v1::TokenListRequest>,
    ) -> Result<Response<v1::TokenListResponse>, Status> {
        let node = self.0.running()?;
        let state = node.raft.state();
        let tokens = state
            .tokens
            .values()
            .map(|token| v1::TokenInfo {
                identity: token.identity.clone(),
                issued_at: token.issued_at,
                revoked_at: token.revoked_at,
                allows_privileged: token.allows_privileged,
            })
            .collect();
        Ok(node.read_response(&state, v1::TokenListResponse { tokens }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_of_internal_writers_are_reserved() {
        for bad in [
            "",
            "local",
            "node-health",
            "system",
            "join_token:ab",
            "a\nb",
            "drain:host",
        ] {
            let error = check_identity(bad).unwrap_err();
            assert_eq!(error.code, ErrorCode::ValidationFailed, "{bad:?}");
            assert_eq!(error.details["field"], "identity");
        }
        check_identity("ci-bot").unwrap();
    }
}
