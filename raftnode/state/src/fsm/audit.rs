//! Audit trail.

use jaco_proto::{
    Error,
    v1::{self, AuditEventType},
};

use super::{Origin, Tx, reject};

/// Records an audit event with the command's identity and timestamp.
pub(super) fn record<const N: usize>(
    tx: &mut Tx,
    origin: &Origin<'_>,
    kind: AuditEventType,
    payload: [(&str, String); N],
) -> Result<(), Error> {
    let event = v1::AuditEvent {
        raft_index: tx.index(),
        r#type: kind.into(),
        identity: origin.identity.to_owned(),
        ts: Some(origin.ts),
        payload: payload
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
        ordinal: tx.next_ordinal(),
    };
    tx.put(event)
}

/// Appends an event written by the proposer; blank fields are filled from the command.
pub(super) fn append(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::AuditAppend,
) -> Result<(), Error> {
    let mut event = reject::required("event", command.event.as_ref())?.clone();
    match AuditEventType::try_from(event.r#type) {
        Ok(AuditEventType::Unspecified) | Err(_) => {
            return Err(reject::invalid("type", "not a kind of audit event"));
        }
        Ok(_) => {}
    }
    event.raft_index = tx.index();
    event.ordinal = tx.next_ordinal();
    event.ts = event.ts.or(Some(origin.ts));
    if event.identity.is_empty() {
        origin.identity.clone_into(&mut event.identity);
    }
    tx.put(event)
}
