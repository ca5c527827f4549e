//! Issued certificates and facts about them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jaco_proto::secret::SecretString;
use rustls::{crypto::ring, sign::CertifiedKey};
use rustls_pki_types::{PrivateKeyDer, pem::PemObject as _};
use sha2::{Digest as _, Sha256};
use x509_parser::{
    certificate::X509Certificate, extensions::GeneralName, prelude::FromDer as _, time::ASN1Time,
};

use crate::pki;

/// A chain and its key.
#[derive(Clone, Debug)]
pub struct Issued {
    /// Chain in PEM, leaf first.
    pub chain_pem: String,
    /// Key of the leaf in PKCS#8 PEM.
    pub key_pem: SecretString,
}

/// Facts about a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// SHA-256 of the leaf's DER.
    pub fingerprint: [u8; 32],
    /// Start of the leaf's validity.
    pub not_before: SystemTime,
    /// End of the leaf's validity.
    pub not_after: SystemTime,
    /// Whether the leaf names the domain and belongs to the key.
    pub covers: bool,
}

/// Reads facts about a chain and its key, both in PEM; `None` if the leaf does not parse.
#[must_use]
pub fn inspect(domain: &str, chain_pem: &str, key_pem: &SecretString) -> Option<CertificateFacts> {
    let chain = pki::certificates(chain_pem).ok()?;
    let der = chain.first()?.clone();
    let (_, leaf) = X509Certificate::from_der(&der).ok()?;
    let names_domain = names(&leaf).any(|name| covers(name, domain));
    let key = PrivateKeyDer::from_pem_slice(key_pem.expose().as_bytes()).ok();
    let fits = |key| CertifiedKey::from_der(chain, key, &ring::default_provider()).is_ok();
    let validity = leaf.validity();
    Some(CertificateFacts {
        fingerprint: Sha256::digest(&der).into(),
        not_before: time(validity.not_before)?,
        not_after: time(validity.not_after)?,
        covers: names_domain && key.is_some_and(fits),
    })
}

/// Reads the end of the validity of the first certificate of a PEM text.
#[must_use]
pub fn not_after(chain_pem: &str) -> Option<SystemTime> {
    let chain = pki::certificates(chain_pem).ok()?;
    let (_, leaf) = X509Certificate::from_der(chain.first()?).ok()?;
    time(leaf.validity().not_after)
}

/// DNS names of a leaf.
fn names<'a>(leaf: &'a X509Certificate<'_>) -> impl Iterator<Item = &'a str> {
    let extension = leaf.subject_alternative_name().ok().flatten();
    let names = extension
        .into_iter()
        .flat_map(|extension| &extension.value.general_names);
    names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        // Only names are served here.
        _ => None,
    })
}

/// Whether a name of a certificate covers `domain`; a wildcard stands for one label.
fn covers(name: &str, domain: &str) -> bool {
    let parent = domain.split_once('.').map(|(_, parent)| parent);
    name.eq_ignore_ascii_case(domain)
        || name
            .strip_prefix("*.")
            .zip(parent)
            .is_some_and(|(name, parent)| name.eq_ignore_ascii_case(parent))
}

fn time(time: ASN1Time) -> Option<SystemTime> {
    let seconds = u64::try_from(time.timestamp()).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn issue(names: &[&str]) -> (String, SecretString) {
        let names = names.iter().map(|name| (*name).to_owned());
        let mut params = CertificateParams::new(names.collect::<Vec<_>>()).unwrap();
        params.not_before = date_time_ymd(2030, 1, 1);
        params.not_after = date_time_ymd(2030, 4, 1);
        let key = KeyPair::generate().unwrap();
        let chain = params.self_signed(&key).unwrap().pem();
        (chain, SecretString::new(key.serialize_pem()))
    }

    #[test]
    fn facts_are_those_of_the_leaf() {
        let (chain, key) = issue(&["a.example"]);
        let facts = inspect("A.example", &chain, &key).unwrap();
        assert!(facts.covers);
        assert_eq!(not_after(&chain), Some(facts.not_after));
        let lifetime = facts.not_after.duration_since(facts.not_before).unwrap();
        assert_eq!(lifetime.as_secs(), 90 * 24 * 3600);
        let (other, foreign) = issue(&["a.example"]);
        assert!(!inspect("a.example", &chain, &foreign).unwrap().covers);
        let other = inspect("a.example", &other, &foreign).unwrap();
        assert_ne!(other.fingerprint, facts.fingerprint);
        let damaged = SecretString::new("key".to_owned());
        assert!(!inspect("a.example", &chain, &damaged).unwrap().covers);
        assert_eq!(inspect("a.example", "chain", &key), None);
    }

    #[test]
    fn names_are_compared_label_by_label() {
        let table = [
            ("a.example", "a.example", true),
            ("A.EXAMPLE", "a.example", true),
            ("*.example", "a.example", true),
            ("*.example", "b.a.example", false),
            ("*.example", "example", false),
            ("a.example", "b.a.example", false),
            ("*", "a", false),
        ];
        for (name, domain, expected) in table {
            assert_eq!(covers(name, domain), expected, "{name} {domain}");
        }
    }
}
