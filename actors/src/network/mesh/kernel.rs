//! The kernel's links and routes, and the WireGuard device in user space.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use jaco_engine::cidr::Cidr;
use jaco_net::{
    link::{self, Address, Change, Link, Links, Route, Target, Watcher},
    wireguard::{self, Config, Device, PrivateKey, PublicKey},
};
use jaco_policy::network::mesh::{
    plan::{DeviceRoute, DeviceState, MTU, Observed, Peer, Step},
    wanted::KEEPALIVE,
};
use jaco_proto::chain;
use tokio::{net::lookup_host, sync::watch, task::spawn_blocking};

use super::{MeshPort, PortError};
use crate::lock::lock;

/// Name of the device.
pub const DEVICE: &str = "jaco0";
/// Metric of blackhole routes: any other route to a block is better.
const BLACKHOLE_METRIC: u32 = 19_009;
/// Time limit of resolving one name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The mesh in the network namespace of this process; clones share the device.
#[derive(Clone)]
pub struct KernelPort(Arc<Inner>);

struct Inner {
    key: PrivateKey,
    port: u16,
    changes: watch::Sender<u64>,
    netlink: tokio::sync::Mutex<Option<Arc<Netlink>>>,
    device: Mutex<Option<Opened>>,
}

/// A device and the peers that it was given.
struct Opened {
    device: Arc<Device>,
    peers: Vec<Peer>,
}

/// Sockets of the namespace; opened again when one fails.
struct Netlink {
    links: Links,
    watcher: Watcher,
}

impl KernelPort {
    /// Creates the port of a node with this key and UDP port; opens nothing yet.
    #[must_use]
    pub fn new(key: PrivateKey, port: u16) -> Self {
        Self(Arc::new(Inner {
            key,
            port,
            changes: watch::Sender::new(0),
            netlink: tokio::sync::Mutex::default(),
            device: Mutex::default(),
        }))
    }

    /// State of the tunnel to each peer; empty without a device.
    pub async fn stats(&self) -> Vec<wireguard::PeerStats> {
        let inner = Arc::clone(&self.0);
        let stats = spawn_blocking(move || inner.device().map(|device| device.stats()));
        stats.await.ok().flatten().unwrap_or_default()
    }
}

impl MeshPort for KernelPort {
    fn look(&self) -> BoxFuture<'static, Result<Observed, PortError>> {
        let inner = Arc::clone(&self.0);
        async move { inner.look().await.map_err(of) }.boxed()
    }

    fn apply(&self, step: Step) -> BoxFuture<'static, Result<(), PortError>> {
        let inner = Arc::clone(&self.0);
        async move { inner.apply(step).await }.boxed()
    }

    fn resolve(&self, name: String) -> BoxFuture<'static, Option<Ipv4Addr>> {
        async move {
            let found = tokio::time::timeout(RESOLVE_TIMEOUT, lookup_host((name, 0)));
            let mut found = found.await.ok()?.ok()?;
            found.find_map(|address| match address.ip() {
                IpAddr::V4(ip) => Some(ip),
                IpAddr::V6(_) => None,
            })
        }
        .boxed()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let inner = Arc::clone(&self.0);
        async move {
            // The end of a device waits for its threads.
            let _ = spawn_blocking(move || drop(lock(&inner.device).take())).await;
        }
        .boxed()
    }
}

impl Drop for Inner {
    /// The end of a device waits for its threads, so it must not happen on an async thread.
    fn drop(&mut self) {
        if let Some(opened) = lock(&self.device).take() {
            std::thread::spawn(move || drop(opened));
        }
    }
}

impl Inner {
    fn device(&self) -> Option<Arc<Device>> {
        lock(&self.device)
            .as_ref()
            .map(|opened| Arc::clone(&opened.device))
    }

    async fn netlink(&self) -> Result<Arc<Netlink>, link::Error> {
        let mut slot = self.netlink.lock().await;
        if let Some(netlink) = &*slot
            && netlink.watcher.changes().has_changed().is_ok()
        {
            return Ok(Arc::clone(netlink));
        }
        let links = Links::open()?;
        // The number of the link, once it was announced.
        let mut device = links.link(DEVICE).await?.map(|link| link.index);
        let changes = self.changes.clone();
        let watcher = Watcher::open(move |change| {
            let relevant = match change {
                Change::Link { index, name } if name == DEVICE => {
                    device = Some(*index);
                    true
                }
                Change::Link { .. } => false,
                Change::Address(index) => device == Some(*index),
                Change::Route { link, ours } => *ours || (link.is_some() && *link == device),
                _ => true,
            };
            if relevant {
                changes.send_modify(|count| *count = count.wrapping_add(1));
            }
            relevant
        })?;
        let netlink = Arc::new(Netlink { links, watcher });
        *slot = Some(Arc::clone(&netlink));
        Ok(netlink)
    }

    async fn look(&self) -> Result<Observed, link::Error> {
        let netlink = self.netlink().await?;
        let link = netlink.links.link(DEVICE).await?;
        let index = link.as_ref().map(|link| link.index);
        let routes = netlink.links.routes(index).await?;
        let blackholes = routes
            .iter()
            .filter(|route| route.target == Target::Blackhole);
        let observed = Observed {
            blackholes: blackholes.filter_map(|route| cidr(*route)).collect(),
            device: None,
        };
        let peers = match &*lock(&self.device) {
            Some(opened) => match opened.device.failure() {
                None => opened.peers.clone(),
                Some(reason) => {
                    tracing::warn!(subsystem = "wgmesh", %reason, "the mesh device failed");
                    return Ok(observed);
                }
            },
            None => return Ok(observed),
        };
        let Some(link) = link else {
            return Ok(observed);
        };
        let addresses = netlink.links.addresses(link.index).await?;
        let device = DeviceState {
            up: link.up && link.mtu == u32::from(MTU),
            addresses: addresses.into_iter().map(|address| address.ip).collect(),
            routes: routes.into_iter().filter_map(device_route).collect(),
            peers,
        };
        Ok(Observed {
            device: Some(device),
            ..observed
        })
    }

    async fn apply(self: Arc<Self>, step: Step) -> Result<(), PortError> {
        match step {
            Step::OpenDevice => return self.open().await,
            Step::SetPeers(peers) => return self.set_peers(peers).await,
            _ => {}
        }
        let netlink = self.netlink().await.map_err(of)?;
        let links = &netlink.links;
        let done = match step {
            Step::AddBlackhole(cidr) => links.add_route(blackhole(cidr)).await,
            Step::RemoveBlackhole(cidr) => links.remove_route(blackhole(cidr)).await,
            step => {
                let link = links.link(DEVICE).await.map_err(of)?;
                let Link { index, .. } =
                    link.ok_or_else(|| PortError(format!("the link {DEVICE} is gone")))?;
                match step {
                    Step::SetUp => links.set_up(index, MTU.into()).await,
                    Step::AddAddress(ip) => {
                        links.add_address(index, Address { ip, prefix: 32 }).await
                    }
                    Step::RemoveAddress(ip) => remove_address(links, index, ip).await,
                    Step::AddRoute(route) => links.add_route(over(index, route)).await,
                    Step::RemoveRoute(route) => links.remove_route(over(index, route)).await,
                    // Handled above.
                    Step::OpenDevice
                    | Step::SetPeers(_)
                    | Step::AddBlackhole(_)
                    | Step::RemoveBlackhole(_) => Ok(()),
                }
            }
        };
        done.map_err(of)
    }

    async fn open(self: Arc<Self>) -> Result<(), PortError> {
        let opened = spawn_blocking(move || {
            let mut slot = lock(&self.device);
            // Its name and its port must be free first.
            drop(slot.take());
            let config = Config {
                name: DEVICE.to_owned(),
                mtu: MTU,
                private_key: self.key.clone(),
                port: self.port,
                workers: None,
            };
            let device = Device::open(config).map_err(of)?;
            *slot = Some(Opened {
                device: Arc::new(device),
                peers: Vec::new(),
            });
            tracing::info!(subsystem = "wgmesh", device = DEVICE, "mesh device opened");
            Ok(())
        });
        opened.await.map_err(of)?
    }

    async fn set_peers(self: Arc<Self>, peers: Vec<Peer>) -> Result<(), PortError> {
        let set = spawn_blocking(move || {
            let mut slot = lock(&self.device);
            let Some(opened) = &mut *slot else {
                return Err(PortError("the mesh device is not open".to_owned()));
            };
            set_valid_peers(&opened.device, &peers).map_err(of)?;
            opened.peers = peers;
            Ok(())
        });
        set.await.map_err(of)?
    }
}

/// Sets the peers. One that the device refuses, such as one with an impossible key, is left out: a
/// single member must not stop the mesh.
fn set_valid_peers(device: &Device, peers: &[Peer]) -> Result<(), wireguard::Error> {
    let mut left: Vec<&Peer> = peers.iter().collect();
    loop {
        let given = left.iter().map(|peer| wireguard::Peer {
            public_key: PublicKey(peer.public_key),
            endpoint: Some(SocketAddr::V4(peer.endpoint)),
            allowed_ips: peer
                .allowed_ips
                .iter()
                .map(|cidr| (cidr.network(), cidr.prefix()))
                .collect(),
            keepalive: Some(KEEPALIVE),
        });
        let Err(error) = device.set_peers(given.collect()) else {
            return Ok(());
        };
        let before = left.len();
        match &error {
            wireguard::Error::InvalidPeer(key) => left.retain(|peer| peer.public_key != key.0),
            wireguard::Error::InvalidEndpoint(endpoint) => {
                left.retain(|peer| SocketAddr::V4(peer.endpoint) != *endpoint);
            }
            _ => {}
        }
        if left.len() == before {
            return Err(error);
        }
        tracing::warn!(
            subsystem = "wgmesh",
            error = chain(&error),
            "member left out of the mesh"
        );
    }
}

/// Removes the routes that a member leaves behind for the time in which its daemon does not run.
///
/// # Errors
/// When the kernel refuses.
pub async fn leave() -> Result<(), link::Error> {
    let links = Links::open()?;
    for route in links.routes(None).await? {
        if route.target == Target::Blackhole {
            links.remove_route(route).await?;
        }
    }
    Ok(())
}

fn blackhole(cidr: Cidr) -> Route {
    Route {
        network: cidr.network(),
        prefix: cidr.prefix(),
        target: Target::Blackhole,
        source: None,
        metric: BLACKHOLE_METRIC,
    }
}

fn over(index: u32, route: DeviceRoute) -> Route {
    Route {
        network: route.to.network(),
        prefix: route.to.prefix(),
        target: Target::Link(index),
        source: route.source,
        metric: route.metric,
    }
}

fn device_route(route: Route) -> Option<DeviceRoute> {
    match route.target {
        Target::Blackhole => None,
        Target::Link(_) => Some(DeviceRoute {
            to: cidr(route)?,
            source: route.source,
            metric: route.metric,
        }),
    }
}

fn cidr(route: Route) -> Option<Cidr> {
    Cidr::new(route.network, route.prefix).ok()
}

async fn remove_address(links: &Links, index: u32, ip: Ipv4Addr) -> Result<(), link::Error> {
    for address in links.addresses(index).await? {
        if address.ip == ip {
            links.remove_address(index, address).await?;
        }
    }
    Ok(())
}

fn of(error: impl std::error::Error) -> PortError {
    PortError(chain(&error))
}

#[cfg(test)]
mod tests;
