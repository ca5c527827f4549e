//! Stored certificates, parsed once.

use std::{collections::BTreeMap, sync::Arc};

use jaco_net::acme::{Issued, inspect};
use jaco_policy::ingress::certificate::{
    Chain, Slot,
    store::{self, CertificateKeys, Directories},
};
use jaco_proto::secret::SecretString;
use jaco_state::State;

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Material {
    /// Name of the directory that issued it.
    pub directory: String,
    /// Its place in the sequence of the domain.
    pub slot: Slot,
    /// Facts about it.
    pub chain: Chain,
    /// Chain in PEM, leaf first.
    pub chain_pem: String,
    /// Key of the leaf in PKCS#8 PEM.
    pub key_pem: SecretString,
}

impl Material {
    /// Parses the entries of a certificate; `None` if its leaf does not parse.
    pub(super) fn parse(
        domain: &str,
        directory: &str,
        directories: &Directories,
        chain: &[u8],
        key: &[u8],
    ) -> Option<Self> {
        let chain_pem = String::from_utf8(chain.to_vec()).ok()?;
        let key_pem = SecretString::new(String::from_utf8(key.to_vec()).ok()?);
        let issued = Issued { chain_pem, key_pem };
        Some(Self {
            directory: directory.to_owned(),
            slot: directories.slot_of(directory),
            chain: facts(domain, &issued)?,
            chain_pem: issued.chain_pem,
            key_pem: issued.key_pem,
        })
    }

    /// Keys of its entries in the store.
    pub(super) fn keys(&self, domain: &str) -> CertificateKeys {
        CertificateKeys::new(domain, &self.directory)
    }

    fn is_of(&self, stored: &store::StoredCertificate<'_>) -> bool {
        self.directory == stored.directory
            && self.chain_pem.as_bytes() == stored.chain.value
            && self.key_pem.expose().as_bytes() == stored.key.value
    }
}

/// Facts about an issued certificate; `None` if its leaf does not parse.
pub(super) fn facts(domain: &str, issued: &Issued) -> Option<Chain> {
    let facts = inspect(domain, &issued.chain_pem, &issued.key_pem)?;
    Some(Chain {
        fingerprint: facts.fingerprint,
        not_before: facts.not_before,
        not_after: facts.not_after,
        covers: facts.covers,
    })
}

/// Parsed certificates of the state by domain.
#[derive(Default)]
pub(super) struct Materials(BTreeMap<String, Vec<Arc<Material>>>);

impl Materials {
    /// Parses the certificates of `domain` that changed, and returns the former and present ones.
    pub(super) fn update(
        &mut self,
        state: &State,
        domain: &str,
        directories: &Directories,
    ) -> (Vec<Arc<Material>>, Vec<Arc<Material>>) {
        let before = self.0.remove(domain).unwrap_or_default();
        let stored = store::certificates(state, domain);
        let now: Vec<_> = stored
            .filter_map(|stored| {
                if let Some(same) = before.iter().find(|old| old.is_of(&stored)) {
                    return Some(Arc::clone(same));
                }
                let (chain, key) = (&stored.chain.value, &stored.key.value);
                let parsed = Material::parse(domain, stored.directory, directories, chain, key);
                parsed.map(Arc::new)
            })
            .collect();
        if !now.is_empty() {
            self.0.insert(domain.to_owned(), now.clone());
        }
        (before, now)
    }
}

/// The one of `slot` that expires last.
pub(super) fn best(materials: &[Arc<Material>], slot: Slot) -> Option<&Arc<Material>> {
    let of_slot = materials.iter().filter(|material| material.slot == slot);
    of_slot.max_by_key(|material| (material.chain.covers, material.chain.not_after))
}
