//! Cluster configuration.
//!
//! The leader has checked key and value: a version that does not know a key stores it all the same.

use jaco_proto::{
    Error,
    v1::{self, AuditEventType},
};

use super::{Origin, Tx, audit, reject};

/// Sets or unsets one key; without a change nothing is written or audited.
pub(super) fn set(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::ClusterConfigSet,
) -> Result<(), Error> {
    if command.key.is_empty() {
        return Err(reject::invalid("key", "empty"));
    }
    let before = tx.get::<v1::ClusterConfig>(&command.key);
    let old = before.as_deref().map(|row| row.value.as_str());
    let new = (!command.unset).then_some(command.value.as_str());
    if old == new {
        return Ok(());
    }
    match new {
        Some(value) => tx.put(v1::ClusterConfig {
            key: command.key.clone(),
            value: value.to_owned(),
            updated_at: Some(origin.ts),
            updated_by: origin.identity.to_owned(),
        })?,
        None => {
            tx.remove::<v1::ClusterConfig>(&command.key);
        }
    }
    let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
    audit::record(
        tx,
        origin,
        AuditEventType::ConfigChanged,
        [
            ("key", command.key.clone()),
            ("old", text(old)),
            ("new", text(new)),
        ],
    )
}
