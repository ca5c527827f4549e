//! The certificates of a member.

use std::sync::Arc;

use jaco_supervision::ChildSpec;
use tokio::sync::watch;

use crate::{
    ingress::certificate::{
        AcmeAuthority, Args, Cache, CertificateSettings, Certificates, DomainCheck, FeedArgs,
        ImportArgs, Imported, Preflight, SecretsKeys, Turns, child, feed_child, import_child,
    },
    node::{MemberContext, NodeContext, leader::leading},
    secrets::Secrets,
};

/// Creates the manager of a member's certificates, and the channel that its data plane follows.
///
/// A node that cannot verify directories serves what other nodes obtain.
pub(super) fn certificates(
    shared: &Arc<NodeContext>,
    node: &Arc<MemberContext>,
    settings: &CertificateSettings,
    imported: watch::Receiver<Imported>,
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
        turns: Turns::default(),
        spread: Arc::new(node.routing().clone()),
        preflight: settings.preflight.then(|| {
            let check = DomainCheck::new(secrets_keys(node));
            Arc::new(check) as Arc<dyn Preflight>
        }),
        imported,
        cache: Cache::new(&shared.config.data_dir),
        account_lock: Arc::default(),
        metrics: shared.metrics().clone(),
        certificates: sender,
    };
    (child(args), receiver)
}

/// Creates the actor that serves the certificates of operators alone, and the channel that the data
/// plane follows.
pub(super) fn imported_only(
    node: &Arc<MemberContext>,
    imported: watch::Receiver<Imported>,
) -> (ChildSpec, watch::Receiver<Certificates>) {
    let (certificates, receiver) = watch::channel(Certificates::default());
    let args = FeedArgs {
        raft: Arc::new(node.raft.clone()),
        clock: node.clock.clone(),
        imported,
        certificates,
    };
    (feed_child(args), receiver)
}

/// Creates the actor that opens the certificates of operators, and the channel it publishes them on.
pub(super) fn imported(node: &Arc<MemberContext>) -> (ChildSpec, watch::Receiver<Imported>) {
    let (sender, receiver) = watch::channel(Imported::default());
    let args = ImportArgs {
        raft: Arc::new(node.raft.clone()),
        is_leader: leading(&node.raft),
        clock: node.clock.clone(),
        secrets_key: secrets_keys(node),
        imported: sender,
    };
    (import_child(args), receiver)
}

/// Follows the secrets key, whose actor is assembled first.
pub(super) fn secrets_keys(node: &MemberContext) -> SecretsKeys {
    let secrets = node.secrets.get();
    secrets.map_or_else(|| watch::channel(None).1, Secrets::subscribe)
}
