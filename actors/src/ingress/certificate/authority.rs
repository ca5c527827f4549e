//! The ACME directory as the actors see it.

use std::{collections::BTreeMap, time::Duration};

use futures::future::BoxFuture;
use jaco_net::acme::{self, Account, Class, Directory, DirectoryError, Issued};
use jaco_policy::ingress::certificate::{FailureClass, OrderFailure, RenewalWindow};
use jaco_proto::secret::SecretBytes;

pub use jaco_net::acme::Challenge;

/// Makes the response to a challenge visible on all nodes.
pub type Publish =
    Box<dyn FnOnce(Challenge) -> BoxFuture<'static, Result<(), String>> + Send + 'static>;

/// Failure of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderError {
    /// Class, wait and reason.
    pub failure: OrderFailure,
    /// Whether the account is of no use any more.
    pub account_lost: bool,
}

/// Orders certificates. Dropping a future cancels what it does.
pub trait Authority: Send + Sync + 'static {
    /// Creates an account at the directory with this address; the bytes are its credentials.
    fn create_account(
        &self,
        directory: String,
        contact: String,
    ) -> BoxFuture<'static, Result<SecretBytes, OrderError>>;

    /// Orders a certificate for one domain, instead of that of a chain in PEM if it renews one; see
    /// [`Account::order`].
    fn order(
        &self,
        directory: String,
        account: SecretBytes,
        domain: String,
        replaces: Option<String>,
        publish: Publish,
    ) -> BoxFuture<'static, Result<Issued, OrderError>>;

    /// Reads when to renew a certificate and when to ask again; `None` if the directory does not
    /// say or does not answer.
    fn renewal_window(
        &self,
        directory: String,
        account: SecretBytes,
        chain_pem: String,
    ) -> BoxFuture<'static, Option<(RenewalWindow, Duration)>>;
}

/// Talks to real directories.
pub struct AcmeAuthority {
    /// Directories by address, or the reason why none can be verified.
    directories: Result<BTreeMap<String, Directory>, String>,
}

impl AcmeAuthority {
    /// Creates an authority of these directories.
    pub fn new(directories: impl IntoIterator<Item = Directory>) -> Self {
        let directories = directories.into_iter();
        let named = directories.map(|directory| (directory.url().to_owned(), directory));
        Self {
            directories: Ok(named.collect()),
        }
    }

    /// Creates an authority whose orders all fail for this reason.
    #[must_use]
    pub fn unusable(reason: &DirectoryError) -> Self {
        Self {
            directories: Err(reason.to_string()),
        }
    }

    fn directory(&self, url: &str) -> Result<Directory, OrderError> {
        let directories = self.directories.as_ref().map_err(Clone::clone);
        let found = directories.and_then(|directories| {
            let directory = directories.get(url).cloned();
            directory.ok_or_else(|| format!("{url} is not configured"))
        });
        found.map_err(|reason| OrderError {
            failure: OrderFailure {
                class: FailureClass::Unknown,
                retry_after: None,
                reason,
            },
            account_lost: false,
        })
    }
}

impl From<acme::Error> for OrderError {
    fn from(error: acme::Error) -> Self {
        let class = match error.class {
            Class::RateLimit => FailureClass::RateLimit,
            Class::Validation => FailureClass::Validation,
            Class::Transient => FailureClass::Transient,
            Class::Unknown => FailureClass::Unknown,
        };
        Self {
            failure: OrderFailure {
                class,
                retry_after: error.retry_after,
                reason: error.reason,
            },
            account_lost: error.account_lost,
        }
    }
}

impl Authority for AcmeAuthority {
    fn create_account(
        &self,
        directory: String,
        contact: String,
    ) -> BoxFuture<'static, Result<SecretBytes, OrderError>> {
        let directory = self.directory(&directory);
        Box::pin(async move {
            let (_, credentials) = Account::create(&directory?, &contact).await?;
            Ok(credentials)
        })
    }

    fn order(
        &self,
        directory: String,
        account: SecretBytes,
        domain: String,
        replaces: Option<String>,
        publish: Publish,
    ) -> BoxFuture<'static, Result<Issued, OrderError>> {
        let directory = self.directory(&directory);
        Box::pin(async move {
            let account = Account::open(&directory?, &account).await?;
            Ok(account.order(&domain, replaces.as_deref(), publish).await?)
        })
    }

    fn renewal_window(
        &self,
        directory: String,
        account: SecretBytes,
        chain_pem: String,
    ) -> BoxFuture<'static, Option<(RenewalWindow, Duration)>> {
        let directory = self.directory(&directory);
        Box::pin(async move {
            let account = Account::open(&directory.ok()?, &account).await.ok()?;
            let info = account.renewal_info(&chain_pem).await.ok()??;
            let window = RenewalWindow {
                start: info.start,
                end: info.end,
            };
            Some((window, info.retry_after))
        })
    }
}
