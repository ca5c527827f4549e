//! Certificates of operators. Their content is checked before the proposal.

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, AuditEventType},
};

use super::{Origin, Tx, audit, reject};

/// Stores the certificate in place of one of the same name. One that differs from it in the sealed key
/// alone is the same import under another secrets key.
pub(super) fn upsert(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::ImportedCertUpsert,
) -> Result<(), Error> {
    let cert = reject::required("cert", command.cert.as_ref())?;
    let not_after = reject::required("not_after", cert.not_after.as_ref())?;
    for (field, value) in [
        ("chain_pem", &cert.chain_pem),
        ("sealed_key", &cert.sealed_key),
    ] {
        if value.is_empty() {
            return Err(reject::invalid(field, "empty"));
        }
    }
    let before = tx.get::<v1::ImportedCert>(&cert.name);
    let cert = v1::ImportedCert {
        imported_at: cert.imported_at.or(Some(origin.ts)),
        ..cert.clone()
    };
    let resealed = before.is_some_and(|before| {
        let sealed_key = cert.sealed_key.clone();
        let before = v1::ImportedCert::clone(&before);
        v1::ImportedCert {
            sealed_key,
            ..before
        } == cert
    });
    let (domain, not_after) = (cert.name.clone(), not_after.to_string());
    tx.put(cert)?;
    if resealed {
        return Ok(());
    }
    audit::record(
        tx,
        origin,
        AuditEventType::CertificateImported,
        [("domain", domain), ("not_after", not_after)],
    )
}

/// Removes the certificate.
pub(super) fn remove(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::ImportedCertRemove,
) -> Result<(), Error> {
    let name = &command.name;
    if tx.remove::<v1::ImportedCert>(name).is_none() {
        return Err(Error::new(
            ErrorCode::CertNotFound,
            format!("no certificate was imported as {name:?}"),
        )
        .with("name", name));
    }
    audit::record(
        tx,
        origin,
        AuditEventType::CertificateRemoved,
        [("domain", name.clone())],
    )
}
