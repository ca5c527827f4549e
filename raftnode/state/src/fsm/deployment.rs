//! Deployments: apply, rollback and delete.

use jaco_proto::{
    Error, ErrorCode,
    manifest::compose::SHARED_SCOPE,
    v1::{self, AuditEventType, DeploymentRevision, DeploymentStatus},
};

use super::{Origin, Tx, audit, files, reject, replica, route, secret, subnet, tls};
use crate::shared_networks;

pub(super) fn apply(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::DeploymentApply,
) -> Result<(), Error> {
    let before = tx.get::<v1::Deployment>(&command.deployment);
    let highest = before
        .as_ref()
        .map_or(0, |d| d.highest_revision.max(d.applied_revision));
    if command.revision <= highest {
        return Err(stale_revision(command.revision).with("highest_revision", highest));
    }
    let previous = before.as_deref().map(|d| current_revision(tx, d));
    let content = DeploymentRevision {
        revision: command.revision,
        jaco_yaml: command.jaco_yaml.clone(),
        compose_yaml: command.compose_yaml.clone(),
        services: command.services.clone(),
        routes: command.routes.clone(),
        tcp_routes: command.tcp_routes.clone(),
        acme_email: command.acme_email.clone(),
        networks: command.networks.clone(),
    };
    files::add(tx, &command.deployment, &command.contents)?;
    files::require(tx, &command.deployment, &command.services)?;
    secret::require(tx, &command.deployment, &command.services)?;
    let history = History {
        previous,
        highest_revision: command.revision,
        failure: None,
    };
    replace_content(tx, origin, &command.deployment, content, history)?;
    audit::record(
        tx,
        origin,
        AuditEventType::Apply,
        revision_payload(&command.deployment, command.revision),
    )
}

/// Restores the previous content and keeps the replaced content as the new previous one.
pub(super) fn rollback(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::DeploymentRollback,
) -> Result<(), Error> {
    let name = &command.deployment;
    let before = existing(tx, name)?;
    let target = before.previous_revision;
    let Some(content) = before.previous.clone().filter(|_| target != 0) else {
        return Err(Error::new(
            ErrorCode::NoPreviousRevision,
            format!("deployment {name:?} has no previous revision"),
        )
        .with("deployment", name));
    };
    if command.revision != 0 && command.revision != target {
        return Err(stale_revision(command.revision).with("previous_revision", target));
    }
    let replaced = current_revision(tx, &before);
    let failed = !command.failure_reason.is_empty();
    let history = History {
        previous: Some(replaced),
        highest_revision: before.highest_revision.max(before.applied_revision),
        failure: failed.then(|| (before.applied_revision, command.failure_reason.clone())),
    };
    replace_content(tx, origin, name, content, history)?;
    audit::record(
        tx,
        origin,
        AuditEventType::Rollback,
        revision_payload(name, target),
    )
}

/// Deletes the deployment and its dependent rows. Replica counters stay, so that a new deployment
/// of the same name does not reuse replica ids.
pub(super) fn delete(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::DeploymentDelete,
) -> Result<(), Error> {
    let name = &command.deployment;
    tx.remove_where::<v1::Route>(|route| route.deployment == *name);
    tx.remove_where::<v1::TcpRoute>(|route| route.deployment == *name);
    tls::sweep(tx, name);
    replica::remove_all_of(tx, name);
    tx.remove_where::<v1::RolloutPlan>(|plan| plan.deployment == *name);
    tx.remove_where::<v1::FileContent>(|content| content.deployment == *name);
    tx.remove_where::<v1::Secret>(|secret| secret.deployment == *name);
    // The blocks of shared networks have no deployment; a client may ask to delete it all the same.
    if tx.state().deployments.contains_key(name) || name != SHARED_SCOPE {
        subnet::release(tx, origin, |subnet| subnet.deployment == *name)?;
    }
    tx.remove::<v1::Deployment>(name);
    audit::record(
        tx,
        origin,
        AuditEventType::Delete,
        [("deployment", name.clone())],
    )
}

pub(super) fn update_status(
    tx: &mut Tx,
    command: &v1::DeploymentStatusUpdate,
) -> Result<(), Error> {
    match DeploymentStatus::try_from(command.status) {
        Ok(DeploymentStatus::Unspecified) | Err(_) => {
            return Err(reject::invalid("status", "not a deployment status"));
        }
        Ok(DeploymentStatus::Pending | DeploymentStatus::Active) => {}
    }
    let Some(before) = tx.get::<v1::Deployment>(&command.deployment) else {
        return Ok(());
    };
    tx.put(v1::Deployment {
        status: command.status,
        status_details: command.details.clone(),
        ..v1::Deployment::clone(&before)
    })
}

/// Fails if a deployment is called like the scope of the shared networks while there are any.
fn check_scopes(tx: &Tx, name: &str, services: &[v1::ServiceSpec]) -> Result<(), Error> {
    let state = tx.state();
    if let Some(network) = shared_networks(services).next()
        && (name == SHARED_SCOPE || state.deployments.contains_key(SHARED_SCOPE))
    {
        let message = format!(
            "network {network:?} cannot be shared beside a deployment called {SHARED_SCOPE:?}"
        );
        let error = Error::new(ErrorCode::ValidationFailed, message);
        return Err(error
            .with("network", network)
            .with("deployment", SHARED_SCOPE));
    }
    if name == SHARED_SCOPE && state.networks_in_use().any_shared() {
        let message =
            format!("no deployment can be called {SHARED_SCOPE:?} while networks are shared");
        return Err(Error::new(ErrorCode::ValidationFailed, message).with("deployment", name));
    }
    Ok(())
}

/// Returns the deployment.
///
/// # Errors
/// [`ErrorCode::DeploymentNotFound`].
pub(super) fn existing(tx: &Tx, name: &str) -> Result<std::sync::Arc<v1::Deployment>, Error> {
    tx.get::<v1::Deployment>(&name.to_owned()).ok_or_else(|| {
        Error::new(
            ErrorCode::DeploymentNotFound,
            format!("no deployment {name:?}"),
        )
        .with("deployment", name)
    })
}

pub(super) fn stale_revision(revision: u64) -> Error {
    reject::conflict(
        reject::STALE_REVISION,
        "the deployment has moved on since the command was built",
    )
    .with("revision", revision)
}

pub(super) fn revision_payload(deployment: &str, revision: u64) -> [(&'static str, String); 2] {
    [
        ("deployment", deployment.to_owned()),
        ("revision", revision.to_string()),
    ]
}

/// Returns the current content of `deployment`, with routes and ports taken from the tables.
fn current_revision(tx: &Tx, deployment: &v1::Deployment) -> DeploymentRevision {
    let own = &deployment.name;
    let state = tx.state();
    let routes = state.routes.values().filter(|r| r.deployment == *own);
    let tcp_routes = state.tcp_routes.values().filter(|r| r.deployment == *own);
    DeploymentRevision {
        revision: deployment.applied_revision,
        jaco_yaml: deployment.jaco_yaml.clone(),
        compose_yaml: deployment.compose_yaml.clone(),
        services: deployment.services.clone(),
        routes: routes.map(|route| v1::Route::clone(route)).collect(),
        tcp_routes: tcp_routes.map(|route| v1::TcpRoute::clone(route)).collect(),
        acme_email: deployment.acme_email.clone(),
        networks: deployment.networks.clone(),
    }
}

/// Revisions beside the one that is applied.
struct History {
    previous: Option<DeploymentRevision>,
    highest_revision: u64,
    /// Revision that a failed rollout rolled back, and why.
    failure: Option<(u64, String)>,
}

/// Makes `content` the applied revision: writes the row, the routes and the ports, and drops the
/// rollouts of removed services. The scheduler changes the desired replicas.
fn replace_content(
    tx: &mut Tx,
    origin: &Origin<'_>,
    name: &str,
    content: DeploymentRevision,
    history: History,
) -> Result<(), Error> {
    let History {
        previous,
        highest_revision,
        failure,
    } = history;
    let (failed_revision, failure_reason) = failure.unwrap_or_default();
    let DeploymentRevision {
        revision,
        jaco_yaml,
        compose_yaml,
        services,
        routes,
        tcp_routes,
        acme_email,
        networks,
    } = content;
    check_scopes(tx, name, &services)?;
    tx.remove_where::<v1::RolloutPlan>(|plan| {
        plan.deployment == name && !services.iter().any(|s| s.name == plan.service)
    });
    tx.put(v1::Deployment {
        name: name.to_owned(),
        applied_revision: revision,
        previous_revision: previous.as_ref().map_or(0, |p| p.revision),
        // The status details of the replaced content do not apply to the new one.
        status: DeploymentStatus::Active.into(),
        status_details: Default::default(),
        jaco_yaml,
        compose_yaml,
        services,
        updated_at: Some(origin.ts),
        acme_email,
        highest_revision,
        previous,
        applied_raft_index: tx.index(),
        networks,
        failed_revision,
        failure_reason,
        rollout_hold: None,
    })?;
    route::replace_routes(tx, name, routes)?;
    tls::sweep(tx, name);
    files::sweep(tx, name);
    route::replace_ports(tx, name, tcp_routes)
}
