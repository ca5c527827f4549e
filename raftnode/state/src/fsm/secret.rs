//! Secrets that containers of a deployment have as environment variables.

use std::collections::BTreeSet;

use jaco_proto::{
    Error, ErrorCode,
    manifest::MAX_SECRETS,
    v1::{self, AuditEventType},
};

use super::{Origin, Tx, audit, reject};
use crate::secret_not_found;

/// Stores a secret. One of the version that is there differs in its sealed form alone, and has
/// effect only under another secrets key.
pub(super) fn upsert(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::SecretUpsert,
) -> Result<(), Error> {
    let secret = reject::required("secret", command.secret.as_ref())?;
    let (deployment, name) = (&secret.deployment, &secret.name);
    for (field, is_empty) in [
        ("deployment", deployment.is_empty()),
        ("name", name.is_empty()),
        ("version", secret.version == 0),
        ("sealed", secret.sealed.is_empty()),
    ] {
        if is_empty {
            return Err(reject::invalid(field, "empty"));
        }
    }
    let before = tx.get::<v1::Secret>(&(deployment.clone(), name.clone()));
    match &before {
        Some(before) if before.version == secret.version => {
            return tx.put(v1::Secret {
                sealed: secret.sealed.clone(),
                key_id: secret.key_id.clone(),
                ..v1::Secret::clone(before)
            });
        }
        Some(before) if before.version > secret.version => {
            let message = "the secret has a newer version than the command was built on";
            return Err(reject::conflict(reject::STALE_VERSION, message)
                .with("version", secret.version)
                .with("stored", before.version));
        }
        Some(_) => {}
        None => check_number(tx, deployment)?,
    }
    tx.put(v1::Secret {
        updated_at: Some(origin.ts),
        updated_by: origin.identity.to_owned(),
        ..secret.clone()
    })?;
    audit::record(
        tx,
        origin,
        AuditEventType::SecretSet,
        [
            ("deployment", deployment.clone()),
            ("name", name.clone()),
            ("version", secret.version.to_string()),
        ],
    )
}

/// Fails if the deployment has no room for one more.
fn check_number(tx: &Tx, deployment: &str) -> Result<(), Error> {
    if tx.state().secrets_of(deployment).count() < MAX_SECRETS {
        return Ok(());
    }
    let message = format!("deployment {deployment:?} has {MAX_SECRETS} secrets, the most it can");
    Err(Error::new(ErrorCode::ValidationFailed, message)
        .with("deployment", deployment)
        .with("limit", MAX_SECRETS))
}

/// Removes a secret that no service of the revision in force, nor of the one that a rollback
/// restores, has.
pub(super) fn remove(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::SecretRemove,
) -> Result<(), Error> {
    let (deployment, name) = (&command.deployment, &command.name);
    let key = (deployment.clone(), name.clone());
    if !tx.state().secrets.contains_key(&key) {
        return Err(secret_not_found(deployment, name));
    }
    let users = users(tx, deployment, name);
    if !users.is_empty() {
        let users: Vec<&str> = users.iter().map(String::as_str).collect();
        let users = users.join(",");
        let message = format!(
            "secret {name:?} belongs to services ({users}) of the revision in force or of the one \
             before: apply without it first, twice if a rollback may not need it either"
        );
        return Err(Error::new(ErrorCode::ValidationFailed, message)
            .with("deployment", deployment)
            .with("name", name)
            .with("services", users));
    }
    tx.remove::<v1::Secret>(&key);
    audit::record(
        tx,
        origin,
        AuditEventType::SecretRemoved,
        [("deployment", deployment.clone()), ("name", name.clone())],
    )
}

/// Names of the services that have a secret, in the revision in force and in the one before.
fn users(tx: &Tx, deployment: &str, name: &str) -> BTreeSet<String> {
    let Some(deployment) = tx.state().deployments.get(deployment) else {
        return BTreeSet::new();
    };
    let previous = deployment.previous.iter().flat_map(|one| &one.services);
    let services = deployment.services.iter().chain(previous);
    let users = services.filter(|service| service.secrets.iter().any(|one| one == name));
    users.map(|service| service.name.clone()).collect()
}

/// Fails if a service has a secret without a value: it could never start.
pub(super) fn require(
    tx: &Tx,
    deployment: &str,
    services: &[v1::ServiceSpec],
) -> Result<(), Error> {
    let named: BTreeSet<&str> = services
        .iter()
        .flat_map(|service| service.secrets.iter().map(String::as_str))
        .collect();
    let stored = |name: &str| {
        let key = (deployment.to_owned(), name.to_owned());
        tx.state().secrets.contains_key(&key)
    };
    let missing: Vec<&str> = named.into_iter().filter(|name| !stored(name)).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(missing_values(deployment, &missing)),
    }
}

fn missing_values(deployment: &str, names: &[&str]) -> Error {
    let names = names.join(",");
    let message = format!(
        "no value is stored for the secrets {names}: apply with `jaco apply`, which sends them, or \
         set each with `jaco secret set {deployment} NAME`"
    );
    Error::new(ErrorCode::SecretMissing, message)
        .with("deployment", deployment)
        .with("names", names)
}
