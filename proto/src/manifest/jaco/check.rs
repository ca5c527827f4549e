//! Rules that concern `jaco.yaml` alone.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    str::FromStr,
};

use email_address::EmailAddress;

use crate::{
    Error, ErrorCode,
    manifest::fault::{Located, invalid, suggestion},
    yaml::Position,
};

use super::{
    Jaco, Override, Route, Spanned,
    decode::{Raw, RawOverride, RawRoute},
    keys::{
        ACME, PLACEMENTS, PROXY_PROTOCOLS, ROUTE, Requirement, SERVICE, TLS, Table, UPSTREAM,
        ValueType, value_of,
    },
    protection, secrets,
};

/// Checks, in this order: the deployment, each service, each route, the secrets.
pub(super) fn check(raw: Raw) -> Result<Jaco, Error> {
    if raw.deployment.is_empty() {
        return Err(invalid("deployment name is required")
            .with("field", "deployment")
            .at(raw.deployment.at));
    }
    let acme = acme(&raw)?;
    let services = services(raw.services)?;
    let routes = routes(raw.routes, acme)?;
    let secrets = secrets::check(raw.secrets)?;
    secrets::check_users(&services, &secrets)?;
    Ok(Jaco {
        deployment: raw.deployment.value,
        environment: Some(raw.environment.value).filter(|path| !path.is_empty()),
        services,
        routes,
        secrets,
        acme_email: raw.acme_email.value,
        empty_lists: raw.empty_lists,
    })
}

fn acme(raw: &Raw) -> Result<bool, Error> {
    let word = raw.acme.to_ascii_lowercase();
    let on = match word.as_str() {
        "" => true,
        word => value_of(&ACME, word).ok_or_else(|| {
            let message = format!("acme is {:?}, want on|off", raw.acme.value);
            invalid(message)
                .with("field", "acme")
                .with("value", &raw.acme.value)
                .at(raw.acme.at)
        })?,
    };
    let email = &raw.acme_email;
    if on && !email.is_empty() && EmailAddress::from_str(email).is_err() {
        let message = format!("acme_email {:?} is not a valid email address", email.value);
        return Err(invalid(message)
            .with("field", "acme_email")
            .with("value", &email.value)
            .at(email.at));
    }
    Ok(on)
}

fn services(raw: Vec<RawOverride>) -> Result<Vec<Override>, Error> {
    let mut seen = BTreeSet::new();
    let mut services = Vec::with_capacity(raw.len());
    for entry in raw {
        let service = service(entry)?;
        if !seen.insert(service.name.value.clone()) {
            let name = &service.name;
            let message = format!("service {:?} is declared more than once", name.value);
            return Err(invalid(message)
                .with("field", "services.name")
                .with("service", &name.value)
                .at(name.at));
        }
        services.push(service);
    }
    Ok(services)
}

fn service(raw: RawOverride) -> Result<Override, Error> {
    let name = &raw.name.value;
    let fail = |field: &str, message: String, at: Position| {
        invalid(message)
            .with("field", format!("services.{field}"))
            .with_text("service", name)
            .at(at)
    };
    if name.is_empty() {
        let message = "a service override needs a name".to_owned();
        return Err(fail("name", message, raw.name.at));
    }
    let replicas = match &raw.replicas {
        None => None,
        Some(given) => {
            let count = in_range(&SERVICE, "replicas", given.value).map_err(|want| {
                let given_count = given.value;
                let message = format!("service {name:?} has replicas {given_count}, want {want}");
                fail("replicas", message, given.at).with("value", given_count)
            })?;
            Some(Spanned {
                value: count,
                at: given.at,
            })
        }
    };
    let placement = match raw.placement.as_str() {
        "" => None,
        word => Some(value_of(&PLACEMENTS, word).ok_or_else(|| {
            let near = suggestion(word, PLACEMENTS.map(|(known, _)| known));
            let message = format!(
                "service {name:?} has unknown placement {word:?}, \
                 want spread, pack, hosts or global{near}"
            );
            fail("placement", message, raw.placement.at).with("value", word)
        })?),
    };
    let proxy_protocol = match raw.proxy_protocol.as_str() {
        "" => 0,
        word => value_of(&PROXY_PROTOCOLS, word).ok_or_else(|| {
            let message = format!("service {name:?} has unknown proxy_protocol {word:?}, want v2");
            fail("proxy_protocol", message, raw.proxy_protocol.at).with("value", word)
        })?,
    };
    let rules = SERVICE.rules.iter();
    for rule in rules.filter(|rule| rule.word == raw.placement.value) {
        let is_set = match rule.other {
            "replicas" => replicas.is_some(),
            _ => !raw.hosts.is_empty(),
        };
        let other = rule.other;
        match rule.requirement {
            Requirement::Absent if is_set => {
                let message = format!(
                    "service {name:?} is {}, one replica on every host: remove {other}",
                    rule.word
                );
                let at = replicas.map_or(raw.placement.at, |given| given.at);
                return Err(fail(other, message, at));
            }
            Requirement::Filled if !is_set => {
                let message = format!(
                    "service {name:?} has placement {}, but {other} is empty",
                    rule.word
                );
                return Err(fail(other, message, raw.placement.at));
            }
            Requirement::Absent | Requirement::Filled => {}
        }
    }
    Ok(Override {
        name: raw.name,
        replicas,
        placement,
        hosts: raw.hosts,
        networks: raw.networks,
        proxy_protocol,
        secrets: raw.secrets,
    })
}

/// Returns the value as a narrower number, or the valid range.
pub(super) fn in_range<T: TryFrom<i64>>(table: &Table, key: &str, value: i64) -> Result<T, String> {
    let (min, max) = match table.key(key).map(|key| &key.value_type) {
        Some(ValueType::Int { min, max }) => (*min, *max),
        Some(
            ValueType::Text(_)
            | ValueType::Rate { .. }
            | ValueType::Flag
            | ValueType::List(_)
            | ValueType::Table(_)
            | ValueType::Variables
            | ValueType::WordOrTable(..),
        )
        | None => (i64::MIN, i64::MAX),
    };
    let narrow = T::try_from(value).ok();
    let narrow = narrow.filter(|_| (min..=max).contains(&value));
    narrow.ok_or_else(|| format!("{min} to {max}"))
}

fn routes(raw: Vec<RawRoute>, acme: bool) -> Result<Vec<Route>, Error> {
    let mut tls: BTreeMap<String, bool> = BTreeMap::new();
    let mut paths: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut routes = Vec::with_capacity(raw.len());
    for entry in raw {
        let tls_at = entry.tls.at;
        let route = route(entry, acme)?;
        let first = *tls.entry(route.domain.clone()).or_insert(route.tls_auto);
        if first != route.tls_auto {
            let message = format!(
                "domain {:?} has routes with tls auto and with tls off, a domain has one mode",
                route.domain
            );
            return Err(Error::new(ErrorCode::RouteTlsMixed, message)
                .with("domain", &route.domain)
                .at(tls_at));
        }
        match paths.entry((route.domain.clone(), route.path.value.clone())) {
            Entry::Vacant(place) => {
                place.insert(route.service.value.clone());
            }
            Entry::Occupied(taken) => return Err(repeated(&route, taken.get())),
        }
        routes.push(route);
    }
    Ok(routes)
}

fn repeated(route: &Route, other: &str) -> Error {
    let (domain, path) = (&route.domain, &route.path.value);
    if path.is_empty() {
        let message = format!("domain {domain:?} has two routes without a path");
        return Error::new(ErrorCode::RouteMultipleCatchall, message)
            .with("domain", domain)
            .with("services", format!("{other},{}", route.service.value))
            .at(route.at);
    }
    invalid(format!("route conflict: {domain}{path} appears twice"))
        .with("field", "routes.path")
        .with("domain", domain)
        .with("path", path)
        .at(route.path.at)
}

fn route(raw: RawRoute, acme: bool) -> Result<Route, Error> {
    let domain = &raw.domain.value;
    let fail = |field: &str, message: String, at: Position| {
        invalid(message)
            .with("field", format!("routes.{field}"))
            .with_text("domain", domain)
            .at(at)
    };
    if domain.is_empty() {
        let message = "a route needs a domain".to_owned();
        return Err(fail("domain", message, raw.domain.at));
    }
    if raw.service.is_empty() {
        let message = format!("route {domain:?} needs a service");
        return Err(fail("service", message, raw.service.at));
    }
    let given = raw.port.ok_or_else(|| {
        let message = format!("route {domain:?} needs a port");
        fail("port", message, raw.at)
    })?;
    let port = in_range(&ROUTE, "port", given.value).map_err(|want| {
        let port = given.value;
        let message = format!("route {domain:?} has port {port}, want {want}");
        fail("port", message, given.at).with("value", port)
    })?;
    let tls_auto = match raw.tls.as_str() {
        "" => acme,
        word => value_of(&TLS, word).ok_or_else(|| {
            let near = suggestion(word, TLS.map(|(known, _)| known));
            let message =
                format!("route {domain:?} has unknown tls {word:?}, want auto or off{near}");
            fail("tls", message, raw.tls.at).with("value", word)
        })?,
    };
    let upstream_h2c = match raw.upstream.as_str() {
        "" => false,
        word => value_of(&UPSTREAM, word).ok_or_else(|| {
            let near = suggestion(word, UPSTREAM.map(|(known, _)| known));
            let message =
                format!("route {domain:?} has unknown upstream {word:?}, want http1 or h2c{near}");
            fail("upstream", message, raw.upstream.at).with("value", word)
        })?,
    };
    let limits = protection::limits(raw.limits, domain)?;
    let affinity = protection::affinity(raw.affinity, domain)?;
    Ok(Route {
        domain: raw.domain.value,
        service: raw.service,
        port,
        tls_auto,
        tls_written: !raw.tls.is_empty(),
        path: raw.path,
        strip_path: raw.strip_path,
        upstream_h2c,
        limits,
        affinity,
        at: raw.at,
    })
}
