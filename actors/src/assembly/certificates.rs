//! The certificates of a member.

use std::sync::Arc;

use jaco_supervision::ChildSpec;
use tokio::sync::watch;

use crate::{
    ingress::certificate::{Args, Cache, CertificateSettings, Certificates, RaftSpread, child},
    node::{MemberContext, NodeContext, leader::leading},
};

/// Creates the certificate actors of a member, and the channel that its data plane follows. `None`
/// if the node cannot verify directories.
pub(super) fn certificates(
    shared: &Arc<NodeContext>,
    node: &Arc<MemberContext>,
    settings: &CertificateSettings,
) -> Option<(ChildSpec, watch::Receiver<Certificates>)> {
    let authority = match settings.authority() {
        Ok(authority) => Arc::new(authority),
        Err(error) => {
            tracing::error!(subsystem = "stagefirst", %error, "no certificates are obtained");
            return None;
        }
    };
    let (sender, receiver) = watch::channel(Certificates::default());
    let args = Args {
        host: node.hostname.clone(),
        raft: Arc::new(node.raft.clone()),
        is_leader: leading(&node.raft),
        clock: node.clock.clone(),
        directories: settings.directories.clone(),
        contact: settings.contact.clone(),
        authority,
        spread: Arc::new(RaftSpread(node.raft.clone())),
        preflight: None,
        cache: Cache::new(&shared.config.data_dir),
        account_lock: Arc::default(),
        certificates: sender,
    };
    Some((child(args), receiver))
}
