//! How commands are built and named.

use jaco_proto::v1::{self, command::Payload};
use prost_types::Timestamp;

/// Creates a command of `identity` at `ts`, the only clock that applying it reads.
pub fn command(identity: impl Into<String>, ts: Timestamp, payload: Payload) -> v1::Command {
    v1::Command {
        ts: Some(ts),
        identity: identity.into(),
        payload: Some(payload),
        ..v1::Command::default()
    }
}

/// Creates a command that applies `children` in order, all or none.
///
/// The children keep their own identities and times.
pub fn batch(
    identity: impl Into<String>,
    ts: Timestamp,
    children: Vec<v1::Command>,
) -> v1::Command {
    command(identity, ts, Payload::Batch(v1::Batch { children }))
}

/// Name of the variant of a command, for logs; never its content, which may be secret.
#[must_use]
pub fn command_name(command: &v1::Command) -> &'static str {
    match &command.payload {
        None => "none",
        Some(payload) => payload_name(payload),
    }
}

fn payload_name(payload: &Payload) -> &'static str {
    match payload {
        Payload::ClusterInit(_) => "cluster_init",
        Payload::NodeJoin(_) => "node_join",
        Payload::NodeRemove(_) => "node_remove",
        Payload::NodeStatusUpdate(_) => "node_status_update",
        Payload::NodeUpdateSelf(_) => "node_update_self",
        Payload::DeploymentApply(_) => "deployment_apply",
        Payload::DeploymentRollback(_) => "deployment_rollback",
        Payload::DeploymentDelete(_) => "deployment_delete",
        Payload::DeploymentStatusUpdate(_) => "deployment_status_update",
        Payload::ReplicaDesiredUpsert(_) => "replica_desired_upsert",
        Payload::ReplicaDesiredRemove(_) => "replica_desired_remove",
        Payload::ReplicaObservedUpdate(_) => "replica_observed_update",
        Payload::ReplicaCommandIssue(_) => "replica_command_issue",
        Payload::RolloutPlanUpdate(_) => "rollout_plan_update",
        Payload::ReplicaCounterIncrement(_) => "replica_counter_increment",
        Payload::RestartCounterUpdate(_) => "restart_counter_update",
        Payload::RouteUpsert(_) => "route_upsert",
        Payload::RouteRemove(_) => "route_remove",
        Payload::CertStore(_) => "cert_store",
        Payload::CertLock(_) => "cert_lock",
        Payload::CertUnlock(_) => "cert_unlock",
        Payload::ChallengeTokenStore(_) => "challenge_token_store",
        Payload::CertBlobUpsert(_) => "cert_blob_upsert",
        Payload::CertBlobRemove(_) => "cert_blob_remove",
        Payload::SubnetAllocate(_) => "subnet_allocate",
        Payload::SubnetFree(_) => "subnet_free",
        Payload::TokenIssue(_) => "token_issue",
        Payload::TokenRevoke(_) => "token_revoke",
        Payload::JoinTokenIssue(_) => "join_token_issue",
        Payload::JoinTokenConsume(_) => "join_token_consume",
        Payload::AuditAppend(_) => "audit_append",
        Payload::Batch(_) => "batch",
        Payload::RegistryCredentialUpsert(_) => "registry_credential_upsert",
        Payload::RegistryCredentialRemove(_) => "registry_credential_remove",
    }
}
