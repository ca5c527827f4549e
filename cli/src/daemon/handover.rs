//! Listening sockets of the ingress and the mesh device in user space across restarts of the daemon: no
//! connection is refused, and packets between machines go on.
//!
//! A service manager with a store for descriptors gets them when the daemon stops, and passes them
//! to the next process. Without one, `jacod --replace` takes them over from the running daemon,
//! which then stops.

use std::{io, path::Path, thread, time::Duration};

use anyhow::{Context, Result};
use jaco_actors::{Node, NodeConfig, StartError};
use jaco_net::handover::{
    Inherited, NamedSocket,
    channel::{self, Offer, Successor},
    store::FdStore,
};
use tokio::{sync::mpsc, task::spawn_blocking, time::sleep};

/// Name of the unix socket in the data directory on which a successor asks for the sockets.
pub(super) const SOCKET: &str = "handover.sock";
/// Beginnings of the names of what a daemon passes on.
const KEPT: [&str; 3] = ["ingress.", "port.", "mesh."];
/// Time after the start in which the ingress takes over the sockets; those that no route and no
/// published port needs any more are closed then.
pub(super) const UNUSED_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the daemon that is replaced to end.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between attempts to start while the daemon that is replaced has the data directory.
const RETRY: Duration = Duration::from_millis(50);

/// Sockets for this process: those that the service manager `passed`, or those of the running
/// daemon, which is asked to stop, with `replace`.
pub(super) fn take(
    mut passed: Vec<NamedSocket>,
    data_dir: &Path,
    replace: bool,
) -> Result<Inherited> {
    // Others were not stored by a daemon.
    passed.retain(|(name, _)| KEPT.iter().any(|kept| name.starts_with(kept)));
    if let Some(store) = FdStore::from_env() {
        for (name, _) in &passed {
            if let Err(error) = store.forget(name) {
                tracing::warn!(subsystem = "jacod", name, %error, "socket not removed from the store");
            }
        }
    }
    let mut sockets = passed;
    if replace {
        match channel::take_over(&data_dir.join(SOCKET)) {
            Ok(taken) => sockets.extend(taken.into_iter().flatten()),
            // That daemon is ending; one that is not is asked again at the start of the node.
            Err(error) if has_ended(&error) => {
                tracing::warn!(subsystem = "jacod", %error, "the running daemon passed no sockets");
            }
            Err(error) => return Err(error).context("replace the daemon"),
        }
    }
    let inherited = Inherited::new(sockets);
    let names = inherited.names();
    if !names.is_empty() {
        tracing::info!(subsystem = "jacod", sockets = ?names, "listening sockets taken over");
    }
    Ok(inherited)
}

/// Starts the node; with `replace`, once the daemon that is replaced has left the data directory.
pub(super) async fn start(config: NodeConfig, replace: bool) -> Result<Node, StartError> {
    let attempts = async {
        loop {
            match Node::start(config.clone()).await {
                Err(StartError::Files(error)) if replace && error.is_locked() => {
                    // The running daemon may have been starting at the first attempt, or may be
                    // another one now. Its sockets are newer than those of the daemon before it.
                    let taken = channel::take_over(&config.data_dir.join(SOCKET));
                    if let Ok(Some(sockets)) = taken
                        && !sockets.is_empty()
                    {
                        config.inherited.replace(sockets);
                        let config = config.clone();
                        let _ = spawn_blocking(move || config.resume_mesh()).await;
                    }
                    sleep(RETRY).await;
                }
                started => return started,
            }
        }
    };
    match tokio::time::timeout(REPLACE_TIMEOUT, attempts).await {
        Ok(started) => started,
        Err(_) => Node::start(config).await,
    }
}

/// Whether the process at the other end of a connection ended.
fn has_ended(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

/// Waits on a thread of its own for successors, until this process ends; a daemon that cannot offer
/// its sockets runs nevertheless.
pub(super) fn offer(data_dir: &Path) -> mpsc::Receiver<Successor> {
    let (sender, successors) = mpsc::channel(1);
    let offered = Offer::bind(&data_dir.join(SOCKET)).and_then(|offer| {
        let wait = move || {
            loop {
                match offer.accept() {
                    Ok(successor) => {
                        if sender.blocking_send(successor).is_err() {
                            // The daemon has stopped; the path may belong to the next one by now.
                            return std::mem::forget(offer);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(subsystem = "jacod", %error, "no successor can take over");
                        return;
                    }
                }
            }
        };
        thread::Builder::new()
            .name("handover".to_owned())
            .spawn(wait)
    });
    if let Err(error) = offered {
        tracing::warn!(subsystem = "jacod", %error, "no successor can take over");
    }
    successors
}

/// The sockets of this daemon for its successors, and its mesh device, which ends here.
pub(super) async fn sockets(node: &Node) -> Vec<NamedSocket> {
    let mut sockets = node.listening_sockets().unwrap_or_else(|error| {
        tracing::error!(subsystem = "jacod", %error, "listening sockets not handed over");
        Vec::new()
    });
    match node.release_mesh().await {
        Ok(mesh) => sockets.extend(mesh),
        Err(error) => {
            tracing::error!(subsystem = "jacod", %error, "mesh device not handed over");
        }
    }
    sockets
}

/// Passes the sockets to a successor.
pub(super) fn pass(sockets: &[NamedSocket], successor: &Successor) {
    if let Err(error) = successor.send(sockets) {
        tracing::error!(subsystem = "jacod", %error, "listening sockets not handed over");
    }
}

/// Has the service manager keep the sockets for the next process, if there is one.
pub(super) async fn keep(node: &Node) {
    let Some(store) = FdStore::from_env() else {
        return;
    };
    for (what, sockets) in [
        ("listening sockets", node.listening_sockets()),
        ("mesh device", node.mesh_descriptors().await),
    ] {
        if let Err(error) = sockets.and_then(|sockets| store.keep(&sockets)) {
            tracing::warn!(subsystem = "jacod", %error, "{what} not kept");
        }
    }
}
