//! Interface between the bridges and the network interfaces of the host.

use std::{io, net::Ipv4Addr, sync::Arc};

use futures::future::BoxFuture;
use jaco_net::link::{self, Address, Change, Links, Watcher};
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

    /// Sets a bridge up, and gives it the address of its gateway with this length of the prefix; what it
    /// has already stays. Unsupported by default.
    ///
    /// # Errors
    /// The error of the kernel.
    fn restore(
        &self,
        bridge: String,
        gateway: (Ipv4Addr, u8),
    ) -> BoxFuture<'static, io::Result<()>> {
        let _ = (bridge, gateway);
        Box::pin(std::future::ready(Err(io::ErrorKind::Unsupported.into())))
    }

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
        match change {
            Change::Link { name, .. } => bridge(name),
            // Few addresses of a host ever change.
            Change::Address(_) | Change::Lost => true,
            _ => false,
        }
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

    fn restore(
        &self,
        bridge: String,
        gateway: (Ipv4Addr, u8),
    ) -> BoxFuture<'static, io::Result<()>> {
        Box::pin(async move {
            let restored = restore(&bridge, gateway).await;
            restored.map_err(io::Error::other)
        })
    }

    fn changes(&self) -> watch::Receiver<u64> {
        let changes = self.0.as_ref().map(Watcher::changes);
        changes.unwrap_or_else(|| watch::Sender::new(0).subscribe())
    }
}

async fn restore(bridge: &str, (ip, prefix): (Ipv4Addr, u8)) -> Result<(), link::Error> {
    let links = Links::open()?;
    // One that is gone is found as missing.
    let Some(link) = links.link(bridge).await? else {
        return Ok(());
    };
    links
        .add_address(link.index, Address { ip, prefix })
        .await?;
    if !link.up {
        links.set_up(link.index, link.mtu).await?;
    }
    Ok(())
}
