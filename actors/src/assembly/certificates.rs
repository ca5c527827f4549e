//! The certificates of a member.

use std::sync::Arc;

use jaco_supervision::ChildSpec;
use tokio::sync::watch;

use crate::{
    ingress::certificate::{AcmeAuthority, Args, Cache, CertificateSettings, Certificates, child},
    node::{MemberContext, NodeContext, leader::leading},
};

/// Creates the manager of a member's certificates, and the channel that its data plane follows.
///
/// A node that cannot verify directories serves what other nodes obtain.
pub(super) fn certificates(
    shared: &Arc<NodeContext>,
    node: &Arc<MemberContext>,
    settings: &CertificateSettings,
) -> (ChildSpec, watch::Receiver<Certificates>) {
    let authority = settings.authority().unwrap_or_else(|error| {
        tracing::error!(subsystem = "stagefirst", %error, "this node obtains no certificates");
        AcmeAuthority::unusable(&error)
    });
    let (sender, receiver) = watch::channel(Certificates::default());
    let args = Args {
        host: node.hostname.clone(),
        raft: Arc::new(node.raft.clone()),
        is_leader: leading(&node.raft),
        clock: node.clock.clone(),
        directories: settings.directories.clone(),
        contact: settings.contact.clone(),
        authority: Arc::new(authority),
        spread: Arc::new(node.routing().clone()),
        preflight: None,
        cache: Cache::new(&shared.config.data_dir),
        account_lock: Arc::default(),
        certificates: sender,
    };
    (child(args), receiver)
}
