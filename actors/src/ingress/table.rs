//! Which replicas serve which route, as seen from one node.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jaco_net::proxy::{RouteTable, Rule, Upstream};
use jaco_proto::v1;
use jaco_raftnode::State;

use crate::network::names::{DEFAULT_NETWORK, NetworkId};

/// How old the last sign of health of another node's replica may be.
const FRESH_FOR: Duration = Duration::from_secs(10);

/// What a node knows besides the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The name of this node.
    pub hostname: String,
    /// Whether HTTPS is served, so that plain HTTP redirects to it where a route wants that.
    pub https: bool,
}

/// The table of all routes; routes without an eligible replica are in it with none.
///
/// A replica is eligible if it is wanted, reported as running, and has an address on one of
/// its service's networks. What this node reports itself is always fresh; what another node
/// reports must be proven by a sign of health, whose age is checked when it is picked.
#[must_use]
pub fn route_table(state: &State, facts: &Facts) -> RouteTable {
    let services = wanted(state);
    RouteTable::new(state.routes.values().map(|route| {
        let service = (route.deployment.as_str(), route.service.as_str());
        Rule {
            domain: route.domain.clone(),
            path: route.path.clone(),
            strip_path: route.strip_path,
            redirect_to_https: route.tls_auto && facts.https,
            service: route.service.clone(),
            upstreams: services
                .get(&service)
                .into_iter()
                .flatten()
                .filter_map(|id| upstream(state, facts, route, id))
                .collect(),
        }
    }))
}

/// Whether the parts of the state that a table is made of are the same in both.
#[must_use]
pub fn same_input(a: &State, b: &State) -> bool {
    a.routes.ptr_eq(&b.routes)
        && a.deployments.ptr_eq(&b.deployments)
        && a.replicas_desired.ptr_eq(&b.replicas_desired)
        && a.replicas_observed.ptr_eq(&b.replicas_observed)
}

/// Ids of the wanted replicas by (deployment, service).
fn wanted(state: &State) -> BTreeMap<(&str, &str), Vec<&str>> {
    let mut services: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (id, desired) in &state.replicas_desired {
        let service = (desired.deployment.as_str(), desired.service.as_str());
        services.entry(service).or_default().push(id.as_str());
    }
    services
}

pub(crate) fn upstream(
    state: &State,
    facts: &Facts,
    route: &v1::Route,
    id: &str,
) -> Option<Upstream> {
    let observed = state.replicas_observed.get(id)?;
    if observed.state() != v1::ReplicaState::Running {
        return None;
    }
    let fresh_until = if observed.host == facts.hostname {
        None
    } else {
        Some(time(observed.last_health_at.as_ref()?)? + FRESH_FOR)
    };
    let port = u16::try_from(route.port).ok().filter(|port| *port != 0)?;
    let ip = address(state, route, observed)?;
    Some(Upstream {
        replica: id.into(),
        addr: SocketAddr::new(ip, port),
        fresh_until,
    })
}

/// The address on the first network of the service, in attach order, that has one.
fn address(state: &State, route: &v1::Route, observed: &v1::ReplicaObserved) -> Option<IpAddr> {
    let deployment = state.deployments.get(&route.deployment)?;
    let service = deployment
        .services
        .iter()
        .find(|service| service.name == route.service)?;
    let on = |network: &str| {
        let name = NetworkId::new(&route.deployment, network).engine_name();
        observed.details.get(&format!("ip.{name}"))?.parse().ok()
    };
    if service.networks.is_empty() {
        on(DEFAULT_NETWORK)
    } else {
        service.networks.iter().find_map(|network| on(network))
    }
}

fn time(timestamp: &prost_types::Timestamp) -> Option<SystemTime> {
    let seconds = u64::try_from(timestamp.seconds).ok()?;
    let nanos = u32::try_from(timestamp.nanos)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000)?;
    UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
}

#[cfg(test)]
pub(super) mod tests;
