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
