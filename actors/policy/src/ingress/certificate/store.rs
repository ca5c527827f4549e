//! Keys of the replicated certificate store.
//!
//! | key | value |
//! |---|---|
//! | `certificates/<domain>/<directory>.crt` | chain, PEM, leaf first |
//! | `certificates/<domain>/<directory>.key` | private key of the leaf, PKCS#8 PEM |
//! | `accounts/<directory>/<contact>` | credentials of an account, opaque |
//!
//! A directory is named by the host and path of its address.

use jaco_proto::v1::{self, command::Payload};
use jaco_state::State;

use super::{Environment, Slot};

/// Address of the production directory of Let's Encrypt.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// Address of the staging directory of Let's Encrypt.
pub const LETS_ENCRYPT_STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";

const CERTIFICATES: &str = "certificates/";

/// Directories of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directories {
    /// Address of the configured directory.
    pub production: String,
    /// Address of the staging directory before it; `None` to order directly.
    pub staging: Option<String>,
}

impl Directories {
    /// Directories of a daemon with this address in `acme_ca`: Let's Encrypt's production directory
    /// has a staging directory, others do not.
    #[must_use]
    pub fn of_config(acme_ca: &str, skip_staging: bool) -> Self {
        let staging = acme_ca == LETS_ENCRYPT && !skip_staging;
        Self {
            production: acme_ca.to_owned(),
            staging: staging.then(|| LETS_ENCRYPT_STAGING.to_owned()),
        }
    }

    /// Address of the directory of `slot`.
    #[must_use]
    pub fn address(&self, slot: Slot) -> &str {
        match (slot, &self.staging) {
            (Slot::Staging, Some(staging)) => staging,
            (Slot::Staging | Slot::Production, _) => &self.production,
        }
    }

    /// Place of a stored certificate of the directory with this name: one of another authority, such
    /// as a former setting, counts as the configured one's until it is renewed.
    #[must_use]
    pub fn slot_of(&self, directory: &str) -> Slot {
        let is_configured = directory == directory_name(&self.production);
        match environment(directory) {
            Environment::Staging if !is_configured => Slot::Staging,
            Environment::Staging | Environment::Prod => Slot::Production,
        }
    }
}

/// Name of a directory in the store: host and path of its address.
#[must_use]
pub fn directory_name(address: &str) -> String {
    let start = address.find("://").map_or(0, |scheme| scheme + 3);
    let rest = address.get(start..).unwrap_or_default();
    let plain = |c: char| match c {
        'a'..='z' | '0'..='9' | '.' | '-' => c,
        'A'..='Z' => c.to_ascii_lowercase(),
        _ => '-',
    };
    rest.trim_end_matches('/').chars().map(plain).collect()
}

/// Kind of a directory, given its name or address.
#[must_use]
pub fn environment(directory: &str) -> Environment {
    if directory.contains("staging") {
        Environment::Staging
    } else {
        Environment::Prod
    }
}

/// Name of the lock of a domain.
#[must_use]
pub fn lock_name(domain: &str) -> String {
    format!("issue_cert_{domain}")
}

/// Keys of one certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateKeys {
    /// Key of the chain.
    pub chain: String,
    /// Key of the private key.
    pub key: String,
}

impl CertificateKeys {
    /// Keys of the certificate of `domain` from the directory with this name.
    #[must_use]
    pub fn new(domain: &str, directory: &str) -> Self {
        let base = format!("{CERTIFICATES}{domain}/{directory}");
        Self {
            chain: format!("{base}.crt"),
            key: format!("{base}.key"),
        }
    }

    /// Commands that store the certificate; both belong into one entry.
    #[must_use]
    pub fn upserts(&self, chain: Vec<u8>, key: Vec<u8>) -> [Payload; 2] {
        let upsert = |name: &str, value| {
            let blob = v1::CertBlob {
                key: name.to_owned(),
                value,
                updated_at: None,
            };
            Payload::CertBlobUpsert(v1::CertBlobUpsert { blob: Some(blob) })
        };
        [upsert(&self.chain, chain), upsert(&self.key, key)]
    }
}

/// Key of the account of a contact at the directory with this name.
#[must_use]
pub fn account_key(directory: &str, contact: &str) -> String {
    format!("accounts/{directory}/{contact}")
}

/// A stored certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredCertificate<'a> {
    /// Name of the directory that issued it.
    pub directory: &'a str,
    /// Row of the chain.
    pub chain: &'a v1::CertBlob,
    /// Row of the private key.
    pub key: &'a v1::CertBlob,
}

/// Stored certificates of `domain` that have both a chain and a key, by directory.
pub fn certificates<'a>(
    state: &'a State,
    domain: &str,
) -> impl Iterator<Item = StoredCertificate<'a>> {
    entries(state, domain).filter_map(|(name, chain)| {
        let base = name.strip_suffix(".crt")?;
        let key = state.cert_blobs.get(&format!("{base}.key"))?;
        let (_, directory) = base.rsplit_once('/')?;
        Some(StoredCertificate {
            directory,
            chain,
            key,
        })
    })
}

/// Keys of everything that is stored for `domain`.
pub fn keys(state: &State, domain: &str) -> impl Iterator<Item = String> {
    entries(state, domain).map(|(name, _)| name.clone())
}

/// Domains with an entry in the store.
#[must_use]
pub fn domains(state: &State) -> std::collections::BTreeSet<String> {
    let rows = state.cert_blobs.range(CERTIFICATES.to_owned()..);
    rows.map_while(|(name, _)| name.strip_prefix(CERTIFICATES))
        .filter_map(|rest| rest.split_once('/'))
        .map(|(domain, _)| domain.to_owned())
        .collect()
}

fn entries<'a>(
    state: &'a State,
    domain: &str,
) -> impl Iterator<Item = (&'a String, &'a v1::CertBlob)> {
    let prefix = format!("{CERTIFICATES}{domain}/");
    let rows = state.cert_blobs.range(prefix.clone()..);
    rows.map(|(name, blob)| (name, &**blob))
        .take_while(move |(name, _)| name.starts_with(&prefix))
}

/// Command that removes an entry of the store.
#[must_use]
pub fn removal(key: String) -> Payload {
    Payload::CertBlobRemove(v1::CertBlobRemove { key })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn directory_is_named_by_host_and_path() {
        let table = [
            (LETS_ENCRYPT, "acme-v02.api.letsencrypt.org-directory"),
            ("https://[::1]:14000/Dir/", "---1--14000-dir"),
            ("ca.example", "ca.example"),
        ];
        for (address, expected) in table {
            assert_eq!(directory_name(address), expected);
        }
    }

    #[test]
    fn only_lets_encrypt_production_is_staged() {
        let staged = Directories::of_config(LETS_ENCRYPT, false);
        assert_eq!(staged.address(Slot::Staging), LETS_ENCRYPT_STAGING);
        assert_eq!(Directories::of_config(LETS_ENCRYPT, true).staging, None);
        let other = Directories::of_config("https://ca.example/acme", false);
        assert_eq!(other.staging, None);
        assert_eq!(other.address(Slot::Production), "https://ca.example/acme");
    }

    #[test]
    fn configured_staging_directory_is_the_production_slot() {
        let name = directory_name(LETS_ENCRYPT_STAGING);
        let slot = |acme_ca| Directories::of_config(acme_ca, false).slot_of(&name);
        assert_eq!(slot(LETS_ENCRYPT), Slot::Staging);
        assert_eq!(slot(LETS_ENCRYPT_STAGING), Slot::Production);
        let former = Directories::of_config("https://new.example", false);
        assert_eq!(former.slot_of("old.example"), Slot::Production);
    }

    #[test]
    fn entries_of_a_domain_exclude_its_neighbours() {
        let mut state = State::default();
        let mut put = |key: &str| {
            let blob = v1::CertBlob {
                key: key.to_owned(),
                ..v1::CertBlob::default()
            };
            state.cert_blobs.insert(key.to_owned(), Arc::new(blob));
        };
        for key in [
            "accounts/ca/x",
            "certificates/a.example/ca.crt",
            "certificates/a.example/ca.key",
            "certificates/a.example/half.crt",
            "certificates/a.example.org/ca.crt",
            "certificates/a.exampl/ca.crt",
            "other",
        ] {
            put(key);
        }
        let found: Vec<_> = certificates(&state, "a.example").collect();
        assert_eq!(found.len(), 1, "a chain without a key does not count");
        assert_eq!(found[0].directory, "ca");
        assert_eq!(found[0].key.key, "certificates/a.example/ca.key");
        assert_eq!(keys(&state, "a.example").count(), 3);
        let domains: Vec<_> = domains(&state).into_iter().collect();
        assert_eq!(domains, ["a.exampl", "a.example", "a.example.org"]);
    }
}
