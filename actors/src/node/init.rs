//! Bootstraps a cluster: everything is built in staging directories and renamed into place last, so
//! a crash at any point leaves either a node without a cluster or a member.

use jaco_net::pki::{
    ClusterCa,
    files::{NodeFiles, SECRET_DIR, Staging},
};
use jaco_proto::{
    Error, ErrorCode, chain,
    secret::SecretString,
    v1::{self, command::Payload},
};
use jaco_raftnode::storage::{self, Row};
use jaco_state::{State, fsm};

use super::{
    NodeConfig,
    config::text,
    files::{Layout, Membership},
};
use crate::identity::{self, random_token};

/// Raft id of the bootstrap node.
const FIRST_RAFT_ID: u64 = 1;
/// Identity of the command for every caller but the one with the setup token.
const BOOTSTRAP: &str = "bootstrap";
/// Log index of the bootstrap command; the first snapshot holds its outcome.
const BOOTSTRAP_INDEX: u64 = 1;

/// Request to bootstrap a cluster. The requester chooses id and token, so that a retry after a
/// crash of the actor gets the same answer.
#[derive(Clone)]
pub struct ClusterBootstrap {
    pub(super) cluster_id: String,
    pub(super) operator_token: SecretString,
    pub(super) name: String,
    /// Identity of the command, as the audit trail shows it.
    pub(super) identity: &'static str,
}

impl ClusterBootstrap {
    /// Creates a request of the caller `asked_by` for a cluster called `name`, or by its id if that
    /// is empty.
    pub(super) fn new(name: String, asked_by: &str) -> Result<Self, Error> {
        let cluster_id = uuid::Uuid::new_v4().to_string();
        Ok(Self {
            operator_token: random_token()?,
            name: if name.is_empty() {
                cluster_id.clone()
            } else {
                name
            },
            cluster_id,
            identity: match asked_by {
                identity::SETUP => identity::SETUP,
                _ => BOOTSTRAP,
            },
        })
    }

    pub(super) fn response(self) -> v1::ClusterInitResponse {
        v1::ClusterInitResponse {
            cluster_id: self.cluster_id,
            operator_token: self.operator_token.expose().to_owned(),
        }
    }
}

/// Error of a member that is to bootstrap or join another cluster.
pub(crate) fn already(cluster_id: &str) -> Error {
    Error::new(
        ErrorCode::ClusterAlreadyInitialized,
        format!("this node is a member of cluster {cluster_id} already"),
    )
    .with("cluster_id", cluster_id)
}

/// Creates a single-node cluster on disk.
///
/// # Errors
/// `cluster_already_initialized` on a member; `internal` with the reason if a key cannot be made or
/// a file not be written: the node stays without a cluster then.
pub(super) fn bootstrap(
    layout: &Layout,
    config: &NodeConfig,
    hostname: &str,
    request: ClusterBootstrap,
) -> Result<v1::ClusterInitResponse, Error> {
    // An actor that was killed while it waited leaves this function running; the next call waits
    // for the caller's lock and then finds the membership here.
    if layout.is_member().map_err(internal)? {
        return Err(Error::new(
            ErrorCode::ClusterAlreadyInitialized,
            "this node is a member of a cluster already",
        ));
    }
    let now = config.clock.now();
    let ClusterBootstrap {
        cluster_id,
        operator_token,
        name,
        identity,
    } = request.clone();
    let ca = ClusterCa::generate(now).map_err(internal)?;
    let files =
        NodeFiles::bootstrap(&ca, hostname, &config.certificate_ips, now).map_err(internal)?;

    let command = v1::Command {
        cluster_id: cluster_id.clone(),
        ts: Some(config.clock.timestamp()),
        identity: identity.to_owned(),
        payload: Some(Payload::ClusterInit(v1::ClusterInit {
            cluster_id: cluster_id.clone(),
            ca_cert: ca.cert_pem().as_bytes().to_vec(),
            ca_key: ca.key_pem().expose().as_bytes().to_vec(),
            operator_token_hashed_secret: identity::hash(operator_token.expose().as_bytes())
                .to_vec(),
            self_hostname: hostname.to_owned(),
            self_address: text(config.cluster_addr),
            cluster_name: name,
            self_raft_id: FIRST_RAFT_ID,
            self_server_cert_fingerprint: files.cert.fingerprint().as_bytes().to_vec(),
            self_grpc_address: text(config.listen_addr),
            ipam_pool: config.ipam.range().to_string(),
            ipam_block: config.ipam.block().into(),
        })),
        ..Default::default()
    };
    let applied = fsm::apply(&State::default(), BOOTSTRAP_INDEX, &command).map_err(internal)?;
    applied.result?;

    let membership = Membership {
        cluster_id: cluster_id.clone(),
        hostname: hostname.to_owned(),
        raft_id: FIRST_RAFT_ID,
        advertise_addr: text(config.cluster_addr),
        peers: Vec::new(),
    };
    layout
        .place_identity(&files, &membership, None, || ())
        .map_err(internal)?;

    let staging = Staging::begin(&layout.raft(), SECRET_DIR).map_err(internal)?;
    let rows: Vec<_> = applied.mutations.into_iter().map(Row::from).collect();
    storage::bootstrap_with_rows(staging.path(), FIRST_RAFT_ID, &[FIRST_RAFT_ID], &rows)
        .map_err(internal)?;
    staging.commit().map_err(internal)?;
    Ok(request.response())
}

/// Maps a local error, with its causes, to `internal`.
fn internal(error: impl std::error::Error) -> Error {
    Error::new(ErrorCode::Internal, "the cluster could not be created").because(chain(&error))
}
