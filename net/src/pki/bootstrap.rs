//! The certificate a node serves before it belongs to a cluster.

use std::{
    net::IpAddr,
    time::{Duration, SystemTime},
};

use jaco_proto::secret::SecretString;
use rcgen::{ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256};

use super::{
    Error, Fingerprint, MAX_CLOCK_SKEW, authority::name_node, certificates, check_hostname, params,
};

/// Validity period; the certificate is replaced earlier, when the node joins a cluster.
const LIFETIME: Duration = Duration::from_secs(3652 * 24 * 3600);

/// A self-signed ECDSA P-256 certificate and its key; clients pin it by fingerprint.
#[derive(Clone, Debug)]
pub struct BootstrapCert {
    cert_pem: String,
    key_pem: SecretString,
    fingerprint: Fingerprint,
}

impl BootstrapCert {
    /// Generates a certificate for a host that is dialled by `hostname` or one of `ips`.
    ///
    /// # Errors
    /// [`Error::Hostname`] if the name cannot be a node's.
    pub fn generate(hostname: &str, ips: &[IpAddr], now: SystemTime) -> Result<Self, Error> {
        check_hostname(hostname)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
            .map_err(Error::crypto("generate the bootstrap key"))?;
        let mut params = params(now - MAX_CLOCK_SKEW, now + LIFETIME)?;
        name_node(&mut params, hostname, ips)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let cert = params
            .self_signed(&key)
            .map_err(Error::crypto("sign the bootstrap certificate"))?;
        Self::from_pem(&cert.pem(), SecretString::new(key.serialize_pem()))
    }

    /// Restores a certificate from an earlier run, so that its fingerprint survives restarts.
    ///
    /// # Errors
    /// [`Error::Pem`] if the certificate does not parse.
    pub fn from_pem(cert_pem: &str, key_pem: SecretString) -> Result<Self, Error> {
        let fingerprint = Fingerprint::of(&certificates(cert_pem)?[0]);
        Ok(Self {
            cert_pem: cert_pem.to_owned(),
            key_pem,
            fingerprint,
        })
    }

    /// The certificate as PEM.
    #[must_use]
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The PKCS#8 key as PEM.
    #[must_use]
    pub fn key_pem(&self) -> &SecretString {
        &self.key_pem
    }

    /// SHA-256 of the certificate, which clients pin.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}
