//! The cluster's certificate authority: certificates for members, signed by the leader.

use std::{
    net::{IpAddr, SocketAddr},
    time::SystemTime,
};

use jaco_net::pki::{self, ClusterCa, NodeCert};
use jaco_proto::{Error, ErrorCode, secret::SecretString};
use jaco_raftnode::{State, StateReader as _};

use super::MemberContext;

/// Returns the authority that signs for this cluster.
///
/// # Errors
/// `ca_missing` if the state has none that can be used.
pub(crate) fn authority(state: &State) -> Result<ClusterCa, Error> {
    let cert = ca_cert(state)?;
    let key = state.cluster.as_ref().map(|cluster| cluster.ca_key.clone());
    let key = SecretString::new(String::from_utf8(key.unwrap_or_default()).map_err(ca_missing)?);
    ClusterCa::from_pem(&cert, &key).map_err(ca_missing)
}

/// Returns the certificate of the authority, PEM.
///
/// # Errors
/// `ca_missing` if the state has none.
pub(crate) fn ca_cert(state: &State) -> Result<String, Error> {
    let cert = state
        .cluster
        .as_ref()
        .map(|cluster| cluster.ca_cert.clone());
    let cert = cert.filter(|cert| !cert.is_empty());
    let cert = cert.ok_or_else(|| ca_missing("the state holds no certificate"))?;
    String::from_utf8(cert).map_err(ca_missing)
}

/// Maps a defect of the stored authority to `ca_missing`, without the cause: it might quote the
/// key.
pub(crate) fn ca_missing(_: impl ToString) -> Error {
    Error::new(
        ErrorCode::CaMissing,
        "the cluster has no usable certificate authority",
    )
}

/// Signs the request of the member `hostname`; returns the certificate as PEM.
///
/// # Errors
/// `csr_invalid` if it names more than that member may have, `ca_missing` if the state holds no
/// usable authority.
pub(crate) fn certificate(
    node: &MemberContext,
    hostname: &str,
    csr: &[u8],
) -> Result<Vec<u8>, Error> {
    let state = node.raft.state();
    let ca = authority(&state)?;
    let cert = sign(&ca, &state, hostname, csr, node.clock.now())?;
    Ok(cert.pem().as_bytes().to_vec())
}

/// Signs the request `csr` (PEM) of the member `hostname`.
///
/// # Errors
/// `csr_invalid` if the request names more than that member may have.
pub(crate) fn sign(
    ca: &ClusterCa,
    state: &State,
    hostname: &str,
    csr: &[u8],
    now: SystemTime,
) -> Result<NodeCert, Error> {
    let csr = String::from_utf8_lossy(csr);
    let taken = addresses_of_others(state, hostname);
    ca.sign_request(&csr, hostname, &taken, now)
        .map_err(refuse_csr)
}

/// Returns the addresses of the members other than `hostname`: a certificate that named one of them
/// could be used to impersonate that member.
fn addresses_of_others(state: &State, hostname: &str) -> Vec<IpAddr> {
    let others = state.nodes.values().filter(|row| row.hostname != hostname);
    let addresses = others.flat_map(|row| [&row.address, &row.grpc_address]);
    let parsed = addresses.filter_map(|address| address.parse::<SocketAddr>().ok());
    parsed.map(|address| address.ip()).collect()
}

/// Maps the error of a signing request that was not signed.
fn refuse_csr(error: pki::Error) -> Error {
    match error {
        pki::Error::Pem(_) | pki::Error::Request(_) | pki::Error::Hostname(_) => {
            let refused = "the certificate signing request was refused";
            Error::new(ErrorCode::CsrInvalid, refused).because(error)
        }
        other => {
            Error::new(ErrorCode::Internal, "the certificate could not be signed").because(other)
        }
    }
}
