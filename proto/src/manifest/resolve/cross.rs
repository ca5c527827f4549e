//! Checks across files and against the cluster, one function per rule.
//!
//! An error that concerns both files has its position in `jaco.yaml`.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use crate::{
    Error, ErrorCode,
    manifest::{
        compose::{self, Compose, Listener, NetworkMode},
        fault::{Located, invalid, suggestion},
        jaco::{self, Jaco, Override},
    },
    v1::{self, TransportProtocol, service_spec::PlacementMode},
    yaml::Position,
};

use super::{ClusterView, Privileged, placement, replicas};

/// Checks that overrides name compose services, and that pinned services have a host per replica.
pub(super) fn overrides(jaco: &Jaco, compose: &Compose) -> Result<(), Error> {
    let services = &compose.project.services;
    for Override { name, .. } in &jaco.services {
        if !services.contains_key(&name.value) {
            let near = suggestion(name, services.keys().map(String::as_str));
            let message = format!(
                "service {:?} not found in the compose file{near}",
                name.value
            );
            return Err(Error::new(ErrorCode::UnknownService, message)
                .with("service", &name.value)
                .with("file", jaco::FILE)
                .at(name.at));
        }
    }
    for given in &jaco.services {
        let Some(service) = services.get(&given.name.value) else {
            continue;
        };
        let hosts: BTreeSet<&str> = given.hosts.iter().map(|host| host.as_str()).collect();
        let hosts = hosts.len();
        let replicas = replicas(Some(given), service);
        let enough = usize::try_from(replicas).is_ok_and(|replicas| replicas <= hosts);
        if given.placement == Some(PlacementMode::Hosts) && !enough {
            let message = format!(
                "service {:?} wants {replicas} replicas on {hosts} pinned hosts, one per host",
                given.name.value
            );
            let at = given.replicas.map_or(given.name.at, |replicas| replicas.at);
            return Err(Error::new(ErrorCode::ReplicasExceedPinnedHosts, message)
                .with("service", &given.name.value)
                .with("replicas", replicas)
                .with("hosts", hosts)
                .with("file", jaco::FILE)
                .at(at));
        }
    }
    Ok(())
}

/// Checks that services with a hardware address have one replica.
pub(super) fn hardware_addresses(jaco: &Jaco, compose: &Compose) -> Result<(), Error> {
    for (name, service) in &compose.project.services {
        if service.mac_address.is_none() {
            continue;
        }
        let mut services = jaco.services.iter();
        let given = services.find(|given| given.name.value == *name);
        let is_global = placement(given, service).mode == PlacementMode::Global;
        if is_global || replicas(given, service) > 1 {
            let message = format!(
                "service {name:?} has a mac_address, which only one container can have: remove it, \
                 or run one replica"
            );
            let error = invalid(message)
                .with("service", name)
                .with("field", "mac_address")
                .with("file", compose::FILE);
            let at = compose.field(name, "mac_address");
            return Err(match at {
                Some(at) => error.at(at),
                None => error,
            });
        }
    }
    Ok(())
}

/// Checks that no secret has the name of a variable that the compose file sets for the same service.
pub(super) fn secrets(jaco: &Jaco, compose: &Compose) -> Result<(), Error> {
    for (service, declared) in &compose.project.services {
        let mut overrides = jaco.services.iter();
        let given = overrides.find(|given| given.name.value == *service);
        let mut names = super::secrets(jaco, given).into_iter();
        let variables = &declared.environment;
        if let Some(name) = names.find(|name| variables.contains_key(name)) {
            let message = format!(
                "service {service:?} has {name} in environment and in secrets: remove it from one of \
                 them, or narrow services[].secrets in jaco.yaml"
            );
            let error = Error::new(ErrorCode::SecretConflict, message)
                .with("service", service)
                .with("name", &name)
                .with("file", jaco::FILE);
            let at = jaco.secrets.get(&name).map(|template| template.at);
            return Err(match at {
                Some(at) => error.at(at),
                None => error,
            });
        }
    }
    Ok(())
}

/// Checks that networks of overrides are declared in the compose file.
pub(super) fn override_networks(jaco: &Jaco, compose: &Compose) -> Result<(), Error> {
    for given in &jaco.services {
        for network in &given.networks {
            compose
                .check_network(&given.name, network)
                .map_err(|error| error.with("file", jaco::FILE).at(network.at))?;
        }
    }
    Ok(())
}

/// Checks that pinned hosts are members.
pub(super) fn hosts(jaco: &Jaco, cluster: &impl ClusterView) -> Result<(), Error> {
    let pinned = jaco.services.iter();
    let mut pinned: Vec<&Override> = pinned
        .filter(|given| given.placement == Some(PlacementMode::Hosts))
        .collect();
    pinned.sort_by_key(|given| given.name.as_str());
    for given in pinned {
        if let Some(host) = given.hosts.iter().find(|host| !cluster.has_host(host)) {
            let message = format!(
                "service {:?} is pinned to {:?}, which is not a member",
                given.name.value, host.value
            );
            return Err(Error::new(ErrorCode::UnknownHost, message)
                .with("service", &given.name.value)
                .with("host", &host.value)
                .with("file", jaco::FILE)
                .at(host.at));
        }
    }
    Ok(())
}

/// Checks that routes lead to existing services with a network.
pub(super) fn route_services(jaco: &Jaco, compose: &Compose) -> Result<(), Error> {
    let services = &compose.project.services;
    for route in &jaco.routes {
        if !services.contains_key(&route.service.value) {
            let near = suggestion(&route.service, services.keys().map(String::as_str));
            let message = format!(
                "route {:?} references unknown service {:?}{near}",
                route.domain, route.service.value
            );
            return Err(Error::new(ErrorCode::UnknownService, message)
                .with("service", &route.service.value)
                .with("domain", &route.domain)
                .with("file", jaco::FILE)
                .at(route.service.at));
        }
    }
    for route in &jaco.routes {
        let service = services.get(&route.service.value);
        let mode = service.and_then(|service| service.network_mode.as_ref());
        if mode.is_some_and(|mode| *mode != NetworkMode::Host) {
            let message = format!(
                "routes on a service with network_mode lead nowhere: {:?} to {:?}",
                route.domain, route.service.value
            );
            return Err(invalid(message)
                .with("service", &route.service.value)
                .with("field", "routes.service")
                .with("domain", &route.domain)
                .with("file", jaco::FILE)
                .at(route.service.at));
        }
    }
    Ok(())
}

/// Returns the listeners of the deployment by port and protocol; rejects duplicates.
pub(super) fn tcp_routes(jaco: &Jaco, compose: &Compose) -> Result<Vec<v1::TcpRoute>, Error> {
    let mut listeners: BTreeMap<Listener, v1::TcpRoute> = BTreeMap::new();
    for (name, service) in &compose.project.services {
        let given = jaco.services.iter().find(|given| given.name.value == *name);
        let proxy_protocol = given.map_or(0, |given| given.proxy_protocol);
        for port in &service.ports {
            let Some(listener) = port.listener else {
                continue;
            };
            match listeners.entry(listener) {
                Entry::Vacant(place) => {
                    place.insert(v1::TcpRoute {
                        published_port: i32::from(listener.port),
                        deployment: jaco.deployment.clone(),
                        service: name.clone(),
                        container_port: i32::from(port.target),
                        protocol: listener.protocol.into(),
                        proxy_protocol: match listener.protocol {
                            TransportProtocol::Tcp => proxy_protocol,
                            TransportProtocol::Udp => 0,
                        },
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
                    return Err(port_conflict(listener, message)
                        .with("service", name)
                        .with("services", both.join(","))
                        .with("file", compose::FILE)
                        .at(port.at));
                }
            }
        }
    }
    Ok(listeners.into_values().collect())
}

/// Checks that no listener belongs to another deployment.
pub(super) fn port_owners(
    jaco: &Jaco,
    compose: &Compose,
    tcp_routes: &[v1::TcpRoute],
    cluster: &impl ClusterView,
) -> Result<(), Error> {
    for route in tcp_routes {
        let Ok(port) = u16::try_from(route.published_port) else {
            continue;
        };
        let protocol = route.protocol();
        let listener = Listener { port, protocol };
        let service = compose.project.services.get(&route.service);
        let mut ports = service.into_iter().flat_map(|service| &service.ports);
        let entry = ports.find(|entry| entry.listener == Some(listener));
        let at = entry.map_or(Position::START, |entry| entry.at);
        let owner = cluster.port_owner(port, protocol);
        if let Some(owner) = owner.filter(|owner| *owner != jaco.deployment) {
            let message = format!("port {listener} is published by deployment {owner:?}");
            return Err(port_conflict(listener, message)
                .with("service", &route.service)
                .with("owner", &owner)
                .with("deployment", &owner)
                .with("file", compose::FILE)
                .at(at));
        }
    }
    Ok(())
}

/// Returns the error for a published port that is taken.
fn port_conflict(listener: Listener, message: String) -> Error {
    let error = Error::new(ErrorCode::PortConflict, message).with("port", listener.port);
    match listener.protocol {
        TransportProtocol::Tcp => error,
        TransportProtocol::Udp => error.with("protocol", "udp"),
    }
}

/// Checks that no route belongs to another deployment.
pub(super) fn route_owners(jaco: &Jaco, cluster: &impl ClusterView) -> Result<(), Error> {
    for route in &jaco.routes {
        let (domain, path) = (&route.domain, &route.path.value);
        let owner = cluster.route_owner(domain, path);
        if let Some(owner) = owner.filter(|owner| *owner != jaco.deployment) {
            let message = format!("route {domain}{path} belongs to deployment {owner:?}");
            return Err(Error::new(ErrorCode::RouteConflict, message)
                .with("domain", domain)
                .with("path", path)
                .with("deployment", owner)
                .with("file", jaco::FILE)
                .at(route.path.at));
        }
    }
    Ok(())
}

/// Checks that the caller may admit the privileged services.
pub(super) fn privileges(
    compose: &Compose,
    cluster: &impl ClusterView,
) -> Result<Vec<Privileged>, Error> {
    let privileged = compose.privileged();
    if let Some((service, fields, at)) = privileged.first()
        && !cluster.allows_privileged()
    {
        let identity = cluster.identity();
        let message = format!(
            "service {service:?} sets {fields}, which {identity:?} may not admit: it takes a token \
             with allows_privileged"
        );
        return Err(Error::new(ErrorCode::PrivilegeDenied, message)
            .with("service", service)
            .with("fields", fields)
            .with("identity", identity)
            .with("file", compose::FILE)
            .at(*at));
    }
    let privileged = privileged.into_iter();
    Ok(privileged
        .map(|(service, fields, _)| Privileged {
            service: service.to_owned(),
            fields,
        })
        .collect())
}
