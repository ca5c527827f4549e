//! Renews the certificate of a node whose addresses changed.
//!
//! The key stays, so that one file is replaced, atomically: after a crash at any point the node has
//! a certificate that matches its key. The new certificate is staged beside the old one until the
//! cluster knows its fingerprint.
//!
//! The node presents both to its peers from before the new one is published, and the old one for
//! good: it proves its identity to peers that have not applied the new fingerprint. No peer has to
//! apply it first, so a leader, even the only voter, renews its certificate as any other member.

use std::{net::IpAddr, sync::Arc, time::Duration};

use jaco_net::{
    pki::{NodeCert, files::NodeFiles},
    tls::{self, Identity},
};
use jaco_policy::node::writers::NODE_UPDATE_SELF;
use jaco_proto::{
    Error, ErrorCode, chain,
    v1::{self, command::Payload, internal_client::InternalClient},
};
use jaco_raftnode::{ForwardingProposer as _, State, StateReader as _};

use super::{
    MemberContext, NodeContext, authority,
    files::{FilesError, Layout},
    leader::LeaderLocation,
};
use crate::{commit::outcome, log_dedup::LogDedup};

/// Time limit for the leader's signature.
const SIGN_BUDGET: Duration = Duration::from_secs(10);
/// Delay before the next attempt.
const RETRY: Duration = Duration::from_secs(3);

/// Has a certificate with the configured addresses signed, published and put in force, if the one
/// in force has others; returns once that is done.
pub(super) async fn renew(shared: Arc<NodeContext>, node: Arc<MemberContext>, layout: Layout) {
    let mut failures = LogDedup::default();
    loop {
        match attempt(&shared, &node, &layout).await {
            Ok(()) => return,
            Err(error) => {
                if failures.is_new(&error) {
                    tracing::warn!(subsystem = "daemon/grpc", %error, "the certificate was not renewed");
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn attempt(shared: &NodeContext, node: &MemberContext, layout: &Layout) -> Result<(), Error> {
    let files = NodeFiles::load(&layout.node(), &node.hostname).map_err(internal)?;
    let mut wanted = shared.config.dialable_ips();
    wanted.sort_unstable();
    if certificate_ips(&files.cert)? == wanted {
        return Ok(());
    }
    let now = node.clock.now();
    let usable = |cert: &NodeCert| {
        cert.check_key(&files.key).map_err(internal)?;
        tls::check_member(&files.ca_pem, cert, &node.hostname, now).map_err(internal)
    };
    // A staged certificate may be published already; another one would only lengthen the list of
    // certificates that are presented.
    let waits = layout.staged(&node.hostname);
    let waits = waits.filter(|cert| usable(cert).is_ok());
    let cert = match waits {
        Some(cert) if certificate_ips(&cert)? == wanted => cert,
        Some(_) | None => {
            let cert = sign(node, &files, &wanted).await?;
            usable(&cert)?;
            layout
                .stage_certificate(&node.hostname, &cert)
                .map_err(internal)?;
            cert
        }
    };
    present(shared, layout, &node.hostname)?;
    let print = cert.fingerprint();
    let update = Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
        hostname: node.hostname.clone(),
        server_cert_fingerprint: print.as_bytes().to_vec(),
        ..Default::default()
    });
    // The answer to the previous attempt may have been lost, or the process restarted.
    let state = node.raft.state();
    let row = state.nodes.get(&node.hostname);
    if row.is_none_or(|row| row.server_cert_fingerprint != print.as_bytes()) {
        let command = node.command(NODE_UPDATE_SELF, update);
        outcome(node.submitter().submit(command)).await?;
    }
    promote(shared, layout, &node.hostname)?;
    tracing::info!(subsystem = "daemon/grpc", fingerprint = %print, "the certificate was renewed");
    Ok(())
}

/// Returns the dialable addresses in `cert`, sorted.
fn certificate_ips(cert: &NodeCert) -> Result<Vec<IpAddr>, Error> {
    let mut named = cert.ips().map_err(internal)?;
    named.retain(|ip| jaco_net::pki::dialable(*ip));
    named.sort_unstable();
    named.dedup();
    Ok(named)
}

/// Obtains a certificate for this node's key and the addresses `wanted`, signed by the leader.
async fn sign(
    node: &MemberContext,
    files: &NodeFiles,
    wanted: &[IpAddr],
) -> Result<NodeCert, Error> {
    let csr = files
        .key
        .request(&node.hostname, wanted)
        .map_err(internal)?;
    let cert = match node.leader.location() {
        LeaderLocation::Local => authority::certificate(node, &node.hostname, csr.as_bytes())?,
        LeaderLocation::Remote(leader) => request_signature(node, &leader.hostname, csr).await?,
        LeaderLocation::Unknown => return Err(node.leader.leaderless()),
    };
    NodeCert::from_pem(&String::from_utf8(cert).map_err(internal)?).map_err(internal)
}

/// Promotes the staged certificate on disk if the cluster knows it already: a crash may have come
/// between the two.
pub(super) fn promote_published(
    layout: &Layout,
    hostname: &str,
    state: &State,
) -> Result<(), FilesError> {
    let row = state.nodes.get(hostname);
    let known = |cert: &NodeCert| {
        row.is_some_and(|row| row.server_cert_fingerprint == cert.fingerprint().as_bytes())
    };
    if layout.staged(hostname).is_some_and(|cert| known(&cert)) {
        layout.promote_certificate(hostname)?;
    }
    Ok(())
}

/// Asks the leader to sign.
async fn request_signature(
    node: &MemberContext,
    leader: &str,
    csr: String,
) -> Result<Vec<u8>, Error> {
    let mut client = InternalClient::new(node.peers.channel(leader));
    let request = v1::SignNodeCertRequest {
        hostname: node.hostname.clone(),
        csr_pem: csr.into_bytes(),
    };
    let answer = tokio::time::timeout(SIGN_BUDGET, client.sign_node_cert(request)).await;
    match answer {
        Ok(Ok(response)) => Ok(response.into_inner().signed_cert),
        Ok(Err(status)) => {
            let error = Error::new(ErrorCode::PeerUnreachable, "the leader did not sign");
            Err(error.with("peer", leader).because(status.message()))
        }
        Err(_) => Err(
            Error::new(ErrorCode::PeerUnreachable, "the leader did not answer")
                .with("peer", leader),
        ),
    }
}

/// Puts the staged certificate in force, on disk and in the listeners; `false` if none is staged.
pub(super) fn promote(
    shared: &NodeContext,
    layout: &Layout,
    hostname: &str,
) -> Result<bool, Error> {
    let promoted = layout.promote_certificate(hostname).map_err(internal)?;
    if promoted {
        present(shared, layout, hostname)?;
    }
    Ok(promoted)
}

/// Presents the certificates on disk from the next handshake on.
fn present(shared: &NodeContext, layout: &Layout, hostname: &str) -> Result<(), Error> {
    let files = NodeFiles::load(&layout.node(), hostname).map_err(internal)?;
    let identity = Identity::node(&files).map_err(internal)?;
    let others = layout.other_certificates(&files);
    shared.certificate.replace(&identity.with_others(&others));
    Ok(())
}

fn internal(error: impl std::error::Error) -> Error {
    Error::new(ErrorCode::Internal, "the certificate could not be renewed").because(chain(&error))
}
