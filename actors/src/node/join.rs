//! Joins a cluster: nothing is sent before the peer has proved that it belongs to the cluster the
//! token names, and the membership is stored completely or not at all.

mod dial;
mod member;
mod token;

use jaco_net::{
    pki::{
        Fingerprint, NodeCert, NodeKey, certificates,
        files::{NodeFiles, SECRET_DIR, Staging},
    },
    tls,
    wireguard::PublicKey,
};
use jaco_proto::{Error, ErrorCode, chain, config::HostPort, secret::SecretString, v1};
use jaco_raftnode::storage;

use super::{
    NodeConfig,
    config::text,
    files::{KnownPeer, Layout, Membership},
};

pub(crate) use token::JoinToken;

/// A validated request to join a cluster.
pub(super) struct JoinRequest {
    peer: HostPort,
    token: JoinToken,
}

impl JoinRequest {
    /// Validates the request before any connection is made.
    ///
    /// # Errors
    /// `validation_failed` for the peer's address, `join_token_invalid` for a token that does
    /// not name the authority of its cluster.
    pub(super) fn new(request: v1::ClusterJoinRequest) -> Result<Self, Error> {
        let v1::ClusterJoinRequest {
            peer_addr,
            join_token,
        } = request;
        let join_token = SecretString::new(join_token);
        let Some(peer) = dial::address(&peer_addr) else {
            let message = "the peer's address is not host:port";
            return Err(Error::new(ErrorCode::ValidationFailed, message)
                .with("field", "peer_addr")
                .with("value", peer_addr));
        };
        let token = JoinToken::parse(&join_token)
            .map_err(|error| Error::new(ErrorCode::JoinTokenInvalid, error.to_string()))?;
        Ok(Self { peer, token })
    }
}

/// Identity and membership of this node, once a member admitted it.
pub(super) struct AdmittedNode {
    files: NodeFiles,
    membership: Membership,
}

/// Asks a member of the cluster to admit this node.
///
/// # Errors
/// `peer_unreachable` or `ca_digest_mismatch` if nothing was sent; `clock_skew` if the clocks
/// differ too much; the member's own error; `internal` if its answer cannot be used.
pub(super) async fn request_admission(
    config: &NodeConfig,
    hostname: &str,
    mesh_key: Option<PublicKey>,
    join_request: &JoinRequest,
) -> Result<AdmittedNode, Error> {
    let Some(address) = config.cluster_addr else {
        let message = "a node without a cluster address cannot join others";
        return Err(Error::new(ErrorCode::ValidationFailed, message).with("field", "cluster_addr"));
    };
    let key = NodeKey::generate().map_err(internal)?;
    let ips = config.dialable_ips();
    let csr = key.request(hostname, &ips).map_err(internal)?;
    let pool = config.ipam_is_set.then_some(config.ipam);
    let request = v1::NodeJoinRequest {
        name: hostname.to_owned(),
        join_token: join_request.token.to_text().expose().to_owned(),
        csr_pem: csr.into_bytes(),
        advertise_addr: address.to_string(),
        wireguard_pubkey: mesh_key.map_or_else(Vec::new, |PublicKey(key)| key.to_vec()),
        grpc_address: text(config.listen_addr),
        sent_at: Some(config.clock.timestamp()),
        ipam_pool: pool.map_or_else(String::new, |pool| pool.range().to_string()),
        ipam_block: pool.map_or(0, |pool| pool.block().into()),
    };
    let response = dial::node_join(&join_request.peer, join_request.token.ca, request).await?;
    check(config, hostname, key, join_request, response)
}

/// Takes the membership from the answer, after checking it against the request.
fn check(
    config: &NodeConfig,
    hostname: &str,
    key: NodeKey,
    join_request: &JoinRequest,
    response: v1::NodeJoinResponse,
) -> Result<AdmittedNode, Error> {
    let v1::NodeJoinResponse {
        cluster_id,
        signed_cert,
        ca_cert,
        raft_id,
        members,
        ..
    } = response;
    let ca_pem = String::from_utf8(ca_cert).map_err(internal)?;
    let cas = certificates(&ca_pem).map_err(internal)?;
    let got = Fingerprint::of(&cas[0]);
    if got != join_request.token.ca || cas.len() != 1 {
        return Err(dial::mismatch(
            &join_request.peer,
            join_request.token.ca,
            got,
        ));
    }
    let cert = String::from_utf8(signed_cert).map_err(internal)?;
    let cert = NodeCert::from_pem(&cert).map_err(internal)?;
    cert.check_key(&key).map_err(internal)?;
    let now = config.clock.now();
    tls::check_member(&ca_pem, &cert, hostname, now).map_err(|error| {
        match error.not_valid_before() {
            Some(not_before) => dial::clock_behind(now, not_before),
            None => internal(error),
        }
    })?;
    if cluster_id.is_empty() || raft_id == 0 || members.is_empty() {
        return Err(unusable("it names no cluster, no raft id or no member"));
    }
    Ok(AdmittedNode {
        files: NodeFiles {
            hostname: hostname.to_owned(),
            key,
            cert,
            ca_pem,
        },
        membership: Membership {
            cluster_id,
            hostname: hostname.to_owned(),
            raft_id,
            advertise_addr: text(config.cluster_addr),
            peers: members.iter().map(KnownPeer::of).collect(),
        },
    })
}

/// Makes this node a member on disk; a crash on the way leaves it without a cluster.
///
/// The caller holds the lock on the node's files.
///
/// # Errors
/// `cluster_already_initialized` if it became a member in the meantime, `internal` with the
/// reason if a file cannot be written.
pub(super) fn place(layout: &Layout, admitted: &AdmittedNode) -> Result<(), Error> {
    let AdmittedNode { files, membership } = admitted;
    if layout.is_member().map_err(internal)? {
        return Err(super::already(""));
    }
    layout
        .place_identity(files, membership, None, || ())
        .map_err(internal)?;
    let staging = Staging::begin(&layout.raft(), SECRET_DIR).map_err(internal)?;
    storage::create(staging.path(), membership.raft_id).map_err(internal)?;
    staging.commit().map_err(internal)
}

impl AdmittedNode {
    pub(super) fn membership(&self) -> &Membership {
        &self.membership
    }
}

/// Maps an error of this machine or of the peer's answer, with its causes, to `internal`.
fn internal(error: impl std::error::Error) -> Error {
    unusable(chain(&error))
}

fn unusable(reason: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::Internal, "the cluster could not be joined").because(reason)
}
