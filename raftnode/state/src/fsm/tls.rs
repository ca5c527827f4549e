//! TLS of a deployment's domains in place of what its manifest says.

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, AuditEventType},
};

use super::{Origin, Tx, audit, reject};

/// Stores the override; rejected unless the deployment has a route of the domain. One that changes
/// nothing is kept as it was.
pub(super) fn set(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::RouteTlsOverrideSet,
) -> Result<(), Error> {
    let new = reject::required("override", command.r#override.as_ref())?;
    let (deployment, domain) = (&new.deployment, &new.domain);
    if effective(tx, deployment, domain).is_none() {
        return Err(Error::new(
            ErrorCode::RouteNotFound,
            format!("deployment {deployment:?} has no route of domain {domain:?}"),
        )
        .with("deployment", deployment)
        .with("domain", domain));
    }
    let key = (deployment.clone(), domain.clone());
    let before = tx.get::<v1::RouteTlsOverride>(&key);
    if before.is_some_and(|before| before.tls_auto == new.tls_auto) {
        return Ok(());
    }
    toggle(tx, origin, deployment, domain, |tx| {
        tx.put(v1::RouteTlsOverride {
            at: new.at.or(Some(origin.ts)),
            ..new.clone()
        })
    })
}

/// Removes the override, if there is one.
pub(super) fn remove(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::RouteTlsOverrideRemove,
) -> Result<(), Error> {
    let (deployment, domain) = (&command.deployment, &command.domain);
    toggle(tx, origin, deployment, domain, |tx| {
        tx.remove::<v1::RouteTlsOverride>(&(deployment.clone(), domain.clone()));
        Ok(())
    })
}

/// Removes the overrides of domains that the deployment has no route of.
pub(super) fn sweep(tx: &mut Tx, deployment: &str) {
    let routes = tx.state().routes.values();
    let own = routes.filter(|route| route.deployment == deployment);
    let domains: std::collections::BTreeSet<String> =
        own.map(|route| route.domain.clone()).collect();
    tx.remove_where::<v1::RouteTlsOverride>(|row| {
        row.deployment == deployment && !domains.contains(&row.domain)
    });
}

/// Makes a change, and records it if it switches the TLS of the domain.
fn toggle(
    tx: &mut Tx,
    origin: &Origin<'_>,
    deployment: &str,
    domain: &str,
    change: impl FnOnce(&mut Tx) -> Result<(), Error>,
) -> Result<(), Error> {
    let before = effective(tx, deployment, domain);
    change(tx)?;
    match effective(tx, deployment, domain) {
        Some(tls) if before != Some(tls) => audit::record(
            tx,
            origin,
            AuditEventType::TlsToggled,
            [
                ("deployment", deployment.to_owned()),
                ("domain", domain.to_owned()),
                ("tls", if tls { "auto" } else { "off" }.to_owned()),
            ],
        ),
        Some(_) | None => Ok(()),
    }
}

/// Whether a route of the deployment's domain asks for TLS; `None` without a route.
fn effective(tx: &Tx, deployment: &str, domain: &str) -> Option<bool> {
    let state = tx.state();
    let first = (domain.to_owned(), String::new());
    let rows = state.routes.range(first..).map(|(_, route)| route);
    let rows = rows.take_while(|route| route.domain == domain);
    rows.filter(|route| route.deployment == deployment)
        .map(|route| state.is_tls_auto(route))
        .reduce(|one, other| one || other)
}
