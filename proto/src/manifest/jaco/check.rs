//! Rules that the file can break on its own.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    str::FromStr,
};

use email_address::EmailAddress;

use crate::{
    Error, ErrorCode,
    manifest::{
        MAX_REPLICAS,
        fault::{Located, invalid, suggestion},
    },
    v1::service_spec::PlacementMode,
};

use super::{
    Jaco, Override, Route,
    decode::{Raw, RawOverride, RawRoute},
};

/// Checks in a fixed order: the deployment, each service, each route.
pub(super) fn check(raw: Raw) -> Result<Jaco, Error> {
    if raw.deployment.is_empty() {
        return Err(invalid("deployment name is required").with("field", "deployment"));
    }
    let acme = acme(&raw)?;
    Ok(Jaco {
        deployment: raw.deployment,
        environment: Some(raw.environment).filter(|path| !path.is_empty()),
        services: services(raw.services)?,
        routes: routes(raw.routes, acme)?,
        acme_email: raw.acme_email,
    })
}

fn acme(raw: &Raw) -> Result<bool, Error> {
    let on = match raw.acme.to_ascii_lowercase().as_str() {
        "" | "on" => true,
        "off" => false,
        _ => {
            let message = format!("acme is {:?}, want on|off", raw.acme);
            return Err(invalid(message)
                .with("field", "acme")
                .with("value", &raw.acme));
        }
    };
    let email = &raw.acme_email;
    if on && !email.is_empty() && EmailAddress::from_str(email).is_err() {
        let message = format!("acme_email {email:?} is not a valid email address");
        return Err(invalid(message)
            .with("field", "acme_email")
            .with("value", email));
    }
    Ok(on)
}

fn services(raw: Vec<RawOverride>) -> Result<Vec<Override>, Error> {
    let mut seen = BTreeSet::new();
    let mut services = Vec::with_capacity(raw.len());
    for entry in raw {
        let service = service(entry)?;
        if !seen.insert(service.name.clone()) {
            let message = format!("service {:?} is declared more than once", service.name);
            return Err(invalid(message)
                .with("field", "services")
                .with("service", &service.name)
                .at(service.at));
        }
        services.push(service);
    }
    Ok(services)
}

fn service(raw: RawOverride) -> Result<Override, Error> {
    let fail = |field: &str, message: String| {
        invalid(message)
            .with("field", format!("services.{field}"))
            .with("service", &raw.name)
            .at(raw.at)
    };
    let name = &raw.name;
    if name.is_empty() {
        return Err(fail("name", "a service override needs a name".to_owned()));
    }
    let replicas = raw.replicas.map(i32::try_from).transpose();
    let replicas = match replicas {
        Ok(None) => None,
        Ok(Some(count)) if (0..=MAX_REPLICAS).contains(&count) => Some(count),
        Ok(Some(_)) | Err(_) => {
            let given = raw.replicas.unwrap_or_default();
            let message =
                format!("service {name:?} has replicas {given}, want 0 to {MAX_REPLICAS}");
            return Err(fail("replicas", message).with("value", given));
        }
    };
    let placement = match raw.placement.as_str() {
        "" | "spread" => PlacementMode::Spread,
        "pack" => PlacementMode::Pack,
        "hosts" => PlacementMode::Hosts,
        "global" => PlacementMode::Global,
        other => {
            let near = suggestion(other, ["spread", "pack", "hosts", "global"]);
            let message = format!(
                "service {name:?} has unknown placement {other:?}, \
                 want spread, pack, hosts or global{near}"
            );
            return Err(fail("placement", message).with("value", other));
        }
    };
    if placement == PlacementMode::Global && replicas.is_some() {
        let message =
            format!("service {name:?} is global, one replica on every host: remove replicas");
        return Err(fail("replicas", message));
    }
    if placement == PlacementMode::Hosts && raw.hosts.is_empty() {
        let message = format!("service {name:?} has placement hosts, but hosts is empty");
        return Err(fail("hosts", message));
    }
    Ok(Override {
        name: raw.name,
        replicas,
        placement,
        hosts: raw.hosts,
        networks: raw.networks,
        at: raw.at,
    })
}

fn routes(raw: Vec<RawRoute>, acme: bool) -> Result<Vec<Route>, Error> {
    let mut tls: BTreeMap<String, bool> = BTreeMap::new();
    let mut paths: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut routes = Vec::with_capacity(raw.len());
    for entry in raw {
        let route = route(entry, acme)?;
        let first = *tls.entry(route.domain.clone()).or_insert(route.tls_auto);
        if first != route.tls_auto {
            let message = format!(
                "domain {:?} has routes with tls auto and with tls off, a domain has one mode",
                route.domain
            );
            return Err(Error::new(ErrorCode::RouteTlsMixed, message)
                .with("domain", &route.domain)
                .at(route.at));
        }
        match paths.entry((route.domain.clone(), route.path.clone())) {
            Entry::Vacant(place) => {
                place.insert(route.service.clone());
            }
            Entry::Occupied(taken) => return Err(repeated(&route, taken.get())),
        }
        routes.push(route);
    }
    Ok(routes)
}

fn repeated(route: &Route, other: &str) -> Error {
    let (domain, path) = (&route.domain, &route.path);
    if path.is_empty() {
        let message = format!("domain {domain:?} has two routes without a path");
        return Error::new(ErrorCode::RouteMultipleCatchall, message)
            .with("domain", domain)
            .with("services", format!("{other},{}", route.service))
            .at(route.at);
    }
    invalid(format!("route conflict: {domain}{path} appears twice"))
        .with("field", "routes")
        .with("domain", domain)
        .with("path", path)
        .at(route.at)
}

fn route(raw: RawRoute, acme: bool) -> Result<Route, Error> {
    let fail = |field: &str, message: String| {
        invalid(message)
            .with("field", format!("routes.{field}"))
            .with("domain", &raw.domain)
            .at(raw.at)
    };
    if raw.domain.is_empty() {
        return Err(fail("domain", "a route needs a domain".to_owned()));
    }
    let domain = &raw.domain;
    if raw.service.is_empty() {
        return Err(fail("service", format!("route {domain:?} needs a service")));
    }
    let port = match u16::try_from(raw.port) {
        Ok(port) if port > 0 => port,
        Ok(_) | Err(_) => {
            let message = format!("route {domain:?} has port {}, want 1 to 65535", raw.port);
            return Err(fail("port", message).with("value", raw.port));
        }
    };
    let tls_auto = match raw.tls.as_str() {
        "" => acme,
        "auto" => true,
        "off" => false,
        other => {
            let message = format!("route {domain:?} has unknown tls {other:?}, want auto or off");
            return Err(fail("tls", message).with("value", other));
        }
    };
    Ok(Route {
        domain: raw.domain,
        service: raw.service,
        port,
        tls_auto,
        path: raw.path,
        strip_path: raw.strip_path,
        at: raw.at,
    })
}
