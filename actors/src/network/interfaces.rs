//! Interface between the bridges and the network interfaces of the host.

use std::{io, sync::Arc};

use futures::future::BoxFuture;
use jaco_net::link::{Change, Watcher};
use jaco_proto::{chain, config::advertise::Interface};
use tokio::{sync::watch, task::spawn_blocking};
use tracing::warn;

/// Shared handle to a list of interfaces.
pub type SharedInterfaces = Arc<dyn Interfaces>;

/// Prefix of the names of JACO's bridges.
const BRIDGE_PREFIX: &str = "jaco-";

/// Lists the interfaces of the host.
pub trait Interfaces: Send + Sync {
    /// Lists all interfaces with their addresses.
    ///
    /// # Errors
    /// The error of the kernel.
    fn list(&self) -> BoxFuture<'static, io::Result<Vec<Interface>>>;

    /// Number of changes of bridges so far, which include the attachment of a container; never
    /// changes by default.
    fn changes(&self) -> watch::Receiver<u64> {
        watch::Sender::new(0).subscribe()
    }
}

impl<F> Interfaces for F
where
    F: Fn() -> io::Result<Vec<Interface>> + Send + Sync,
{
    fn list(&self) -> BoxFuture<'static, io::Result<Vec<Interface>>> {
        Box::pin(std::future::ready(self()))
    }
}

/// Interfaces of the network namespace of this process, watched if the kernel permits it.
///
/// # Panics
/// Outside a tokio runtime.
#[must_use]
pub fn of_this_host() -> SharedInterfaces {
    let watcher = Watcher::open(|change| {
        let bridge = |name: &str| name.starts_with(BRIDGE_PREFIX);
        matches!(change, Change::Link { name, .. } if bridge(name)) || *change == Change::Lost
    });
    if let Err(error) = &watcher {
        warn!(
            subsystem = "bridge",
            error = chain(error),
            "interfaces not watched; deleted bridges are found within 30 s"
        );
    }
    Arc::new(HostInterfaces(watcher.ok()))
}

struct HostInterfaces(Option<Watcher>);

impl Interfaces for HostInterfaces {
    fn list(&self) -> BoxFuture<'static, io::Result<Vec<Interface>>> {
        Box::pin(async {
            let listed = spawn_blocking(jaco_net::interfaces::list).await;
            listed.unwrap_or_else(|error| Err(io::Error::other(error)))
        })
    }

    fn changes(&self) -> watch::Receiver<u64> {
        let changes = self.0.as_ref().map(Watcher::changes);
        changes.unwrap_or_else(|| watch::Sender::new(0).subscribe())
    }
}
