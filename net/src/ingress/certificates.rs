//! Certificates of the served domains, and the TLS configuration of the listeners.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use jaco_proto::secret::SecretString;
use rustls::{
    ServerConfig,
    crypto::ring::{self, Ticketer},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{PrivateKeyDer, pem::PemObject};

use super::table::fold_case;
use crate::{
    pki::certificates,
    tls::{Error, provider},
};

/// Protocol name of HTTP/2 in the handshake.
pub(super) const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// Parses a chain, leaf first, and the key of the leaf, as PEM.
///
/// # Errors
/// [`Error::Pem`] if either does not parse, [`Error::Unusable`] if they do not match.
pub fn certified_key(chain_pem: &str, key_pem: &SecretString) -> Result<Arc<CertifiedKey>, Error> {
    let chain = certificates(chain_pem).map_err(|_| Error::Pem("certificate"))?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.expose().as_bytes())
        .map_err(|_| Error::Pem("private key"))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider())
        .map(Arc::new)
        .map_err(Error::Unusable)
}

/// The certificate of each domain; immutable.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    exact: HashMap<Box<str>, Arc<CertifiedKey>>,
    /// By the part of `*.domain` after its first dot.
    wildcard: HashMap<Box<str>, Arc<CertifiedKey>>,
}

impl Certificates {
    /// Certificates by name, which is a domain or `*.domain`; of several for one name the first
    /// counts.
    pub fn new(named: impl IntoIterator<Item = (String, Arc<CertifiedKey>)>) -> Self {
        let mut all = Self::default();
        for (mut name, key) in named {
            name.make_ascii_lowercase();
            let (map, name) = match name.strip_prefix("*.") {
                Some(parent) => (&mut all.wildcard, parent),
                None => (&mut all.exact, &*name),
            };
            map.entry(name.into()).or_insert(key);
        }
        all
    }

    /// The certificate to present for `name`: its own, else a wildcard's that replaces its first
    /// label.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let name = fold_case(name);
        self.exact.get(name.as_ref()).or_else(|| {
            let (_, parent) = name.split_once('.')?;
            self.wildcard.get(parent)
        })
    }
}

/// The certificates in use, replaceable while connections are open.
#[derive(Debug, Default)]
pub struct CertificateStore(ArcSwap<Certificates>);

impl CertificateStore {
    /// Presents `certificates` from the next handshake on; open connections are not affected.
    pub fn swap(&self, certificates: Certificates) {
        self.0.store(Arc::new(certificates));
    }

    /// The certificate to present for `name`, if there is one.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.0.load().find(name).cloned()
    }

    /// Whether there is a certificate for `name`.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        self.0.load().find(name).is_some()
    }
}

impl ResolvesServerCert for CertificateStore {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(hello.server_name()?)
    }
}

/// Configuration of the TLS listeners: TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1, no early data.
///
/// Sessions are resumed by tickets that only this process can read; their keys rotate every 6
/// hours. Nothing is stored per session.
pub(super) fn server_config(
    store: Arc<CertificateStore>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(store);
    config.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = Ticketer::new()?;
    config.send_tls13_tickets = 1;
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey as Generated, generate_simple_self_signed};

    use super::*;

    fn key(name: &str) -> Arc<CertifiedKey> {
        let Generated { cert, signing_key } =
            generate_simple_self_signed([name.to_owned()]).unwrap();
        let pem = SecretString::from(signing_key.serialize_pem());
        certified_key(&cert.pem(), &pem).unwrap()
    }

    #[test]
    fn exact_name_precedes_wildcard_of_one_label() {
        let (exact, wild, other) = (key("a"), key("b"), key("c"));
        let all = Certificates::new([
            ("*.Example.org".to_owned(), wild.clone()),
            ("a.example.org".to_owned(), exact.clone()),
            ("a.example.org".to_owned(), other),
        ]);
        for (name, expected) in [
            ("a.example.org", Some(&exact)),
            ("A.Example.ORG", Some(&exact)),
            ("b.example.org", Some(&wild)),
            ("x.b.example.org", None),
            ("x.a.example.org", None),
            ("example.org", None),
            ("*.example.org", Some(&wild)),
            ("org", None),
            ("", None),
        ] {
            let found = all.find(name).map(Arc::as_ptr);
            assert_eq!(found, expected.map(Arc::as_ptr), "{name}");
        }
    }

    #[test]
    fn key_of_another_certificate_is_refused() {
        let [a, b] = [(); 2].map(|()| generate_simple_self_signed(["a".to_owned()]).unwrap());
        let pem = SecretString::from(b.signing_key.serialize_pem());
        let refused = certified_key(&a.cert.pem(), &pem);
        assert!(matches!(refused, Err(Error::Unusable(_))));
    }
}
