//! TLS between clients and nodes.
//!
//! The server presents the certificate in its [`CertSlot`], so a node that joins a cluster replaces
//! its bootstrap certificate without closing its listener. A client always pins a [`Trust`];
//! verification cannot be skipped.

pub mod dial;
mod trust;

pub use dial::dial;
pub(crate) use trust::roots;
pub use trust::{Trust, check_member};

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use jaco_proto::secret::SecretString;
use rustls::{
    CertificateError, ClientConfig, ServerConfig,
    client::danger::ServerCertVerifier,
    crypto::{CryptoProvider, ring},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{PrivateKeyDer, pem::PemObject};

use crate::pki::{BootstrapCert, NodeCert, certificates, files::NodeFiles};

/// Protocol name of the API in the handshake.
pub const ALPN: &[u8] = b"h2";

/// Why a TLS configuration could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A PEM text did not parse; holds the kind of text that was expected.
    #[error("{0} did not parse as PEM")]
    Pem(&'static str),
    /// Key or certificate is invalid, or they do not match.
    #[error("unusable certificate or key")]
    Unusable(#[source] rustls::Error),
    /// The pinned CA certificate is invalid.
    #[error("unusable trust anchor")]
    Anchor(#[source] rustls::server::VerifierBuilderError),
}

impl Error {
    /// The beginning of the certificate's validity, if the certificate was refused because it is
    /// not valid yet.
    #[must_use]
    pub fn not_valid_before(&self) -> Option<SystemTime> {
        match self {
            Self::Unusable(error) => not_valid_before(error),
            Self::Pem(_) | Self::Anchor(_) => None,
        }
    }
}

/// The beginning of the validity of a certificate that is not valid yet, if that is the error.
fn not_valid_before(error: &rustls::Error) -> Option<SystemTime> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before,
            ..
        }) => Some(SystemTime::UNIX_EPOCH + Duration::from_secs(not_before.as_secs())),
        _ => None,
    }
}

/// The signature methods of a certificate verifier, delegated to field `$inner`.
macro_rules! delegate_signatures {
    ($inner:ident) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            self.$inner.verify_tls12_signature(message, cert, signature)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &rustls_pki_types::CertificateDer<'_>,
            signature: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            self.$inner.verify_tls13_signature(message, cert, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.$inner.supported_verify_schemes()
        }
    };
}
pub(crate) use delegate_signatures;

/// The crypto provider that every configuration of the process uses.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A certificate chain and its key, ready to serve.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Chain presented to clients.
    served: Arc<CertifiedKey>,
    /// Chain presented to members.
    to_members: Arc<CertifiedKey>,
}

impl Identity {
    /// Parses a chain, leaf first, and the PKCS#8 key of the leaf, as PEM.
    ///
    /// # Errors
    /// [`Error::Pem`] if either does not parse, [`Error::Unusable`] if they do not match.
    pub fn from_pem(chain_pem: &str, key_pem: &SecretString) -> Result<Self, Error> {
        let chain = certificates(chain_pem).map_err(|_| Error::Pem("certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.expose().as_bytes())
            .map_err(|_| Error::Pem("private key"))?;
        CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map(|key| {
                let served = Arc::new(key);
                let to_members = served.clone();
                Self { served, to_members }
            })
            .map_err(Error::Unusable)
    }

    /// The identity of a node that belongs to no cluster.
    ///
    /// # Errors
    /// As [`Identity::from_pem`].
    pub fn bootstrap(cert: &BootstrapCert) -> Result<Self, Error> {
        Self::from_pem(cert.cert_pem(), cert.key_pem())
    }

    /// The identity of a member: its certificate, followed by the CA's, which clients that pin only
    /// a fingerprint look for.
    ///
    /// # Errors
    /// As [`Identity::from_pem`].
    pub fn node(files: &NodeFiles) -> Result<Self, Error> {
        let chain = format!("{}\n{}", files.cert.pem(), files.ca_pem);
        Self::from_pem(&chain, files.key.pem())
    }

    /// Adds `others` to the chain for members: certificates for the same key by which a member
    /// whose roster is behind or ahead may identify this node.
    #[must_use]
    pub fn with_others<'a>(mut self, others: impl IntoIterator<Item = &'a NodeCert>) -> Self {
        let mut to_members = CertifiedKey::clone(&self.served);
        let others = others.into_iter().map(|cert| cert.der().clone());
        to_members.cert.extend(others);
        self.to_members = Arc::new(to_members);
        self
    }
}

/// The certificate that a listener presents, replaceable while it listens.
#[derive(Debug)]
pub struct CertSlot(ArcSwap<Identity>);

impl CertSlot {
    /// A slot that presents `identity`.
    #[must_use]
    pub fn new(identity: &Identity) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(identity.clone())))
    }

    /// Presents `identity` from the next handshake on; open connections are not affected.
    pub fn replace(&self, identity: &Identity) {
        self.0.store(Arc::new(identity.clone()));
    }

    pub(crate) fn to_members(&self) -> Arc<CertifiedKey> {
        self.0.load().to_members.clone()
    }
}

impl ResolvesServerCert for CertSlot {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load().served.clone())
    }
}

/// Configuration of the API listener: TLS 1.2 or newer, HTTP/2 only.
///
/// # Errors
/// [`Error::Unusable`] if the provider lacks those versions.
pub fn api_server(slot: Arc<CertSlot>) -> Result<Arc<ServerConfig>, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(Error::Unusable)?
        .with_no_client_auth()
        .with_cert_resolver(slot);
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// Configuration of a client of the API: TLS 1.3, HTTP/2 only, pinned to `trust`.
///
/// # Errors
/// [`Error::Pem`] or [`Error::Anchor`] if the pinned certificate is invalid.
pub fn api_client(trust: &Trust) -> Result<Arc<ClientConfig>, Error> {
    client(trust.verifier()?)
}

fn client(verifier: Arc<dyn ServerCertVerifier>) -> Result<Arc<ClientConfig>, Error> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(Error::Unusable)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests;
