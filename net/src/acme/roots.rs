//! Roots that the certificate of a directory may verify under.

use std::{env, fs, path::PathBuf, sync::Arc};

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

use crate::{pki, tls};

/// Variable that names another file with the roots of the system, as for OpenSSL.
const VARIABLE: &str = "SSL_CERT_FILE";
/// Files with the roots of the system: Debian, Fedora, older Fedora, openSUSE, Alpine.
const FILES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Error of the roots.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// An extra root does not parse, or is not usable as one.
    #[error("an extra root is not a valid certificate")]
    Extra,
    /// Neither the system nor the caller has a root.
    #[error("no root certificates: install ca-certificates")]
    None,
    /// The configuration cannot be built.
    #[error("tls configuration")]
    Tls(#[source] rustls::Error),
}

/// Configuration of a client that trusts the roots of the system and `extra`, a PEM text.
pub(super) fn client_config(extra: Option<&str>) -> Result<Arc<ClientConfig>, RootsError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(system());
    for root in extra
        .map(pki::certificates)
        .transpose()
        .map_err(|_| RootsError::Extra)?
        .into_iter()
        .flatten()
    {
        roots.add(root).map_err(|_| RootsError::Extra)?;
    }
    if roots.is_empty() {
        return Err(RootsError::None);
    }
    let config = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(RootsError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Roots of the system; none if it has no file of them. Invalid ones are skipped.
fn system() -> Vec<CertificateDer<'static>> {
    let named = env::var_os(VARIABLE).map(PathBuf::from);
    let files = named.into_iter().chain(FILES.map(PathBuf::from));
    let texts = files.filter_map(|path| fs::read(path).ok());
    let mut parsed = texts.map(|text| {
        CertificateDer::pem_slice_iter(&text)
            .filter_map(Result::ok)
            .collect::<Vec<_>>()
    });
    parsed.find(|roots| !roots.is_empty()).unwrap_or_default()
}
