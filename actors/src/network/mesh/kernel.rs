//! The kernel's links and routes, and the WireGuard device.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use jaco_engine::cidr::Cidr;
use jaco_net::{
    handover::NamedSocket,
    link::{self, Address, Change, Link, Links, Route, Target, Watcher},
    wireguard::{self, PrivateKey},
};
use jaco_policy::network::{
    mesh::{
        foreign::{
            BLACKHOLE_METRIC, ForeignRoute, INTERFACE_PREFIX, LOCAL_TABLE, RoutingRule,
            SendingRoute, foreign_routes,
        },
        plan::{DeviceRoute, DeviceState, MTU, Observed, Step},
    },
    probe::drops::Drops,
};
use jaco_proto::config::WgBackend;
use tokio::{net::lookup_host, sync::watch, task::spawn_blocking};

use super::{
    MeshPort, PortError, Resumed, device,
    port::of,
    slot::{DeviceSlot, Turn},
};
use crate::lock::lock;

/// Name of the device.
pub const DEVICE: &str = "jaco0";
/// Time limit of resolving one name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The mesh in the network namespace of this process; clones share the device.
#[derive(Clone)]
pub struct KernelPort(Arc<Inner>);

struct Inner {
    key: PrivateKey,
    port: u16,
    backend: WgBackend,
    changes: watch::Sender<u64>,
    netlink: tokio::sync::Mutex<Option<Arc<Netlink>>>,
    device: DeviceSlot,
    /// Routes whose changes are of interest.
    interest: Arc<Mutex<Interest>>,
}

/// Routes whose changes are announced.
#[derive(Default)]
struct Interest {
    /// Networks in which routes of other programs are looked for.
    networks: BTreeSet<Cidr>,
    /// Links of this node.
    links: BTreeSet<u32>,
    /// Whether such routes were found. The kernel removes the routes of a link that goes down without an
    /// announcement.
    found: bool,
}

impl Interest {
    /// Whether the change of a route may concern `networks`.
    fn is_about(&self, link: Option<u32>, to: (Ipv4Addr, u8)) -> bool {
        let (network, prefix) = to;
        let is_own = link.is_some_and(|link| self.links.contains(&link));
        let overlaps = |to: Cidr| self.networks.iter().any(|network| network.overlaps(to));
        !is_own && Cidr::new(network, prefix).is_ok_and(overlaps)
    }
}

/// Sockets of the namespace; opened again when one fails.
struct Netlink {
    links: Links,
    watcher: Watcher,
}

impl KernelPort {
    /// Creates the port of a node with this key and UDP port; opens nothing yet. `backend` is the
    /// implementation of the device.
    #[must_use]
    pub fn new(key: PrivateKey, port: u16, backend: WgBackend) -> Self {
        Self::resuming(key, port, backend, &Resumed::default())
    }

    /// As [`KernelPort::new`], with the device of an earlier process, if there is one.
    #[must_use]
    pub fn resuming(key: PrivateKey, port: u16, backend: WgBackend, resumed: &Resumed) -> Self {
        Self(Arc::new(Inner {
            key,
            port,
            backend,
            changes: watch::Sender::new(0),
            netlink: tokio::sync::Mutex::default(),
            device: DeviceSlot::with(resumed.take()),
            interest: Arc::default(),
        }))
    }

    /// State of the tunnel to each peer, which is empty without a device, and the packets that the
    /// devices dropped so far.
    pub async fn stats(&self) -> (Vec<wireguard::PeerStats>, Drops) {
        self.0.device.stats().await.unwrap_or_default()
    }

    /// Descriptors with which another process carries the packets on, by name. With `release`, this
    /// process carries none any more.
    ///
    /// # Errors
    /// If the process is out of descriptors; nothing changes then.
    pub async fn descriptors(&self, release: bool) -> Result<Vec<NamedSocket>, PortError> {
        self.0.device.descriptors(release).await
    }
}

impl MeshPort for KernelPort {
    fn look(&self, networks: BTreeSet<Cidr>) -> BoxFuture<'static, Result<Observed, PortError>> {
        let inner = Arc::clone(&self.0);
        async move { inner.look(networks).await }.boxed()
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

    fn admitted(&self) -> BoxFuture<'static, BTreeSet<Cidr>> {
        let inner = Arc::clone(&self.0);
        async move {
            match inner.device.admitted().await {
                Ok(Some(admitted)) => admitted,
                // A device of the kernel outlives its process.
                Ok(None) if inner.backend != WgBackend::Userspace => {
                    let read = spawn_blocking(|| wireguard::kernel::admitted(DEVICE)).await;
                    let networks = read.ok().and_then(Result::ok).unwrap_or_default();
                    let cidr = |(address, prefix)| Cidr::new(address, prefix).ok();
                    networks.into_iter().filter_map(cidr).collect()
                }
                Ok(None) | Err(_) => BTreeSet::new(),
            }
        }
        .boxed()
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let inner = Arc::clone(&self.0);
        async move {
            let device = inner.device.clone();
            let removal = async move {
                let netlink = inner.netlink().await.map_err(of)?;
                device::remove_link(&netlink.links).await.map_err(of)
            };
            if let Err(error) = device.close(removal).await {
                tracing::warn!(subsystem = "wgmesh", %error, "the mesh device may be left");
            }
        }
        .boxed()
    }
}

impl Inner {
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
        let interest = Arc::clone(&self.interest);
        let watcher = Watcher::open(move |change| {
            let mut interest = lock(&interest);
            let relevant = match change {
                Change::Link { index, name } if name == DEVICE => {
                    device = Some(*index);
                    true
                }
                Change::Link { index, name } if name.starts_with(INTERFACE_PREFIX) => {
                    interest.links.insert(*index);
                    false
                }
                Change::Link { .. } => interest.found,
                Change::Address(index) => device == Some(*index),
                Change::Route { link, ours, .. }
                    if *ours || device.is_some() && *link == device =>
                {
                    true
                }
                Change::Route { link, to, .. } => interest.is_about(*link, *to),
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

    async fn look(self: Arc<Self>, networks: BTreeSet<Cidr>) -> Result<Observed, PortError> {
        // A change during the look is announced, and causes another one.
        lock(&self.interest).networks.clone_from(&networks);
        let foreign = self.foreign_routes(&networks).await.map_err(of)?;
        let device = self.device.clone();
        let observed = device.run(|turn| self.look_in(turn)).await?;
        Ok(Observed {
            foreign,
            ..observed
        })
    }

    /// Looks for routes of other programs that take packets to `networks`.
    async fn foreign_routes(
        &self,
        networks: &BTreeSet<Cidr>,
    ) -> Result<BTreeSet<ForeignRoute>, link::Error> {
        let netlink = self.netlink().await?;
        let links = &netlink.links;
        let rules: Vec<RoutingRule> = links.rules().await?.into_iter().map(rule).collect();
        let asked: BTreeSet<u32> = rules.iter().map(|rule| rule.table).collect();
        let overlaps = |to: Cidr| networks.iter().any(|network| network.overlaps(to));
        let is_wanted = |table, (network, prefix)| {
            table != LOCAL_TABLE
                && asked.contains(&table)
                && Cidr::new(network, prefix).is_ok_and(overlaps)
        };
        let routes = links.sending_routes(is_wanted).await?;
        let names = links.names().await?;
        let sending = |route: link::SendingRoute| {
            let name = |link: &u32| names.get(link).cloned();
            Some(SendingRoute {
                table: route.table,
                to: Cidr::new(route.network, route.prefix).ok()?,
                metric: route.metric,
                interfaces: route.links.iter().filter_map(name).collect(),
            })
        };
        let routes: Vec<SendingRoute> = routes.into_iter().filter_map(sending).collect();
        let foreign = foreign_routes(networks, &rules, &routes);
        let own = names
            .iter()
            .filter(|(_, name)| name.starts_with(INTERFACE_PREFIX));
        let mut interest = lock(&self.interest);
        interest.links = own.map(|(link, _)| *link).collect();
        interest.found = !foreign.is_empty();
        Ok(foreign)
    }

    /// Reads the link, the routes and the device while no operation changes the device.
    async fn look_in(self: Arc<Self>, turn: Turn) -> Result<Observed, PortError> {
        let netlink = self.netlink().await.map_err(of)?;
        let link = netlink.links.link(DEVICE).await.map_err(of)?;
        let index = link.as_ref().map(|link| link.index);
        let routes = netlink.links.routes(index).await.map_err(of)?;
        let blackholes = routes
            .iter()
            .filter(|route| route.target == Target::Blackhole);
        let observed = Observed {
            blackholes: blackholes.filter_map(|route| cidr(*route)).collect(),
            ..Observed::default()
        };
        let Some(link) = link else {
            return Ok(observed);
        };
        let (_turn, found) = turn.inspect(link.index).await?;
        let Some((peers, altered)) = found else {
            return Ok(observed);
        };
        let addresses = netlink.links.addresses(link.index).await.map_err(of)?;
        let device = DeviceState {
            up: link.up && link.mtu == u32::from(MTU),
            addresses: addresses.into_iter().map(|address| address.ip).collect(),
            routes: routes.into_iter().filter_map(device_route).collect(),
            peers,
            altered,
        };
        Ok(Observed {
            device: Some(device),
            ..observed
        })
    }

    async fn apply(self: Arc<Self>, step: Step) -> Result<(), PortError> {
        match step {
            Step::OpenDevice => return self.open().await,
            Step::SetPeers(peers) => return self.device.set_peers(peers).await,
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
                    Step::ReplaceRoute(route) => links.replace_route(over(index, route)).await,
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
        let device = self.device.clone();
        let opening = async move {
            let netlink = self.netlink().await.map_err(of)?;
            device::open(&netlink.links, self.backend, &self.key, self.port).await
        };
        device.open(opening).await
    }
}

/// Removes the routes, and the kernel's device, that a member leaves behind for the time in which its
/// daemon does not run.
///
/// # Errors
/// When the kernel refuses.
pub async fn leave() -> Result<(), link::Error> {
    let links = Links::open()?;
    device::remove_link(&links).await?;
    for route in links.routes(None).await? {
        if route.target == Target::Blackhole {
            links.remove_route(route).await?;
        }
    }
    Ok(())
}

/// A rule as a value of the core.
fn rule(rule: link::RoutingRule) -> RoutingRule {
    let block = |(address, prefix)| Cidr::new(address, prefix).ok();
    RoutingRule {
        priority: rule.priority,
        table: rule.table,
        from: rule.from.and_then(block),
        to: rule.to.and_then(block),
        interface: rule.interface,
        marked: rule.marked,
        partial: rule.partial,
        inverted: rule.inverted,
        suppressed: rule.suppressed,
    }
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

#[cfg(test)]
mod tests;
