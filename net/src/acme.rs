//! Certificates from an ACME directory (RFC 8555), validated over HTTP-01.
//!
//! The protocol engine is `instant-acme`. It signs with `ring`, the only crypto provider of the
//! process, while `acme-lib` links OpenSSL. It repeats requests whose nonce was refused, which
//! `acme-lib` never recognises, and pads its signatures. It reads renewal windows, and names the
//! certificate that an order replaces (RFC 9773). It takes the HTTP client from its caller: the one here
//! adds a proxy, timeouts, size limits, extra roots, and the `Retry-After` of refusals.
//!
//! - [`Directory`]: a directory and the roots that its certificate may verify under.
//! - [`Account`]: an account, to order certificates with.
//! - [`inspect`]: facts about a chain in PEM.

mod certificate;
mod error;
mod http;
mod order;
mod proxy;
mod roots;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use instant_acme::{AccountCredentials, CertificateIdentifier, NewAccount};
use jaco_proto::secret::SecretBytes;
use rustls::ClientConfig;

pub use certificate::{CertificateFacts, Issued, inspect, not_after};
pub use error::{Class, Error};
pub use order::{Challenge, MAX_ORDER};
pub use proxy::{ProxyError, ProxySettings};
pub use roots::RootsError;

use self::{error::Refusals, http::HttpsClient};
use crate::pki;

/// A directory and the roots that its certificate may verify under; clones share them.
#[derive(Clone, Debug)]
pub struct Directory {
    url: String,
    tls: Arc<ClientConfig>,
    proxies: Arc<ProxySettings>,
}

/// Error of the settings of a directory.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Its certificate could not be verified.
    #[error(transparent)]
    Roots(#[from] RootsError),
    /// The proxy that leads to it cannot be used.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

impl Directory {
    /// Creates the directory at this HTTPS address. `extra_roots` is a PEM text of certificates that
    /// are trusted beside those of the system; a directory for tests has one. The environment names the
    /// proxy that leads to it: see [`ProxySettings::from_env`].
    ///
    /// # Errors
    /// [`DirectoryError::Roots`] if there is no root or an extra one is invalid,
    /// [`DirectoryError::Proxy`] if the proxy cannot be used.
    pub fn new(url: &str, extra_roots: Option<&str>) -> Result<Self, DirectoryError> {
        Ok(Self {
            url: url.to_owned(),
            tls: roots::client_config(extra_roots)?,
            proxies: Arc::new(ProxySettings::from_env()?),
        })
    }

    /// Reaches the directory through these proxies instead of those of the environment.
    #[must_use]
    pub fn with_proxies(mut self, proxies: ProxySettings) -> Self {
        self.proxies = Arc::new(proxies);
        self
    }

    /// Address of the directory.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// Times between which a directory suggests to renew a certificate, and when to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewalInfo {
    /// Start of the window.
    pub start: SystemTime,
    /// End of the window.
    pub end: SystemTime,
    /// Time until the next query.
    pub retry_after: Duration,
}

/// An account of a directory. One value serves one order at a time: errors take `Retry-After` from
/// the last response.
pub struct Account {
    inner: instant_acme::Account,
    refusals: Refusals,
}

impl Account {
    /// Creates an account with a new key and agrees to the terms of service. `contact` is an address
    /// of electronic mail; empty for none.
    ///
    /// The bytes reopen the account. They contain its private key.
    ///
    /// # Errors
    /// [`Error`] with the class of the failure.
    pub async fn create(
        directory: &Directory,
        contact: &str,
    ) -> Result<(Self, SecretBytes), Error> {
        let refusals = Refusals::default();
        let mailto = format!("mailto:{contact}");
        let contacts = [mailto.as_str()];
        let account = NewAccount {
            contact: if contact.is_empty() { &[] } else { &contacts },
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let mut tries = 0;
        let (inner, credentials) = loop {
            let builder = builder(directory, &refusals);
            match builder.create(&account, directory.url.clone(), None).await {
                Err(error) if error::is_bad_nonce(&error) && tries < order::NONCE_RETRIES => {
                    tries += 1;
                }
                other => break other.map_err(|error| refusals.classify(error))?,
            }
        };
        let bytes = serde_json::to_vec(&credentials)
            .map_err(|error| Error::unknown(format!("account not written: {error}")))?;
        Ok((Self { inner, refusals }, SecretBytes::new(bytes)))
    }

    /// Opens an account that [`Account::create`] returned.
    ///
    /// # Errors
    /// [`Error`] if the bytes are invalid or the directory cannot be read.
    pub async fn open(directory: &Directory, credentials: &SecretBytes) -> Result<Self, Error> {
        let credentials: AccountCredentials = serde_json::from_slice(credentials.expose())
            // The text of the error may quote the key.
            .map_err(|_| Error::account_lost("the stored account is invalid"))?;
        let refusals = Refusals::default();
        let inner = builder(directory, &refusals).from_credentials(credentials);
        let inner = inner.await.map_err(|error| refusals.classify(error))?;
        Ok(Self { inner, refusals })
    }

    /// Reads when the directory suggests to renew the first certificate of a chain in PEM. `None`
    /// if the directory does not say.
    ///
    /// # Errors
    /// [`Error`] with the class of the failure.
    pub async fn renewal_info(&self, chain_pem: &str) -> Result<Option<RenewalInfo>, Error> {
        let invalid = || Error::unknown("the stored chain is invalid".to_owned());
        let chain = pki::certificates(chain_pem).map_err(|_| invalid())?;
        let leaf = chain.first().ok_or_else(invalid)?;
        // A leaf without an authority key identifier cannot be asked about.
        let Ok(id) = CertificateIdentifier::try_from(leaf) else {
            return Ok(None);
        };
        match self.inner.renewal_info(&id).await {
            Ok((info, retry_after)) => Ok(Some(RenewalInfo {
                start: info.suggested_window.start.into(),
                end: info.suggested_window.end.into(),
                retry_after,
            })),
            Err(instant_acme::Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(self.refusals.classify(error)),
        }
    }
}

fn builder(directory: &Directory, refusals: &Refusals) -> instant_acme::AccountBuilder {
    let (tls, proxies) = (directory.tls.clone(), directory.proxies.clone());
    let client = HttpsClient::new(tls, proxies, refusals.clone());
    instant_acme::Account::builder_with_http(Box::new(client))
}
