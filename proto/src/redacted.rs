//! Redacted `Debug` of messages with secrets or payloads.
//!
//! Credentials, key material, manifests, command bodies, audit payloads and container output must
//! not be logged, so these messages have a `Debug` that prints hidden fields as `<redacted>`. Every
//! field is listed here: a new field does not compile until it is classified. The list of messages
//! is `REDACTED` in `build.rs`.

use std::fmt;

use crate::{secret::Redacted, v1::*};

macro_rules! redacted {
    ($($message:ident { $($shown:ident),* } hides { $($hidden:ident),* };)*) => {$(
        impl fmt::Debug for $message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let Self { $($shown,)* $($hidden: _,)* } = self;
                f.debug_struct(stringify!($message))
                    $(.field(stringify!($shown), $shown))*
                    $(.field(stringify!($hidden), &Redacted(())))*
                    .finish()
            }
        }
    )*};
}

redacted! {
    ApplyRequest { dry_run, files } hides { jaco_yaml, compose_yaml, secret_values };
    AuditEvent { raft_index, r#type, identity, ts, ordinal } hides { payload };
    BackupChunk {} hides { data };
    BootstrapResponse { cluster_id } hides { operator_token };
    Cert { domain, cert_chain, not_before, not_after, lessee, lock_until } hides { private_key };
    CertBlob { key, updated_at } hides { value };
    CertImportRequest { name } hides { chain_pem, key_pem };
    CertStore { key, ttl_seconds } hides { value };
    ChallengeToken { token, domain, expires_at } hides { key_auth };
    ClusterFileCreateRequest { kind, name } hides { content };
    ClusterInit {
        cluster_id, ca_cert, self_hostname, self_address, cluster_name, self_raft_id,
        self_server_cert_fingerprint, self_grpc_address, ipam_pool, ipam_block
    } hides { ca_key, operator_token_hashed_secret };
    ClusterInitResponse { cluster_id } hides { operator_token };
    ClusterJoinRequest { peer_addr } hides { join_token };
    ClusterMeta {
        cluster_id, ca_cert, created_at, cluster_name, next_raft_id, secrets_key_id, ipam_pool,
        ipam_block
    } hides { ca_key };
    Command { cluster_id, raft_index, ts, identity, payload, traceparent } hides {};
    Deployment {
        name, applied_revision, previous_revision, status, status_details, services, updated_at,
        acme_email, highest_revision, previous, applied_raft_index, networks,
        failed_revision, failure_reason, rollout_hold
    } hides { jaco_yaml, compose_yaml };
    DeploymentApply {
        deployment, revision, services, routes, tcp_routes, acme_email, contents, networks
    } hides { jaco_yaml, compose_yaml };
    DeploymentRevision {
        revision, services, routes, tcp_routes, acme_email, networks
    } hides { jaco_yaml, compose_yaml };
    FileContent { deployment, id, size } hides { content, sealed };
    FileValue { kind, name, path, uid, gid, mode } hides { content };
    ImportKeyRequest {} hides { key };
    ImportedCert {
        name, not_before, not_after, fingerprint, imported_at, imported_by
    } hides { chain_pem, sealed_key };
    IssueJoinTokenResponse { ca_cert, leader_addrs } hides { token };
    JoinToken { issued_at, expires_at, consumed_at } hides { hashed_secret };
    JoinTokenConsume {} hides { hashed_secret };
    JoinTokenIssue { expires_at } hides { hashed_secret };
    LogLine { replica_id, host, stream, ts } hides { line };
    NodeJoinRequest {
        name, csr_pem, advertise_addr, wireguard_pubkey, grpc_address, sent_at, ipam_pool,
        ipam_block
    } hides { join_token };
    RegistryCredential { registry, username, updated_at } hides { secret };
    RegistryCredentialAddRequest { registry, username } hides { secret };
    Secret { deployment, name, version, key_id, updated_at, updated_by } hides { sealed };
    SecretSetRequest { deployment, name } hides { value };
    SecretsKey { id } hides { key };
    SubmitRequest {} hides { command_bytes };
    Token { identity, issued_at, revoked_at, allows_privileged } hides { hashed_secret };
    TokenIssue { identity, allows_privileged } hides { hashed_secret };
    TokenIssueResponse { identity, issued_at } hides { token };
}

impl command::Payload {
    /// Returns the name of the operation, the only part of a command that may be logged.
    pub fn op(&self) -> &'static str {
        match self {
            Self::ClusterInit(_) => "cluster_init",
            Self::NodeJoin(_) => "node_join",
            Self::NodeRemove(_) => "node_remove",
            Self::NodeStatusUpdate(_) => "node_status_update",
            Self::NodeUpdateSelf(_) => "node_update_self",
            Self::DeploymentApply(_) => "deployment_apply",
            Self::DeploymentRollback(_) => "deployment_rollback",
            Self::DeploymentDelete(_) => "deployment_delete",
            Self::DeploymentStatusUpdate(_) => "deployment_status_update",
            Self::ReplicaDesiredUpsert(_) => "replica_desired_upsert",
            Self::ReplicaDesiredRemove(_) => "replica_desired_remove",
            Self::ReplicaObservedUpdate(_) => "replica_observed_update",
            Self::ReplicaCommandIssue(_) => "replica_command_issue",
            Self::RolloutPlanUpdate(_) => "rollout_plan_update",
            Self::ReplicaCounterIncrement(_) => "replica_counter_increment",
            Self::RestartCounterUpdate(_) => "restart_counter_update",
            Self::RouteUpsert(_) => "route_upsert",
            Self::RouteRemove(_) => "route_remove",
            Self::CertStore(_) => "cert_store",
            Self::CertLock(_) => "cert_lock",
            Self::CertUnlock(_) => "cert_unlock",
            Self::ChallengeTokenStore(_) => "challenge_token_store",
            Self::CertBlobUpsert(_) => "cert_blob_upsert",
            Self::CertBlobRemove(_) => "cert_blob_remove",
            Self::SubnetAllocate(_) => "subnet_allocate",
            Self::SubnetFree(_) => "subnet_free",
            Self::TokenIssue(_) => "token_issue",
            Self::TokenRevoke(_) => "token_revoke",
            Self::JoinTokenIssue(_) => "join_token_issue",
            Self::JoinTokenConsume(_) => "join_token_consume",
            Self::AuditAppend(_) => "audit_append",
            Self::Batch(_) => "batch",
            Self::RegistryCredentialUpsert(_) => "registry_credential_upsert",
            Self::RegistryCredentialRemove(_) => "registry_credential_remove",
            Self::ClusterConfigSet(_) => "cluster_config_set",
            Self::SecretUpsert(_) => "secret_upsert",
            Self::SecretRemove(_) => "secret_remove",
            Self::SecretsKeySet(_) => "secrets_key_set",
            Self::RouteTlsOverrideSet(_) => "route_tls_override_set",
            Self::RouteTlsOverrideRemove(_) => "route_tls_override_remove",
            Self::ImportedCertUpsert(_) => "imported_cert_upsert",
            Self::ImportedCertRemove(_) => "imported_cert_remove",
            Self::FileContentReseal(_) => "file_content_reseal",
            Self::ClusterFilePut(_) => "cluster_file_put",
            Self::ClusterFileRemove(_) => "cluster_file_remove",
            Self::RolloutHoldSet(_) => "rollout_hold_set",
        }
    }
}

impl fmt::Debug for command::Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op())
    }
}

#[cfg(test)]
mod tests;
