//! Certificates: leases, the certificate store and HTTP-01 challenges.

use jaco_proto::{Error, v1};
use prost_types::Timestamp;

use super::{Origin, Tx, reject, time};

/// Acquires or renews the lease; rejected while another lessee holds an unexpired one.
pub(super) fn lock(tx: &mut Tx, origin: &Origin<'_>, command: &v1::CertLock) -> Result<(), Error> {
    if command.lessee.is_empty() {
        return Err(reject::invalid("lessee", "empty"));
    }
    let before = tx.get::<v1::Cert>(&command.name);
    if let Some(cert) = before.as_deref()
        && cert.lessee != command.lessee
        && is_locked(cert, &origin.ts)
    {
        return Err(
            reject::conflict(reject::CERT_LOCK_HELD, "another node holds the lock")
                .with("name", &command.name)
                .with("lessee", &cert.lessee),
        );
    }
    sweep_locks(tx, &origin.ts, &command.name);
    tx.put(v1::Cert {
        domain: command.name.clone(),
        lessee: command.lessee.clone(),
        lock_until: command.until,
        ..before.as_deref().cloned().unwrap_or_default()
    })
}

pub(super) fn unlock(tx: &mut Tx, command: &v1::CertUnlock) -> Result<(), Error> {
    match tx.get::<v1::Cert>(&command.name) {
        Some(cert) => tx.put(unlocked(&cert)),
        None => Ok(()),
    }
}

/// Releases the leases of a removed host.
pub(super) fn release_locks_of(tx: &mut Tx, host: &str) -> Result<(), Error> {
    let held: Vec<v1::Cert> = tx
        .state()
        .certs
        .values()
        .filter(|cert| cert.lessee == host)
        .map(|cert| unlocked(cert))
        .collect();
    held.into_iter().try_for_each(|cert| tx.put(cert))
}

fn unlocked(cert: &v1::Cert) -> v1::Cert {
    v1::Cert {
        lessee: String::new(),
        lock_until: None,
        ..cert.clone()
    }
}

fn is_locked(cert: &v1::Cert, now: &Timestamp) -> bool {
    !cert.lessee.is_empty() && !time::is_past(cert.lock_until.as_ref(), now)
}

/// Removes rows without a lease and without a valid certificate, except `name`.
fn sweep_locks(tx: &mut Tx, now: &Timestamp, name: &str) {
    tx.remove_where::<v1::Cert>(|cert| {
        cert.domain != name && !is_locked(cert, now) && time::is_past(cert.not_after.as_ref(), now)
    });
}

/// Stores the challenge response and removes expired ones.
pub(super) fn store_challenge(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::ChallengeTokenStore,
) -> Result<(), Error> {
    let token = reject::required("token", command.token.as_ref())?;
    let now = time::nanos(Some(&origin.ts));
    tx.remove_where::<v1::ChallengeToken>(|old| {
        old.token != token.token && time::nanos(old.expires_at.as_ref()) < now
    });
    tx.put(token.clone())
}

/// Stores the value; a blob without a key is ignored.
pub(super) fn upsert_blob(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::CertBlobUpsert,
) -> Result<(), Error> {
    let blob = reject::required("blob", command.blob.as_ref())?;
    if blob.key.is_empty() {
        return Ok(());
    }
    tx.put(v1::CertBlob {
        updated_at: blob.updated_at.or(Some(origin.ts)),
        ..blob.clone()
    })
}
