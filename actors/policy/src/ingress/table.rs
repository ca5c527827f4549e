//! Routes of the state with the replicas that serve them, as seen from one node.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use jaco_engine::cidr::Cidr;
use jaco_proto::v1;
use jaco_state::State;

use super::{ports::publishes_tcp, protection};
use crate::network::names::{DEFAULT_NETWORK, NetworkId};

#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// Properties of the node that are not in the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Hostname of this node.
    pub hostname: String,
    /// Whether HTTPS is served, so that plain HTTP is redirected to it for routes that request it.
    pub https: bool,
    /// Whether container addresses of other hosts can be reached from here.
    ///
    /// Each host numbers its containers from blocks that only its own kernel routes. Without a mesh
    /// between the hosts, such an address reaches nothing here or an unrelated machine. Replicas of
    /// other hosts are then excluded from the table, and local replicas serve their requests. Set
    /// this once the blocks are routable; freshness of the hosts is checked separately.
    pub mesh: bool,
    /// Blocks of other hosts that the mesh does not reach.
    pub unreached: BTreeSet<Cidr>,
}

impl NodeFacts {
    /// Whether replicas of `host` count as healthy; `fresh` are the hosts with a recent heartbeat.
    #[must_use]
    pub fn is_fresh(&self, host: &str, fresh: &BTreeSet<String>) -> bool {
        host == self.hostname || fresh.contains(host)
    }

    /// Whether the address of a container on `host` can be reached from this node.
    #[must_use]
    pub fn reaches(&self, host: &str, address: IpAddr) -> bool {
        let is_within = |block: &Cidr| match address {
            IpAddr::V4(ip) => block.overlaps(Cidr::aligned(ip.into(), 32)),
            IpAddr::V6(_) => false,
        };
        host == self.hostname || self.mesh && !self.unreached.iter().any(is_within)
    }
}

/// A route of the state, and the replicas that serve it.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedRoute<'a> {
    /// Row of the route.
    pub route: &'a v1::Route,
    /// Whether plain HTTP is redirected to HTTPS.
    pub redirect_to_https: bool,
    /// Eligible replicas, by id.
    pub upstreams: Vec<Upstream<'a>>,
}

/// A replica that serves a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upstream<'a> {
    /// Id of the replica.
    pub replica: &'a str,
    /// Address it listens on.
    pub addr: SocketAddr,
    /// Whether the route has sticky sessions and this container will soon be withdrawn: a session
    /// that begins on it would be lost.
    pub leaving: bool,
}

/// Returns all routes, by domain and path; a route without an eligible replica has no upstreams.
///
/// A replica is eligible if it has a row, a host in `fresh` or this host reports it as running, it
/// has an address on one of its service's networks, and that address can be reached. Call this
/// again when `fresh` changes: replicas of hosts that are not fresh are excluded here and not when
/// an upstream is picked.
#[must_use]
pub fn served_routes<'a>(
    state: &'a State,
    facts: &NodeFacts,
    fresh: &BTreeSet<String>,
) -> Vec<ServedRoute<'a>> {
    let services = wanted(state);
    let served = state.routes.values().map(|route| {
        let service = (route.deployment.as_str(), route.service.as_str());
        ServedRoute {
            route,
            redirect_to_https: facts.https && state.is_tls_auto(route),
            upstreams: services
                .get(&service)
                .into_iter()
                .flatten()
                .filter_map(|id| upstream(state, facts, fresh, route, id))
                .collect(),
        }
    });
    served.collect()
}

/// Whether every route with a running replica has one that this node can serve: false for a while
/// after the start of a node, which does not know yet which hosts are fresh and reachable.
#[must_use]
pub fn is_settled(state: &State, facts: &NodeFacts, fresh: &BTreeSet<String>) -> bool {
    let services = wanted(state);
    let mut routes = served_routes(state, facts, fresh).into_iter();
    routes.all(|served| {
        let route = served.route;
        let service = (route.deployment.as_str(), route.service.as_str());
        let mut ids = services.get(&service).into_iter().flatten();
        !served.upstreams.is_empty()
            || ids.all(|id| replica_addr(state, |_| true, route, id).is_none())
    })
}

/// Whether two states agree on everything [`served_routes`], the limits of routes and
/// [`opens_ingress`] depend on.
#[must_use]
pub fn same_input(a: &State, b: &State) -> bool {
    a.routes.ptr_eq(&b.routes)
        && a.route_tls_overrides.ptr_eq(&b.route_tls_overrides)
        && a.deployments.ptr_eq(&b.deployments)
        && a.replicas_desired.ptr_eq(&b.replicas_desired)
        && a.replicas_observed.ptr_eq(&b.replicas_observed)
        && a.cluster_config.ptr_eq(&b.cluster_config)
        && (a.nodes.ptr_eq(&b.nodes)
            || draining(a).eq(draining(b)) && node_addresses(a).eq(node_addresses(b)))
        && (a.tcp_routes.ptr_eq(&b.tcp_routes) || publishes_tcp(a) == publishes_tcp(b))
}

/// Whether the ports of the ingress are to be open: a route or a published TCP port exists.
#[must_use]
pub fn opens_ingress(state: &State) -> bool {
    !state.routes.is_empty() || publishes_tcp(state)
}

fn node_addresses(state: &State) -> impl Iterator<Item = (&str, &str)> {
    let nodes = state.nodes.values();
    nodes.map(|node| (node.hostname.as_str(), node.address.as_str()))
}

/// Hostnames of the members whose replicas move to others.
fn draining(state: &State) -> impl Iterator<Item = &str> {
    let draining = state.nodes.values().filter(|node| node.draining);
    draining.map(|node| node.hostname.as_str())
}

/// Ids of the replicas with a row, by (deployment, service).
pub(super) fn wanted(state: &State) -> BTreeMap<(&str, &str), Vec<&str>> {
    let mut services: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (id, desired) in &state.replicas_desired {
        let service = (desired.deployment.as_str(), desired.service.as_str());
        services.entry(service).or_default().push(id.as_str());
    }
    services
}

fn upstream<'a>(
    state: &State,
    facts: &NodeFacts,
    fresh: &BTreeSet<String>,
    route: &v1::Route,
    id: &'a str,
) -> Option<Upstream<'a>> {
    let addr = replica_addr(state, |host| facts.is_fresh(host, fresh), route, id)?;
    let observed = state.replicas_observed.get(id)?;
    let sticky = protection::affinity(route).is_some();
    let spec = spec(state, &route.deployment, &route.service)?;
    // A node is reached without the mesh.
    let is_reached = spec.host_network || facts.reaches(&observed.host, addr.ip());
    is_reached.then(|| Upstream {
        replica: id,
        addr,
        leaving: sticky && is_leaving(state, observed),
    })
}

/// Whether the running container of a replica will be withdrawn: its row has another generation or
/// host, for which another container is being started, or its host is drained.
fn is_leaving(state: &State, observed: &v1::ReplicaObserved) -> bool {
    let desired = state.replicas_desired.get(&observed.id);
    desired
        .is_none_or(|row| row.host != observed.host || observed.desired_raft_index < row.raft_index)
        || draining(state).any(|host| host == observed.host)
}

/// Address at which replica `id` serves `route`, if it is running on a host for which `is_fresh`
/// returns true. Does not check whether the address can be reached from here.
pub fn replica_addr(
    state: &State,
    is_fresh: impl Fn(&str) -> bool,
    route: &v1::Route,
    id: &str,
) -> Option<SocketAddr> {
    let observed = state.replicas_observed.get(id)?;
    if observed.state() != v1::ReplicaState::Running || !is_fresh(&observed.host) {
        return None;
    }
    let port = u16::try_from(route.port).ok().filter(|port| *port != 0)?;
    let ip = address(state, &route.deployment, &route.service, observed)?;
    Some(SocketAddr::new(ip, port))
}

fn spec<'a>(state: &'a State, deployment: &str, service: &str) -> Option<&'a v1::ServiceSpec> {
    let services = &state.deployments.get(deployment)?.services;
    services.iter().find(|spec| spec.name == service)
}

/// Address on the first network of the service, in attach order, on which the replica has one; of a
/// service with the network of its nodes, the address of the node.
pub(super) fn address(
    state: &State,
    deployment: &str,
    service: &str,
    observed: &v1::ReplicaObserved,
) -> Option<IpAddr> {
    let service = spec(state, deployment, service)?;
    if service.host_network {
        let node: SocketAddr = state.nodes.get(&observed.host)?.address.parse().ok()?;
        return Some(node.ip());
    }
    let on = |network: &str| {
        let name = NetworkId::new(deployment, network).engine_name();
        observed.details.get(&format!("ip.{name}"))?.parse().ok()
    };
    if service.networks.is_empty() {
        on(DEFAULT_NETWORK)
    } else {
        service.networks.iter().find_map(|network| on(network))
    }
}

#[cfg(test)]
mod tests;
