//! Checks of a certificate that an operator supplies.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jaco_proto::secret::SecretString;
use rustls::{InconsistentKeys, crypto::ring, sign::CertifiedKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use sha2::{Digest as _, Sha256};
use x509_parser::{
    certificate::X509Certificate, extensions::GeneralName, prelude::FromDer as _, time::ASN1Time,
};

use crate::pki;

/// Longest chain in bytes.
const MAX_CHAIN: usize = 64 << 10;
/// Longest key in bytes.
const MAX_KEY: usize = 16 << 10;
/// Most certificates of a chain.
const MAX_CERTIFICATES: usize = 10;

/// A certificate that passed [`check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The certificates alone in PEM, leaf first: what else stood in the file, such as the key, is
    /// left out.
    pub chain_pem: String,
    /// SHA-256 of the leaf's DER.
    pub fingerprint: [u8; 32],
    /// Start of the leaf's validity.
    pub not_before: SystemTime,
    /// Time at which the first certificate of the chain expires.
    pub not_after: SystemTime,
}

/// Reason why a certificate is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The name is not a domain or `*.domain`.
    #[error("{0:?} is not a domain or *.domain in lower-case ASCII")]
    Name(String),
    /// The file is longer than any certificate needs.
    #[error("the {0} is too long")]
    TooLong(&'static str),
    /// The chain is not PEM of certificates.
    #[error("the chain does not hold certificates in PEM")]
    Chain,
    /// The key is not PEM of a private key that can sign.
    #[error("the key is not a private key in PEM of a supported kind")]
    Key,
    /// The key belongs to another certificate.
    #[error("the key does not belong to the first certificate of the chain")]
    KeyMismatch,
    /// A certificate was not issued by the next one.
    #[error("certificate {0} of the chain was not issued by the next one")]
    ChainOrder(usize),
    /// The leaf does not name the domain.
    #[error("the certificate is for {found}, not for {name}")]
    NameMismatch {
        /// Name to import as.
        name: String,
        /// Names of the certificate.
        found: String,
    },
    /// The validity of a certificate has not begun.
    #[error("certificate {0} of the chain is not valid yet")]
    NotYetValid(usize),
    /// The validity of a certificate has ended.
    #[error("certificate {0} of the chain has expired")]
    Expired(usize),
}

impl ImportError {
    /// Stable name of the reason, for the details of an error.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Name(_) => "name",
            Self::TooLong(_) => "too_long",
            Self::Chain => "chain_unreadable",
            Self::Key => "key_unreadable",
            Self::KeyMismatch => "key_mismatch",
            Self::ChainOrder(_) => "chain_order",
            Self::NameMismatch { .. } => "name_mismatch",
            Self::NotYetValid(_) => "not_yet_valid",
            Self::Expired(_) => "expired",
        }
    }
}

/// Checks that a chain and a key, both in PEM, can be presented at `now` for `name`: a domain, or
/// `*.domain` for all names with one more label.
///
/// The chain has to be in order, each certificate issued by the next; that its last one is trusted
/// is for clients to judge.
///
/// # Errors
/// [`ImportError`] with the first fault.
pub fn check(
    name: &str,
    chain_pem: &str,
    key_pem: &SecretString,
    now: SystemTime,
) -> Result<Imported, ImportError> {
    if !is_name(name) {
        return Err(ImportError::Name(name.to_owned()));
    }
    if chain_pem.len() > MAX_CHAIN {
        return Err(ImportError::TooLong("chain"));
    }
    if key_pem.expose().len() > MAX_KEY {
        return Err(ImportError::TooLong("key"));
    }
    let chain = pki::certificates(chain_pem).map_err(|_| ImportError::Chain)?;
    if chain.len() > MAX_CERTIFICATES {
        return Err(ImportError::TooLong("chain"));
    }
    let parsed = chain.iter().map(|der| X509Certificate::from_der(der));
    let parsed = parsed.map(|parsed| parsed.map(|(_, certificate)| certificate));
    let parsed: Vec<_> = parsed
        .collect::<Result<_, _>>()
        .map_err(|_| ImportError::Chain)?;
    let leaf = parsed.first().ok_or(ImportError::Chain)?;
    check_key(&chain, key_pem)?;
    check_order(&parsed)?;
    check_names(name, leaf)?;
    let not_after = check_dates(&parsed, now)?;
    Ok(Imported {
        chain_pem: chain.iter().map(to_pem).collect(),
        fingerprint: Sha256::digest(chain.first().ok_or(ImportError::Chain)?).into(),
        not_before: time(leaf.validity().not_before),
        not_after,
    })
}

fn check_key(chain: &[CertificateDer<'static>], key: &SecretString) -> Result<(), ImportError> {
    let key = PrivateKeyDer::from_pem_slice(key.expose().as_bytes());
    let provider = ring::default_provider();
    let key = provider
        .key_provider
        .load_private_key(key.map_err(|_| ImportError::Key)?)
        .map_err(|_| ImportError::Key)?;
    match CertifiedKey::new(chain.to_vec(), key).keys_match() {
        Ok(()) => Ok(()),
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err(ImportError::KeyMismatch)
        }
        Err(_) => Err(ImportError::Key),
    }
}

/// Each certificate has to name the next one as its issuer and to be signed by its key.
fn check_order(chain: &[X509Certificate<'_>]) -> Result<(), ImportError> {
    for (number, pair) in (1..).zip(chain.windows(2)) {
        let [issued, issuer] = pair else { continue };
        let named = issued.issuer() == issuer.subject();
        let signed = || issued.verify_signature(Some(issuer.public_key())).is_ok();
        if !(named && issuer.is_ca() && signed()) {
            return Err(ImportError::ChainOrder(number));
        }
    }
    Ok(())
}

fn check_names(name: &str, leaf: &X509Certificate<'_>) -> Result<(), ImportError> {
    let extension = leaf.subject_alternative_name().ok().flatten();
    let names = extension
        .into_iter()
        .flat_map(|extension| &extension.value.general_names);
    let names = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        // Only names are served here.
        _ => None,
    });
    let names: Vec<&str> = names.collect();
    if names.iter().any(|found| covers(found, name)) {
        return Ok(());
    }
    Err(ImportError::NameMismatch {
        name: name.to_owned(),
        found: match names[..] {
            [] => "no name".to_owned(),
            _ => names.join(", "),
        },
    })
}

/// Whether a name of a certificate covers `name`: a wildcard covers itself, and names with one label
/// in its place.
fn covers(found: &str, name: &str) -> bool {
    let parent = name.split_once('.').map(|(_, parent)| parent);
    let of_wildcard = found.strip_prefix("*.").zip(parent);
    found.eq_ignore_ascii_case(name)
        || of_wildcard.is_some_and(|(found, parent)| found.eq_ignore_ascii_case(parent))
}

/// Returns the first end of a validity.
fn check_dates(chain: &[X509Certificate<'_>], now: SystemTime) -> Result<SystemTime, ImportError> {
    let mut first = None;
    for (number, certificate) in (1..).zip(chain) {
        let validity = certificate.validity();
        let (begin, end) = (time(validity.not_before), time(validity.not_after));
        if now < begin {
            return Err(ImportError::NotYetValid(number));
        }
        if end <= now {
            return Err(ImportError::Expired(number));
        }
        first = Some(first.map_or(end, |first: SystemTime| first.min(end)));
    }
    first.ok_or(ImportError::Chain)
}

/// Whether `name` is a domain or `*.domain`, in lower-case ASCII (RFC 1123 section 2.1, and
/// underscores).
#[must_use]
pub fn is_name(name: &str) -> bool {
    let domain = name.strip_prefix("*.").unwrap_or(name);
    let plain = |label: &str| {
        let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        (1..=63).contains(&label.len())
            && label.bytes().all(allowed)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && domain.split('.').all(plain)
}

/// A time of a certificate; before the epoch it is the epoch.
fn time(time: ASN1Time) -> SystemTime {
    let seconds = u64::try_from(time.timestamp()).unwrap_or_default();
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    at.unwrap_or(UNIX_EPOCH)
}

/// Writes a certificate as PEM (RFC 7468).
fn to_pem(der: &CertificateDer<'_>) -> String {
    const LINE: usize = 64;
    let text = STANDARD.encode(der);
    let mut pem = String::with_capacity(text.len() + text.len() / LINE + 64);
    pem.push_str("-----BEGIN CERTIFICATE-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        // Base64 is ASCII, so every index is a boundary.
        let (line, next) = rest.split_at(rest.len().min(LINE));
        pem.push_str(line);
        pem.push('\n');
        rest = next;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

#[cfg(test)]
mod tests;
