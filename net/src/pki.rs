//! Keys and certificates of a cluster.
//!
//! One Ed25519 CA signs one certificate per node. Before a node belongs to a cluster it serves a
//! self-signed bootstrap certificate that clients pin by fingerprint.
//!
//! - [`authority`]: [`ClusterCa`], which signs node certificates.
//! - [`node`]: [`NodeKey`], [`NodeCert`] and certificate signing requests.
//! - [`bootstrap`]: the certificate of the setup phase.
//! - [`fingerprint`]: [`Fingerprint`], SHA-256 over the DER of a certificate.
//! - [`files`]: crash-safe files with exact permissions.

pub mod authority;
pub mod bootstrap;
mod error;
pub mod files;
pub mod fingerprint;
mod name;
pub mod node;

pub use authority::{ClusterCa, MAX_REQUEST_ADDRESSES, dialable};
pub use bootstrap::BootstrapCert;
pub use error::Error;
pub use fingerprint::Fingerprint;
pub use name::check_hostname;
pub use node::{NodeCert, NodeKey};

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, SerialNumber};
use rustls_pki_types::{CertificateDer, pem::PemObject};

/// Lifetime of the CA and of every node certificate: ten years.
pub const LIFETIME: Duration = Duration::from_secs(3652 * 24 * 3600);

/// Largest difference between the clock of a joining node and that of the cluster. An authority
/// begins this long before it is generated, so that such a node accepts the certificates of a new
/// cluster.
pub const MAX_CLOCK_SKEW: Duration = Duration::from_secs(60);

/// Parses every certificate of a PEM text, in order; at least one.
///
/// # Errors
/// [`Error::Pem`] if the text holds no certificate or an invalid one.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| Error::Pem("certificate"))?;
    if all.is_empty() {
        return Err(Error::Pem("certificate"));
    }
    Ok(all)
}

/// Parameters common to all certificates: validity and a random serial.
fn params(not_before: SystemTime, not_after: SystemTime) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let date = |time: SystemTime| epoch + time.duration_since(UNIX_EPOCH).unwrap_or_default();
    params.not_before = date(not_before);
    params.not_after = date(not_after);
    params.serial_number = Some(serial()?);
    Ok(params)
}

/// A random positive serial of 16 bytes.
fn serial() -> Result<SerialNumber, Error> {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(|_| Error::Random)?;
    // DER integers are signed; a first byte of 0x40..0x7f keeps it positive and full length.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

#[cfg(test)]
mod tests;
