//! Start, signals and shutdown of the daemon process.

use std::time::Duration;

use anyhow::{Context, Result};
use jaco_actors::Node;
use jaco_net::{
    handover::store::FdStore,
    process::{Passed, exit_now},
};
use jaco_proto::config::{DaemonConfig, Isolation};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{config, handover};
use crate::version;

/// Maximum number of tokio workers; raft has threads of its own.
const WORKERS: usize = 4;
/// Time for the actors to stop, after the calls in progress were answered.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Exit status after a signal.
const SUCCESS_STATUS: i32 = 0;
/// Exit status after a fatal error.
const FAILURE_STATUS: i32 = 1;
/// Exit status after a second signal.
const SECOND_SIGNAL_STATUS: i32 = 130;

/// Options of the command line.
pub(super) struct Options {
    /// Operators may terminate actors.
    pub(super) fault_injection: bool,
    /// Replace the daemon that runs on the same data directory.
    pub(super) replace: bool,
}

/// Runs a node until a signal or a fatal error, or until another daemon replaces it.
///
/// `passed` are the descriptors that a service manager passed, among them the control socket and the
/// sockets of the ingress.
pub(super) fn run(config: &DaemonConfig, passed: Passed, options: Options) -> Result<()> {
    tracing::info!(subsystem = "jacod", version = version(), "starting");
    if config.isolation == Isolation::Off {
        tracing::warn!(
            subsystem = "jacod",
            "isolation is off: every container reaches every other"
        );
    }
    if std::env::var_os("JACO_INGRESS_EXEC").is_some() {
        tracing::warn!(subsystem = "jacod", "JACO_INGRESS_EXEC has no meaning here");
    }
    let mut node = config::node(config, passed.control, options.fault_injection)?;
    let inherited = handover::take(passed.named, &node.data_dir, options.replace)?;
    node.inherited = inherited.clone();
    node.resume_mesh();
    let workers = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .min(WORKERS);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let result = runtime.block_on(async {
        let mut signals = Signals::new().context("listen for signals")?;
        let data_dir = node.data_dir.clone();
        let node = handover::start(node, options.replace)
            .await
            .context("start the node")?;
        let mut successors = handover::offer(&data_dir);
        let replaced = async {
            match successors.recv().await {
                Some(successor) => successor,
                None => std::future::pending().await,
            }
        };
        let close_unused = async {
            tokio::time::sleep(handover::UNUSED_TIMEOUT).await;
            let unused = inherited.close();
            if !unused.is_empty() {
                tracing::info!(subsystem = "jacod", sockets = ?unused, "unused sockets closed");
            }
            std::future::pending().await
        };
        let ready = async {
            node.isolation_tested().await;
            notify(NotifyState::Ready);
            std::future::pending().await
        };
        tokio::select! {
            () = ready => Ok(()),
            ended = node.join() => {
                notify(NotifyState::Stopping);
                let stopped = stop_actors(&node).await;
                let ended = ended.context("the node cannot go on");
                match &ended {
                    Err(error) if !stopped => {
                        tracing::error!(subsystem = "jacod", "{error:#}");
                        exit_now(FAILURE_STATUS)
                    }
                    Ok(()) | Err(_) => ended,
                }
            }
            () = close_unused => Ok(()),
            successor = replaced => {
                tracing::info!(subsystem = "jacod", "stopping: another daemon takes over");
                notify(NotifyState::Stopping);
                let sockets = handover::sockets(&node).await;
                handover::pass(&sockets, &successor);
                // The successor may be killed before it serves: the next one gets the same sockets,
                // which stay open here until this process ends.
                let others = async {
                    while let Some(successor) = successors.recv().await {
                        handover::pass(&sockets, &successor);
                    }
                    std::future::pending().await
                };
                tokio::select! {
                    () = stop(&node, &mut signals) => Ok(()),
                    never = others => never,
                }
            }
            () = signals.next() => {
                tracing::info!(subsystem = "jacod", "stopping");
                notify(NotifyState::Stopping);
                handover::keep(&node).await;
                stop(&node, &mut signals).await;
                Ok(())
            }
        }
    });
    // A blocking task that hangs must not delay the exit.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Stops the node; exits the process if it does not stop in time, or at a second signal.
async fn stop(node: &Node, signals: &mut Signals) {
    let stop = async {
        node.drain().await;
        node.hand_over().await;
        if !stop_actors(node).await {
            exit_now(SUCCESS_STATUS);
        }
    };
    tokio::select! {
        () = stop => {}
        () = signals.next() => {
            tracing::warn!(
                subsystem = "jacod",
                "second signal received: exiting immediately"
            );
            exit_now(SECOND_SIGNAL_STATUS)
        }
    }
}

/// Stops the actors; returns whether they stopped in time. If not, a thread may wait for the disk
/// without end, and so would the destructors of the database: exit at once.
async fn stop_actors(node: &Node) -> bool {
    let stopped = tokio::time::timeout(STOP_TIMEOUT, node.abandon()).await;
    if stopped.is_err() {
        tracing::warn!(subsystem = "jacod", "actors did not stop in time");
    }
    stopped.is_ok()
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Notifies the service manager, if there is one.
fn notify(state: NotifyState<'_>) {
    let Some(manager) = FdStore::from_env() else {
        return;
    };
    if let Err(error) = manager.notify(&state.to_string()) {
        tracing::warn!(subsystem = "jacod", %error, "systemd was not notified");
    }
}
