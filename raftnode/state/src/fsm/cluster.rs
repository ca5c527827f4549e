//! Cluster initialisation.

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, AuditEventType, NodeStatus},
};

use super::{Origin, Tx, audit, reject};

/// Identity of the operator token issued at initialisation.
const BOOTSTRAP_IDENTITY: &str = "bootstrap";
/// Raft id of the first member, unless the command names one.
const FIRST_RAFT_ID: u64 = 1;

pub(super) fn init(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::ClusterInit,
) -> Result<(), Error> {
    if let Some(cluster) = &tx.state().cluster {
        return Err(Error::new(
            ErrorCode::ClusterAlreadyInitialized,
            "the cluster exists already",
        )
        .with("cluster_id", &cluster.cluster_id));
    }
    if command.cluster_id.is_empty() {
        return Err(reject::invalid("cluster_id", "empty"));
    }
    let raft_id = command.self_raft_id.max(FIRST_RAFT_ID);
    tx.put_cluster(v1::ClusterMeta {
        cluster_id: command.cluster_id.clone(),
        ca_cert: command.ca_cert.clone(),
        ca_key: command.ca_key.clone(),
        created_at: Some(origin.ts),
        cluster_name: command.cluster_name.clone(),
        next_raft_id: raft_id.saturating_add(1),
        ipam_pool: command.ipam_pool.clone(),
        ipam_block: command.ipam_block,
        secrets_key_id: String::new(),
    });
    if !command.operator_token_hashed_secret.is_empty() {
        tx.put(v1::Token {
            identity: BOOTSTRAP_IDENTITY.to_owned(),
            hashed_secret: command.operator_token_hashed_secret.clone(),
            issued_at: Some(origin.ts),
            revoked_at: None,
            allows_privileged: false,
        })?;
    }
    tx.put(v1::Node {
        hostname: command.self_hostname.clone(),
        address: command.self_address.clone(),
        server_cert_fingerprint: command.self_server_cert_fingerprint.clone(),
        grpc_address: command.self_grpc_address.clone(),
        status: NodeStatus::Ready.into(),
        joined_at: Some(origin.ts),
        raft_id,
        ..v1::Node::default()
    })?;
    audit::record(
        tx,
        origin,
        AuditEventType::NodeJoin,
        [
            ("cluster_id", command.cluster_id.clone()),
            ("hostname", command.self_hostname.clone()),
        ],
    )
}

/// Names the secrets key. The comparison makes it one decision, whichever leader proposes it: a key
/// that another leader named first is never replaced by accident.
pub(super) fn set_secrets_key(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::SecretsKeySet,
) -> Result<(), Error> {
    let Some(cluster) = tx.state().cluster.as_deref().cloned() else {
        return Err(reject::invalid("cluster", "missing"));
    };
    if command.key_id.is_empty() {
        return Err(reject::invalid("key_id", "empty"));
    }
    if cluster.secrets_key_id == command.key_id {
        return Ok(());
    }
    if cluster.secrets_key_id != command.replaces {
        let message = "another secrets key is in force";
        return Err(reject::conflict(reject::SECRETS_KEY_CHANGED, message)
            .with("key_id", cluster.secrets_key_id));
    }
    let action = if command.replaces.is_empty() {
        "made"
    } else {
        "rotated"
    };
    tx.put_cluster(v1::ClusterMeta {
        secrets_key_id: command.key_id.clone(),
        ..cluster
    });
    audit::record(
        tx,
        origin,
        AuditEventType::SecretsKey,
        [
            ("action", action.to_owned()),
            ("key_id", command.key_id.clone()),
        ],
    )
}
