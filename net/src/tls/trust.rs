//! Trust anchors of a client.

use std::{sync::Arc, time::SystemTime};

use rustls::{
    CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{Error, provider};
use crate::pki::{Fingerprint, NodeCert, certificates};

/// The certificates a client pins. In every case the leaf must be valid now, be issued for servers
/// and match the dialled name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The leaf verifies under one of these PEM certificates.
    Ca(String),
    /// The presented chain contains a certificate with this fingerprint, which is a CA or the leaf
    /// itself, and the leaf verifies under it.
    Fingerprint(Fingerprint),
    /// Both of the above.
    CaAndFingerprint(String, Fingerprint),
}

impl Trust {
    pub(super) fn verifier(&self) -> Result<Arc<dyn ServerCertVerifier>, Error> {
        let provider = provider();
        let (ca_pem, fingerprint) = match self {
            Self::Ca(pem) => (Some(pem), None),
            Self::Fingerprint(print) => (None, Some(*print)),
            Self::CaAndFingerprint(pem, print) => (Some(pem), Some(*print)),
        };
        let ca = match ca_pem {
            Some(pem) => {
                let anchors = certificates(pem).map_err(|_| Error::Pem("CA certificate"))?;
                Some(anchored(&anchors, provider.clone())?)
            }
            None => None,
        };
        Ok(Arc::new(Pinned {
            ca,
            fingerprint,
            provider,
        }))
    }
}

/// Checks the certificate of a member: it verifies under the CA `ca_pem`, is valid at `now` and
/// carries `hostname`.
///
/// # Errors
/// [`Error::Pem`] or [`Error::Anchor`] if the CA is invalid, [`Error::Unusable`] with the reason if
/// the certificate is.
pub fn check_member(
    ca_pem: &str,
    cert: &NodeCert,
    hostname: &str,
    now: SystemTime,
) -> Result<(), Error> {
    let name = ServerName::try_from(hostname.to_owned())
        .map_err(|_| Error::Unusable(CertificateError::NotValidForName.into()))?;
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    let now = UnixTime::since_unix_epoch(since.unwrap_or_default());
    let verifier = Trust::Ca(ca_pem.to_owned()).verifier()?;
    let verified = verifier.verify_server_cert(cert.der(), &[], &name, &[], now);
    verified.map(drop).map_err(Error::Unusable)
}

/// A verifier that accepts only chains under `anchors`.
fn anchored(
    anchors: &[CertificateDer<'_>],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, Error> {
    WebPkiServerVerifier::builder_with_provider(roots(anchors)?, provider)
        .build()
        .map_err(Error::Anchor)
}

/// A store of only `anchors`.
pub(crate) fn roots(anchors: &[CertificateDer<'_>]) -> Result<Arc<RootCertStore>, Error> {
    let mut roots = RootCertStore::empty();
    for anchor in anchors {
        roots
            .add(anchor.clone().into_owned())
            .map_err(Error::Unusable)?;
    }
    Ok(Arc::new(roots))
}

#[derive(Debug)]
struct Pinned {
    ca: Option<Arc<WebPkiServerVerifier>>,
    fingerprint: Option<Fingerprint>,
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    /// Finds the certificate with the pinned fingerprint in the chain.
    ///
    /// A pinned leaf only vouches for itself: whether it really is self-signed is checked by the
    /// path verification. Any further certificate must be a CA, or the holder of any certificate
    /// with a known fingerprint could sign for other names.
    fn anchor<'a>(
        print: Fingerprint,
        leaf: &'a CertificateDer<'a>,
        rest: &'a [CertificateDer<'a>],
    ) -> Result<&'a CertificateDer<'a>, rustls::Error> {
        if Fingerprint::of(leaf) == print {
            return Ok(leaf);
        }
        rest.iter()
            .find(|cert| Fingerprint::of(cert) == print)
            .filter(|cert| is_authority(cert))
            .ok_or(CertificateError::UnknownIssuer.into())
    }
}

fn is_authority(der: &[u8]) -> bool {
    x509_parser::parse_x509_certificate(der).is_ok_and(|(_, cert)| cert.is_ca())
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let mut verified = None;
        if let Some(print) = self.fingerprint {
            let anchor = Self::anchor(print, leaf, rest)?;
            let verifier = anchored(std::slice::from_ref(anchor), self.provider.clone())
                .map_err(|_| CertificateError::BadEncoding)?;
            verified = Some(verifier.verify_server_cert(leaf, rest, name, ocsp, now)?);
        }
        if let Some(ca) = &self.ca {
            verified = Some(ca.verify_server_cert(leaf, rest, name, ocsp, now)?);
        }
        verified.ok_or_else(|| CertificateError::UnknownIssuer.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
