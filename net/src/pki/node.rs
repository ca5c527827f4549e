//! Keys and certificates of one node.

use std::{fmt, net::IpAddr};

use jaco_proto::secret::SecretString;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, PublicKeyData};
use rustls_pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;

use super::{
    Error, Fingerprint,
    authority::{name_node, public_key},
    certificates, check_hostname,
};

/// The Ed25519 key of a node; it never leaves the machine.
pub struct NodeKey {
    pair: KeyPair,
    pem: SecretString,
}

impl NodeKey {
    /// Generates a new key.
    ///
    /// # Errors
    /// [`Error::Crypto`] when the machine cannot generate keys.
    pub fn generate() -> Result<Self, Error> {
        let pair =
            KeyPair::generate_for(&PKCS_ED25519).map_err(Error::crypto("generate the node key"))?;
        let pem = SecretString::new(pair.serialize_pem());
        Ok(Self { pair, pem })
    }

    /// Restores a key from its PKCS#8 PEM.
    ///
    /// # Errors
    /// [`Error::Pem`] if it does not parse.
    pub fn from_pem(pem: SecretString) -> Result<Self, Error> {
        let pair = KeyPair::from_pem(pem.expose()).map_err(|_| Error::Pem("node key"))?;
        Ok(Self { pair, pem })
    }

    /// The PKCS#8 PEM.
    #[must_use]
    pub fn pem(&self) -> &SecretString {
        &self.pem
    }

    /// Makes a PEM signing request that names `hostname` and `ips`.
    ///
    /// # Errors
    /// [`Error::Hostname`] if the name cannot be a node's.
    pub fn request(&self, hostname: &str, ips: &[IpAddr]) -> Result<String, Error> {
        check_hostname(hostname)?;
        let mut params = CertificateParams::default();
        name_node(&mut params, hostname, ips)?;
        params
            .serialize_request(&self.pair)
            .and_then(|request| request.pem())
            .map_err(Error::crypto("make the signing request"))
    }

    pub(super) fn pair(&self) -> &KeyPair {
        &self.pair
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeKey(..)")
    }
}

/// The certificate of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCert {
    pem: String,
    der: CertificateDer<'static>,
}

impl NodeCert {
    /// Parses a PEM certificate; text after the first certificate is ignored.
    ///
    /// # Errors
    /// [`Error::Pem`] if it does not parse.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        let der = certificates(pem)?.swap_remove(0);
        Ok(Self {
            pem: pem.to_owned(),
            der,
        })
    }

    /// The PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The DER.
    #[must_use]
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// SHA-256 of the DER, by which peers identify this node.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.der)
    }

    /// The addresses among the subject's alternative names.
    ///
    /// # Errors
    /// [`Error::Pem`] if it does not parse.
    pub fn ips(&self) -> Result<Vec<IpAddr>, Error> {
        let damaged = |_| Error::Pem("certificate");
        let (_, cert) = x509_parser::parse_x509_certificate(&self.der).map_err(damaged)?;
        let names = cert.subject_alternative_name();
        let names = names.map_err(|_| Error::Pem("certificate"))?;
        let names = names.map(|names| names.value.general_names.as_slice());
        let ips = names.unwrap_or_default().iter().filter_map(|name| {
            let GeneralName::IPAddress(bytes) = name else {
                return None;
            };
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from))
                .ok()
        });
        Ok(ips.collect())
    }

    /// Checks that the certificate was issued for `key`.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if it was issued for another key.
    pub fn check_key(&self, key: &NodeKey) -> Result<(), Error> {
        if public_key(&self.der)? == key.pair.der_bytes() {
            Ok(())
        } else {
            Err(Error::Mismatch("it was made for another key"))
        }
    }
}
