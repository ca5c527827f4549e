//! Steps from the mesh that the kernel has to the one that is wanted.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
};

use jaco_engine::cidr::Cidr;

use super::{address::network, foreign::ForeignRoute, wanted::Wanted};

/// MTU of the device in bytes; leaves room for the tunnel's headers in a frame of 1500.
pub const MTU: u16 = 1420;

/// A peer as the device knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of the node.
    pub hostname: String,
    /// Its Curve25519 key.
    pub public_key: [u8; 32],
    /// Address to send to until the peer is seen at another one.
    pub endpoint: SocketAddrV4,
    /// Networks behind it.
    pub allowed_ips: BTreeSet<Cidr>,
}

/// A route over the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceRoute {
    /// Destinations.
    pub to: Cidr,
    /// Source address of packets of this machine.
    pub source: Option<Ipv4Addr>,
    /// Metric; 0 on wanted routes.
    pub metric: u32,
}

/// The mesh that the kernel has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Blocks whose packets are discarded unless a better route exists.
    pub blackholes: BTreeSet<Cidr>,
    /// Routes of other programs that take packets of the mesh. No step changes them.
    pub foreign: BTreeSet<ForeignRoute>,
    /// The working device; `None` if it has failed or was never opened.
    pub device: Option<DeviceState>,
}

/// State of a working device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// Whether the link is up with its [`MTU`].
    pub up: bool,
    /// IPv4 addresses of the link.
    pub addresses: BTreeSet<Ipv4Addr>,
    /// IPv4 routes over the link.
    pub routes: BTreeSet<DeviceRoute>,
    /// Peers that the device was given.
    pub peers: Vec<Peer>,
    /// Whether another program changed them since.
    pub altered: bool,
}

/// A change of the kernel or of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Discard packets to a block unless a better route exists.
    AddBlackhole(Cidr),
    /// Replace the device, if there is one, by a new one without peers.
    OpenDevice,
    /// Set the link up with its [`MTU`].
    SetUp,
    /// Add an address to the link, with a prefix of 32 bits.
    AddAddress(Ipv4Addr),
    /// Replace the set of peers; unchanged peers keep their sessions.
    SetPeers(Vec<Peer>),
    /// Remove a route over the link.
    RemoveRoute(DeviceRoute),
    /// Add a route over the link.
    AddRoute(DeviceRoute),
    /// Replace the route over the link that has the same destinations and metric.
    ReplaceRoute(DeviceRoute),
    /// Remove an address from the link.
    RemoveAddress(Ipv4Addr),
    /// Remove the blackhole of a block.
    RemoveBlackhole(Cidr),
}

impl Step {
    /// Whether the steps after this one need it.
    #[must_use]
    pub fn is_required(&self) -> bool {
        match self {
            Self::OpenDevice | Self::SetUp | Self::AddAddress(_) => true,
            Self::AddBlackhole(_)
            | Self::SetPeers(_)
            | Self::RemoveRoute(_)
            | Self::AddRoute(_)
            | Self::ReplaceRoute(_)
            | Self::RemoveAddress(_)
            | Self::RemoveBlackhole(_) => false,
        }
    }
}

/// Reason why some steps of a plan were not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyError {
    /// Error of the first of them.
    pub reason: String,
    /// Blocks that have no route over the device for it; `None` if more than routes is lacking.
    pub unreached: Option<BTreeSet<Cidr>>,
}

impl From<String> for ApplyError {
    fn from(reason: String) -> Self {
        let unreached = None;
        Self { reason, unreached }
    }
}

impl ApplyError {
    /// Adds the failure of a step to those of earlier ones.
    #[must_use]
    pub fn with(earlier: Option<Self>, step: &Step, reason: String) -> Self {
        let mut failure = earlier.unwrap_or(Self {
            reason,
            unreached: Some(BTreeSet::new()),
        });
        match step {
            Step::AddRoute(route) | Step::ReplaceRoute(route) => {
                failure
                    .unreached
                    .iter_mut()
                    .for_each(|blocks| blocks.extend([route.to]));
            }
            // Excess routes and addresses lead no packet away from a block.
            Step::RemoveRoute(_) | Step::RemoveAddress(_) | Step::RemoveBlackhole(_) => {}
            Step::AddBlackhole(_)
            | Step::OpenDevice
            | Step::SetUp
            | Step::AddAddress(_)
            | Step::SetPeers(_) => failure.unreached = None,
        }
        failure
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AddBlackhole(cidr) => write!(f, "add blackhole {cidr}"),
            Self::OpenDevice => f.write_str("open device"),
            Self::SetUp => f.write_str("set link up"),
            Self::AddAddress(ip) => write!(f, "add address {ip}"),
            Self::SetPeers(peers) => write!(f, "set {} peers", peers.len()),
            Self::RemoveRoute(route) => write!(f, "remove route {}", route.to),
            Self::AddRoute(route) => write!(f, "add route {}", route.to),
            Self::ReplaceRoute(route) => write!(f, "replace route {}", route.to),
            Self::RemoveAddress(ip) => write!(f, "remove address {ip}"),
            Self::RemoveBlackhole(cidr) => write!(f, "remove blackhole {cidr}"),
        }
    }
}

/// Returns the peers whose endpoint is known, and the names that are not resolved. `resolved` has
/// the addresses of the names.
#[must_use]
pub fn resolve_peers<'a>(
    wanted: &'a Wanted,
    resolved: &BTreeMap<String, Ipv4Addr>,
) -> (Vec<Peer>, Vec<&'a str>) {
    let (mut peers, mut unresolved) = (Vec::new(), Vec::new());
    for peer in &wanted.peers {
        let ip = match peer.literal() {
            Ok(ip) => ip,
            Err(name) => match resolved.get(name) {
                Some(ip) => *ip,
                None => {
                    unresolved.push(name);
                    continue;
                }
            },
        };
        peers.push(Peer {
            hostname: peer.hostname.clone(),
            public_key: peer.public_key,
            endpoint: SocketAddrV4::new(ip, peer.port),
            allowed_ips: peer.allowed_ips.clone(),
        });
    }
    (peers, unresolved)
}

/// Computes the steps to `wanted` with these peers; none if nothing differs.
///
/// Blackholes come first, so that no packet to another host's block or node leaves this node over
/// its default route while the device is down, and are removed last.
#[must_use]
pub fn plan(wanted: &Wanted, peers: Vec<Peer>, observed: &Observed) -> Vec<Step> {
    let missing = wanted.blackholes.difference(&observed.blackholes);
    let mut steps: Vec<Step> = missing.map(|cidr| Step::AddBlackhole(*cidr)).collect();
    let new = DeviceState::default();
    let device = match &observed.device {
        Some(device) => device,
        None => {
            steps.push(Step::OpenDevice);
            &new
        }
    };
    if !device.up {
        steps.push(Step::SetUp);
    }
    if !device.addresses.contains(&wanted.address) {
        steps.push(Step::AddAddress(wanted.address));
    }
    if device.peers != peers || device.altered {
        steps.push(Step::SetPeers(peers));
    }
    steps.extend(route_steps(wanted, device));
    let former = mesh_addresses(device).filter(|ip| *ip != wanted.address);
    steps.extend(former.map(Step::RemoveAddress));
    let unwanted = observed.blackholes.difference(&wanted.blackholes);
    steps.extend(unwanted.map(|cidr| Step::RemoveBlackhole(*cidr)));
    steps
}

/// Computes the steps of a node that is no member any more; none if nothing is left of its mesh but
/// an empty device.
#[must_use]
pub fn teardown(observed: &Observed) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some(device) = &observed.device {
        if !device.peers.is_empty() || device.altered {
            steps.push(Step::SetPeers(Vec::new()));
        }
        steps.extend(device.routes.iter().copied().map(Step::RemoveRoute));
        steps.extend(mesh_addresses(device).map(Step::RemoveAddress));
    }
    let blackholes = observed.blackholes.iter().copied();
    steps.extend(blackholes.map(Step::RemoveBlackhole));
    steps
}

/// Addresses of the mesh network; the others of the link are an operator's.
fn mesh_addresses(device: &DeviceState) -> impl Iterator<Item = Ipv4Addr> {
    let addresses = device.addresses.iter().copied();
    addresses.filter(|ip| Cidr::new(*ip, 32).is_ok_and(|ip| ip.overlaps(network())))
}

fn route_steps(wanted: &Wanted, device: &DeviceState) -> Vec<Step> {
    let routes = wanted.routes().into_iter().map(|to| DeviceRoute {
        to,
        source: Some(wanted.address),
        metric: 0,
    });
    let routes: BTreeSet<DeviceRoute> = routes.collect();
    let place = |route: &DeviceRoute| (route.to, route.metric);
    let wanted: BTreeSet<_> = routes.iter().map(place).collect();
    let present: BTreeSet<_> = device.routes.iter().map(place).collect();
    let removed = device
        .routes
        .iter()
        .filter(|route| !wanted.contains(&(route.to, route.metric)));
    // A replaced route is never missing in between, when the blackhole would take its packets.
    let set = routes.difference(&device.routes).map(|route| {
        if present.contains(&place(route)) {
            Step::ReplaceRoute(*route)
        } else {
            Step::AddRoute(*route)
        }
    });
    let removed = removed.copied().map(Step::RemoveRoute);
    set.chain(removed).collect()
}

#[cfg(test)]
mod tests;
