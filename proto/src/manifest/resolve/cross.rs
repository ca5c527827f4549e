//! Checks across files and against the cluster, one function per rule.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use crate::{
    Error, ErrorCode,
    manifest::{
        compose::Compose,
        fault::{Located, invalid, suggestion},
        jaco::Jaco,
    },
    v1::{self, service_spec::PlacementMode},
};

use super::{ClusterView, Privileged, replicas};

/// Overrides name compose services, and pinned ones have a host per replica.
pub(super) fn overrides(jaco: &Jaco, compose: &Compose) -> Result<(), Error> {
    let services = &compose.project.services;
    for given in &jaco.services {
        if !services.contains_key(&given.name) {
            let near = suggestion(&given.name, services.keys().map(String::as_str));
            let message = format!(
                "service {:?} not found in the compose file{near}",
                given.name
            );
            return Err(Error::new(ErrorCode::UnknownService, message)
                .with("service", &given.name)
                .at(given.at));
        }
    }
    for given in &jaco.services {
        let Some(service) = services.get(&given.name) else {
            continue;
        };
        let hosts = given.hosts.iter().collect::<BTreeSet<_>>().len();
        let replicas = replicas(Some(given), service);
        let enough = usize::try_from(replicas).is_ok_and(|replicas| replicas <= hosts);
        if given.placement == PlacementMode::Hosts && !enough {
            let message = format!(
                "service {:?} wants {replicas} replicas on {hosts} pinned hosts, one per host",
                given.name
            );
            return Err(Error::new(ErrorCode::ReplicasExceedPinnedHosts, message)
                .with("service", &given.name)
                .with("replicas", replicas)
                .with("hosts", hosts)
                .at(given.at));
        }
    }
    Ok(())
}

/// Networks of overrides are declared in the compose file.
pub(super) fn override_networks(jaco: &Jaco, compose: &Compose) -> Result<(), Error> {
    for given in &jaco.services {
        for network in &given.networks {
            compose
                .check_network(&given.name, network)
                .map_err(|error| error.at(given.at))?;
        }
    }
    Ok(())
}

/// Pinned hosts are members.
pub(super) fn hosts(services: &[v1::ServiceSpec], cluster: &impl ClusterView) -> Result<(), Error> {
    let pinned = services
        .iter()
        .filter(|service| service.placement() == PlacementMode::Hosts);
    for service in pinned {
        if let Some(host) = service.hosts.iter().find(|host| !cluster.has_host(host)) {
            let message = format!(
                "service {:?} is pinned to {host:?}, which is not a member",
                service.name
            );
            return Err(Error::new(ErrorCode::UnknownHost, message)
                .with("service", &service.name)
                .with("host", host));
        }
    }
    Ok(())
}

/// Routes lead to services, and to ones that have a network.
pub(super) fn route_services(jaco: &Jaco, compose: &Compose) -> Result<(), Error> {
    let services = &compose.project.services;
    for route in &jaco.routes {
        if !services.contains_key(&route.service) {
            let near = suggestion(&route.service, services.keys().map(String::as_str));
            let message = format!(
                "route {:?} references unknown service {:?}{near}",
                route.domain, route.service
            );
            return Err(Error::new(ErrorCode::UnknownService, message)
                .with("service", &route.service)
                .with("domain", &route.domain)
                .at(route.at));
        }
    }
    for route in &jaco.routes {
        let service = services.get(&route.service);
        if service.is_some_and(|service| service.network_mode.is_some()) {
            let message = format!(
                "routes on a service with network_mode lead nowhere: {:?} to {:?}",
                route.domain, route.service
            );
            return Err(invalid(message)
                .with("service", &route.service)
                .with("field", "routes")
                .with("domain", &route.domain)
                .at(route.at));
        }
    }
    Ok(())
}

/// The listeners of the deployment by port; each port once.
pub(super) fn tcp_routes(jaco: &Jaco, compose: &Compose) -> Result<Vec<v1::TcpRoute>, Error> {
    let mut listeners: BTreeMap<u16, v1::TcpRoute> = BTreeMap::new();
    for (name, service) in &compose.project.services {
        for port in &service.ports {
            let Some(listener) = port.listener else {
                continue;
            };
            match listeners.entry(listener) {
                Entry::Vacant(place) => {
                    place.insert(v1::TcpRoute {
                        published_port: i32::from(listener),
                        deployment: jaco.deployment.clone(),
                        service: name.clone(),
                        container_port: i32::from(port.target),
                    });
                }
                Entry::Occupied(taken) => {
                    let other = &taken.get().service;
                    let message = if other == name {
                        format!("service {name:?} publishes port {listener} twice")
                    } else {
                        format!("services {other:?} and {name:?} both publish port {listener}")
                    };
                    let both = BTreeSet::from([other.as_str(), name.as_str()]);
                    let both: Vec<&str> = both.into_iter().collect();
                    return Err(Error::new(ErrorCode::PortConflict, message)
                        .with("port", listener)
                        .with("service", name)
                        .with("services", both.join(",")));
                }
            }
        }
    }
    Ok(listeners.into_values().collect())
}

/// No listener belongs to another deployment.
pub(super) fn port_owners(
    jaco: &Jaco,
    tcp_routes: &[v1::TcpRoute],
    cluster: &impl ClusterView,
) -> Result<(), Error> {
    for route in tcp_routes {
        let Ok(port) = u16::try_from(route.published_port) else {
            continue;
        };
        let owner = cluster.port_owner(port);
        if let Some(owner) = owner.filter(|owner| *owner != jaco.deployment) {
            let message = format!("port {port} is published by deployment {owner:?}");
            return Err(Error::new(ErrorCode::PortConflict, message)
                .with("port", port)
                .with("service", &route.service)
                .with("owner", &owner)
                .with("deployment", &owner));
        }
    }
    Ok(())
}

/// No route belongs to another deployment.
pub(super) fn route_owners(jaco: &Jaco, cluster: &impl ClusterView) -> Result<(), Error> {
    for route in &jaco.routes {
        let (domain, path) = (&route.domain, &route.path);
        let owner = cluster.route_owner(domain, path);
        if let Some(owner) = owner.filter(|owner| *owner != jaco.deployment) {
            let message = format!("route {domain}{path} belongs to deployment {owner:?}");
            return Err(Error::new(ErrorCode::RouteConflict, message)
                .with("domain", domain)
                .with("path", path)
                .with("deployment", owner)
                .at(route.at));
        }
    }
    Ok(())
}

/// The caller may admit every privileged service.
pub(super) fn privileges(
    compose: &Compose,
    cluster: &impl ClusterView,
) -> Result<Vec<Privileged>, Error> {
    let privileged = compose.privileged();
    if let Some((service, fields)) = privileged.first()
        && !cluster.allows_privileged()
    {
        let identity = cluster.identity();
        let message =
            format!("service {service:?} sets {fields}, which {identity:?} may not admit");
        return Err(Error::new(ErrorCode::PrivilegeDenied, message)
            .with("service", service)
            .with("fields", fields)
            .with("identity", identity));
    }
    let privileged = privileged.into_iter();
    Ok(privileged
        .map(|(service, fields)| Privileged {
            service: service.to_owned(),
            fields,
        })
        .collect())
}
