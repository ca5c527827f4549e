//! Published ports of the state with the replicas that serve them, as seen from one node.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
};

use jaco_proto::v1::{self, TransportProtocol};
use jaco_state::State;

use super::table::{NodeFacts, address, wanted};

/// A published port; displayed as `5432/tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortKey {
    /// The port, 1 to 65535.
    pub port: u16,
    /// Transport protocol.
    pub protocol: TransportProtocol,
}

impl PortKey {
    /// Key of a published port; `None` for a row of a later version with an unknown protocol.
    #[must_use]
    pub fn of(route: &v1::TcpRoute) -> Option<Self> {
        Some(Self {
            port: number(route.published_port)?,
            protocol: TransportProtocol::try_from(route.protocol).ok()?,
        })
    }
}

impl fmt::Display for PortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            TransportProtocol::Tcp => "tcp",
            TransportProtocol::Udp => "udp",
        };
        write!(f, "{}/{protocol}", self.port)
    }
}

/// How a published port is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedPort {
    /// Whether a connection to a replica begins with a PROXY header of version 2; never for UDP.
    pub proxy_v2: bool,
    /// Eligible replicas by id, at least one.
    pub upstreams: Vec<PortUpstream>,
}

/// A replica that serves a published port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortUpstream {
    /// Id of the replica.
    pub replica: String,
    /// Host of the replica, whose freshness is checked again when the replica is picked.
    pub host: String,
    /// Address it listens on.
    pub addr: SocketAddr,
}

/// Returns the ports that this node should listen on: those with an eligible replica.
///
/// A replica is eligible as for [`super::table::served_routes`]. The order of the upstreams is that
/// of the replica ids, so that equal states yield equal results.
#[must_use]
pub fn served_ports(
    state: &State,
    facts: &NodeFacts,
    fresh: &BTreeSet<String>,
) -> BTreeMap<PortKey, ServedPort> {
    let services = wanted(state);
    let ports = state.tcp_routes.values().filter_map(|route| {
        let ids = services.get(&(route.deployment.as_str(), route.service.as_str()))?;
        let key = PortKey::of(route)?;
        let upstreams: Vec<_> = ids
            .iter()
            .filter_map(|id| upstream(state, facts, fresh, route, id))
            .collect();
        let served = ServedPort {
            proxy_v2: key.protocol == TransportProtocol::Tcp && route.proxy_protocol == 2,
            upstreams,
        };
        (!served.upstreams.is_empty()).then_some((key, served))
    });
    ports.collect()
}

/// Whether a TCP port is published, served or not.
#[must_use]
pub fn publishes_tcp(state: &State) -> bool {
    let mut keys = state.tcp_routes.values().map(|route| PortKey::of(route));
    keys.any(|key| key.is_some_and(|key| key.protocol == TransportProtocol::Tcp))
}

/// Whether two states agree on everything [`served_ports`] depends on.
#[must_use]
pub fn same_input(a: &State, b: &State) -> bool {
    a.tcp_routes.ptr_eq(&b.tcp_routes)
        && (a.tcp_routes.is_empty()
            || (a.deployments.ptr_eq(&b.deployments)
                && a.replicas_desired.ptr_eq(&b.replicas_desired)
                && a.replicas_observed.ptr_eq(&b.replicas_observed)))
}

fn number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

fn upstream(
    state: &State,
    facts: &NodeFacts,
    fresh: &BTreeSet<String>,
    route: &v1::TcpRoute,
    id: &str,
) -> Option<PortUpstream> {
    let observed = state.replicas_observed.get(id)?;
    let host = &observed.host;
    let eligible = observed.state() == v1::ReplicaState::Running && facts.is_fresh(host, fresh);
    let port = number(route.container_port).filter(|_| eligible)?;
    let ip = address(state, &route.deployment, &route.service, observed)?;
    facts.reaches(host, ip).then(|| PortUpstream {
        replica: id.to_owned(),
        host: host.clone(),
        addr: SocketAddr::new(ip, port),
    })
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(test)]
mod tests;
