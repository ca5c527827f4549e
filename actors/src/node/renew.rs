//! A new certificate for a node whose addresses changed.
//!
//! The key stays, so one file is replaced, as a whole: whatever moment a crash picks, the node
//! has a certificate that fits its key. The new one waits beside the old one until the cluster
//! knows its fingerprint; from then on only the new one is accepted.

use std::{sync::Arc, time::Duration};

use jaco_net::{
    pki::{NodeCert, files::NodeFiles},
    tls::{self, Identity},
};
use jaco_proto::{
    Error, ErrorCode, chain,
    v1::{self, command::Payload, internal_client::InternalClient},
};
use jaco_raftnode::{Propose as _, State};

use super::{
    Running, Shared,
    files::{FilesError, Layout},
    leader::Whereabouts,
    propose,
};
use crate::{api::sign, repeat::Repeats};

/// Identity of the command that publishes the fingerprint.
const IDENTITY: &str = "node-update-self";
/// Longest time the leader may take to sign.
const SIGN_BUDGET: Duration = Duration::from_secs(10);
/// Longest time a leader waits for another to take over.
const STEP_DOWN_BUDGET: Duration = Duration::from_secs(5);
/// Wait before another attempt.
const RETRY: Duration = Duration::from_secs(3);

/// Has a certificate with the addresses of the configuration signed, published and put in force,
/// if the one in force has others; returns when there is nothing left to do.
pub(super) async fn renew(shared: Arc<Shared>, node: Arc<Running>, layout: Layout) {
    let mut failures = Repeats::default();
    loop {
        match attempt(&shared, &node, &layout).await {
            Ok(()) => return,
            Err(error) => {
                if failures.is_news(&error) {
                    tracing::warn!(subsystem = "daemon/grpc", %error, "the certificate was not renewed");
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn attempt(shared: &Shared, node: &Running, layout: &Layout) -> Result<(), Error> {
    // Its fingerprint may be committed at any moment, and then nothing else may be in its place.
    if let Some(begun) = layout
        .waiting_certificate(&node.hostname)
        .map_err(internal)?
    {
        publish(shared, node, layout, &begun).await?;
    }
    let files = NodeFiles::load(&layout.node(), &node.hostname).map_err(internal)?;
    let mut wanted = shared.config.dialable_ips();
    let mut named = files.cert.ips().map_err(internal)?;
    named.retain(|ip| jaco_net::pki::dialable(*ip));
    named.sort_unstable();
    named.dedup();
    wanted.sort_unstable();
    if named == wanted {
        return Ok(());
    }
    let alone = step_aside(node).await?;
    let csr = files
        .key
        .request(&node.hostname, &wanted)
        .map_err(internal)?;
    let cert = match node.leader.whereabouts() {
        Whereabouts::Here if alone => sign::certificate(node, &node.hostname, csr.as_bytes())?,
        Whereabouts::There(leader) => ask(node, &leader.hostname, csr).await?,
        Whereabouts::Here | Whereabouts::Unknown => return Err(leaderless()),
    };
    let cert = NodeCert::from_pem(&String::from_utf8(cert).map_err(internal)?).map_err(internal)?;
    cert.check_key(&files.key).map_err(internal)?;
    tls::check_member(&files.ca_pem, &cert, &node.hostname, node.clock.now()).map_err(internal)?;

    layout
        .stage_certificate(&node.hostname, &cert)
        .map_err(internal)?;
    publish(shared, node, layout, &cert).await
}

/// Lets another member lead, if there is one: the others would not accept a leader whose
/// certificate changed before they heard from it that it did. `true` if this node is alone.
async fn step_aside(node: &Running) -> Result<bool, Error> {
    let alone = node.raft.state().nodes.len() == 1;
    let leads = || node.leader.whereabouts() == Whereabouts::Here;
    if !alone && leads() {
        node.raft.step_down(STEP_DOWN_BUDGET).await;
        if leads() {
            return Err(leaderless());
        }
    }
    Ok(alone)
}

fn leaderless() -> Error {
    Error::new(ErrorCode::NoLeader, "no other member leads")
}

/// Tells the cluster of `cert`, which waits, and puts it in force.
async fn publish(
    shared: &Shared,
    node: &Running,
    layout: &Layout,
    cert: &NodeCert,
) -> Result<(), Error> {
    let print = cert.fingerprint();
    if !is_known(&node.raft.state(), &node.hostname, cert) {
        step_aside(node).await?;
        let update = Payload::NodeUpdateSelf(v1::NodeUpdateSelf {
            hostname: node.hostname.clone(),
            server_cert_fingerprint: print.as_bytes().to_vec(),
            ..Default::default()
        });
        propose(&node.submitter(), node.command(IDENTITY, update)).await?;
    }
    promote(shared, layout, &node.hostname)?;
    tracing::info!(subsystem = "daemon/grpc", fingerprint = %print, "the certificate was renewed");
    Ok(())
}

/// Whether members that have applied `state` accept `cert`, and no other, from `hostname`.
fn is_known(state: &State, hostname: &str, cert: &NodeCert) -> bool {
    let row = state.nodes.get(hostname);
    row.is_some_and(|row| row.server_cert_fingerprint == cert.fingerprint().as_bytes())
}

/// Puts the certificate that waits in its place on disk, if the members accept no other by now.
pub(super) fn catch_up(layout: &Layout, hostname: &str, state: &State) -> Result<(), FilesError> {
    let waiting = layout.waiting_certificate(hostname)?;
    if waiting.is_some_and(|cert| is_known(state, hostname, &cert)) {
        layout.promote_certificate(hostname)?;
    }
    Ok(())
}

/// Asks the leader to sign.
async fn ask(node: &Running, leader: &str, csr: String) -> Result<Vec<u8>, Error> {
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
            Err(error.with("peer", leader).with("reason", status.message()))
        }
        Err(_) => Err(
            Error::new(ErrorCode::PeerUnreachable, "the leader did not answer")
                .with("peer", leader),
        ),
    }
}

/// Puts the certificate that waits in force, on disk and in the listeners; `false` if none waits.
pub(super) fn promote(shared: &Shared, layout: &Layout, hostname: &str) -> Result<bool, Error> {
    let promoted = layout.promote_certificate(hostname).map_err(internal)?;
    if promoted {
        let files = NodeFiles::load(&layout.node(), hostname).map_err(internal)?;
        shared
            .certificate
            .replace(&Identity::node(&files).map_err(internal)?);
    }
    Ok(promoted)
}

fn internal(error: impl std::error::Error) -> Error {
    Error::new(ErrorCode::Internal, "the certificate could not be renewed")
        .with("reason", chain(&error))
}
