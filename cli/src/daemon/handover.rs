//! Listening sockets of the ingress across restarts of the daemon: no connection is refused.
//!
//! A service manager with a store for descriptors gets them when the daemon stops, and passes them
//! to the next process. Without one, `jacod --replace` takes them over from the running daemon,
//! which then stops.

use std::{path::Path, thread, time::Duration};

use anyhow::{Context, Result};
use jaco_actors::{Node, NodeConfig, StartError};
use jaco_net::handover::{
    Inherited, NamedSocket,
    channel::{self, Offer, Successor},
    store::FdStore,
};
use tokio::{sync::mpsc, time::sleep};

/// Name of the unix socket in the data directory on which a successor asks for the sockets.
pub(super) const SOCKET: &str = "handover.sock";
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
    passed.retain(|(name, _)| name.starts_with("ingress.") || name.starts_with("port."));
    if let Some(store) = FdStore::from_env() {
        for (name, _) in &passed {
            if let Err(error) = store.forget(name) {
                tracing::warn!(subsystem = "jacod", name, %error, "socket not removed from the store");
            }
        }
    }
    let mut sockets = passed;
    if replace {
        let taken = channel::take_over(&data_dir.join(SOCKET)).context("replace the daemon")?;
        sockets.extend(taken.into_iter().flatten());
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
                    // The running daemon may have been starting at the first attempt.
                    let taken = channel::take_over(&config.data_dir.join(SOCKET));
                    config
                        .inherited
                        .add(taken.ok().flatten().unwrap_or_default());
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

/// Waits on a thread of its own for a successor; a daemon that cannot offer its sockets runs
/// nevertheless.
pub(super) fn offer(data_dir: &Path) -> mpsc::Receiver<Successor> {
    let (sender, successors) = mpsc::channel(1);
    let offered = Offer::bind(&data_dir.join(SOCKET)).and_then(|offer| {
        let wait = move || match offer.accept() {
            // An error means that the daemon is stopping.
            Ok(successor) => drop(sender.blocking_send(successor)),
            Err(error) => {
                tracing::warn!(subsystem = "jacod", %error, "no successor can take over");
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

/// Hands the sockets to the successor.
pub(super) fn pass(node: &Node, successor: &Successor) {
    let passed = node
        .listening_sockets()
        .and_then(|sockets| successor.send(&sockets));
    if let Err(error) = passed {
        tracing::error!(subsystem = "jacod", %error, "listening sockets not handed over");
    }
}

/// Has the service manager keep the sockets for the next process, if there is one.
pub(super) fn keep(node: &Node) {
    let Some(store) = FdStore::from_env() else {
        return;
    };
    let kept = node
        .listening_sockets()
        .and_then(|sockets| store.keep(&sockets));
    if let Err(error) = kept {
        tracing::warn!(subsystem = "jacod", %error, "listening sockets not kept");
    }
}
