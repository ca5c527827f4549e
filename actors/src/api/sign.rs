//! Certificates for members.

use std::net::{IpAddr, SocketAddr};

use jaco_proto::Error;
use jaco_raftnode::{Propose as _, State};

use super::join::{authority, refuse_csr};
use crate::node::MemberContext;

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
    let csr = String::from_utf8_lossy(csr);
    let taken = addresses_of_others(&state, hostname);
    let cert = ca
        .sign_request(&csr, hostname, &taken, node.clock.now())
        .map_err(refuse_csr)?;
    Ok(cert.pem().as_bytes().to_vec())
}

/// Returns the addresses of the members other than `hostname`: a certificate that named one of them
/// could be used to impersonate that member.
pub(super) fn addresses_of_others(state: &State, hostname: &str) -> Vec<IpAddr> {
    let others = state.nodes.values().filter(|row| row.hostname != hostname);
    let addresses = others.flat_map(|row| [&row.address, &row.grpc_address]);
    let parsed = addresses.filter_map(|address| address.parse::<SocketAddr>().ok());
    parsed.map(|address| address.ip()).collect()
}
