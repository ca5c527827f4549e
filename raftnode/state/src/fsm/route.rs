//! Ingress: HTTP routes by domain and path, published ports by port and protocol.

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::{Error, ErrorCode, v1};

use super::{Tx, reject};

pub(super) fn upsert(tx: &mut Tx, command: &v1::RouteUpsert) -> Result<(), Error> {
    let route = reject::required("route", command.route.as_ref())?;
    check_free(tx, route)?;
    tx.put(route.clone())
}

/// Removes every path of the domain, of any deployment.
pub(super) fn remove_domain(tx: &mut Tx, domain: &str) {
    tx.remove_where::<v1::Route>(|route| route.domain == domain);
}

/// Makes `routes` the routes of the deployment; a domain and path have one owner in the cluster.
pub(super) fn replace_routes(
    tx: &mut Tx,
    deployment: &str,
    routes: Vec<v1::Route>,
) -> Result<(), Error> {
    let keep: BTreeSet<(String, String)> = routes
        .iter()
        .map(|route| (route.domain.clone(), route.path.clone()))
        .collect();
    tx.remove_where::<v1::Route>(|route| {
        route.deployment == deployment
            && !keep.contains(&(route.domain.clone(), route.path.clone()))
    });
    for route in routes {
        check_owner("routes", deployment, &route.deployment)?;
        check_free(tx, &route)?;
        tx.put(route)?;
    }
    Ok(())
}

/// Makes `ports` the published ports of the deployment; a port of a protocol has one owner in the
/// cluster.
pub(super) fn replace_ports(
    tx: &mut Tx,
    deployment: &str,
    ports: Vec<v1::TcpRoute>,
) -> Result<(), Error> {
    let mut wanted: BTreeMap<(i32, i32), v1::TcpRoute> = BTreeMap::new();
    for port in ports {
        check_owner("tcp_routes", deployment, &port.deployment)?;
        let key = (port.published_port, port.protocol);
        let owner = tx.get::<v1::TcpRoute>(&key);
        if let Some(owner) = owner.filter(|owner| owner.deployment != deployment) {
            return Err(port_conflict(&port, &owner));
        }
        if let Some(other) = wanted.get(&key) {
            return Err(port_conflict(&port, other));
        }
        wanted.insert(key, port);
    }
    tx.remove_where::<v1::TcpRoute>(|route| {
        route.deployment == deployment
            && !wanted.contains_key(&(route.published_port, route.protocol))
    });
    wanted.into_values().try_for_each(|port| tx.put(port))
}

/// Rows are removed by the deployment they name, so a command must not write rows of another.
fn check_owner(field: &str, deployment: &str, owner: &str) -> Result<(), Error> {
    if owner == deployment {
        Ok(())
    } else {
        Err(reject::invalid(field, "names another deployment"))
    }
}

/// Refuses a route that another deployment has: the proposer may have checked an older state.
fn check_free(tx: &Tx, route: &v1::Route) -> Result<(), Error> {
    let key = (route.domain.clone(), route.path.clone());
    let owner = tx.get::<v1::Route>(&key);
    match owner.filter(|owner| owner.deployment != route.deployment) {
        None => Ok(()),
        Some(owner) => Err(Error::new(ErrorCode::RouteConflict, "the route is taken")
            .with("domain", &route.domain)
            .with("path", &route.path)
            .with("deployment", &owner.deployment)),
    }
}

fn port_conflict(wanted: &v1::TcpRoute, owner: &v1::TcpRoute) -> Error {
    let protocol = match wanted.protocol() {
        v1::TransportProtocol::Tcp => "",
        v1::TransportProtocol::Udp => "/udp",
    };
    let message = format!(
        "port {}{protocol} of service {:?} is published by deployment {:?}",
        wanted.published_port, wanted.service, owner.deployment
    );
    Error::new(ErrorCode::PortConflict, message)
        .with("port", wanted.published_port)
        .with("service", &wanted.service)
        .with("owner", &owner.deployment)
}
