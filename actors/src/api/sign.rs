//! New certificates for members.

use jaco_proto::Error;
use jaco_raftnode::Propose as _;

use super::join::{authority, refuse_csr};
use crate::node::Running;

/// Signs the request of member `hostname`; returns the certificate as PEM.
///
/// # Errors
/// `csr_invalid` if it asks for more than that member may have, `ca_missing` if nobody can sign.
pub(crate) fn certificate(node: &Running, hostname: &str, csr: &[u8]) -> Result<Vec<u8>, Error> {
    let ca = authority(&node.raft.state())?;
    let csr = String::from_utf8_lossy(csr);
    let cert = ca
        .sign_request(&csr, hostname, node.clock.now())
        .map_err(refuse_csr)?;
    Ok(cert.pem().as_bytes().to_vec())
}
