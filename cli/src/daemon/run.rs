//! The life of the daemon process.

use std::time::Duration;

use anyhow::{Context, Result};
use jaco_actors::Node;
use jaco_proto::config::{DaemonConfig, Isolation};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::config;
use crate::version;

/// Threads for everything but raft, which has its own.
const WORKERS: usize = 4;
/// Time for a graceful stop of the actors.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Exit status after an impatient operator's second signal.
const IMPATIENT: i32 = 130;

/// Runs a node until it is told to stop or cannot go on.
pub(super) fn run(config: &DaemonConfig, fault_injection: bool) -> Result<()> {
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
    let node = config::node(config, fault_injection)?;
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
        let node = Node::start(node).await.context("start the node")?;
        notify_ready();
        tokio::select! {
            ended = node.join() => {
                if tokio::time::timeout(STOP_TIMEOUT, node.abandon()).await.is_err() {
                    tracing::warn!(subsystem = "jacod", "actors did not stop in time");
                }
                ended.context("the node cannot go on")
            }
            () = signals.next() => {
                tracing::info!(subsystem = "jacod", "stopping");
                tokio::select! {
                    stopped = tokio::time::timeout(STOP_TIMEOUT, node.stop()) => {
                        if stopped.is_err() {
                            tracing::warn!(subsystem = "jacod", "actors did not stop in time");
                        }
                        Ok(())
                    }
                    () = signals.next() => std::process::exit(IMPATIENT),
                }
            }
        }
    });
    // A blocking task that hangs must not keep a stopped daemon alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
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

/// Tells systemd, if it asked, that the node is up.
fn notify_ready() {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::warn!(subsystem = "jacod", %error, "readiness was not reported");
    }
}
