//! Registry credentials by canonical registry key.

use jaco_proto::{
    Error,
    v1::{self, AuditEventType},
};

use super::{Origin, Tx, audit, reject};
use crate::registry::canonical_key;

/// Stores the credential; one without a registry is ignored.
pub(super) fn upsert(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::RegistryCredentialUpsert,
) -> Result<(), Error> {
    let credential = reject::required("credential", command.credential.as_ref())?;
    let Some(registry) = canonical_key(&credential.registry) else {
        return Ok(());
    };
    tx.put(v1::RegistryCredential {
        registry: registry.clone(),
        username: credential.username.clone(),
        secret: credential.secret.clone(),
        updated_at: credential.updated_at.or(Some(origin.ts)),
    })?;
    audit::record(
        tx,
        origin,
        AuditEventType::RegistryCredentialUpsert,
        [
            ("registry", registry),
            ("username", credential.username.clone()),
        ],
    )
}

/// Removes the credential. A missing one is no error and is audited all the same.
pub(super) fn remove(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::RegistryCredentialRemove,
) -> Result<(), Error> {
    let registry = canonical_key(&command.registry).unwrap_or_default();
    tx.remove::<v1::RegistryCredential>(&registry);
    audit::record(
        tx,
        origin,
        AuditEventType::RegistryCredentialRemove,
        [("registry", registry)],
    )
}
