//! One order: authorization, validation, issuance.

use std::time::Duration;

use instant_acme::{
    AuthorizationStatus, CertificateIdentifier, ChallengeType, Identifier, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use jaco_proto::secret::SecretString;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use tokio::time::timeout;

use super::{
    Account, Issued,
    error::{Class, Error, is_bad_nonce, of_problem},
    http::TransportError,
};
use crate::pki;

/// Longest time of an order.
pub const MAX_ORDER: Duration = Duration::from_secs(4 * 60);
/// Longest wait for a validation, and for the certificate after it.
const MAX_POLL: Duration = Duration::from_secs(90);
/// Repetitions of a request whose nonce was refused, beside the two that the engine makes itself.
pub(super) const NONCE_RETRIES: u32 = 5;

/// Response to a challenge, which the directory fetches from
/// `http://<domain>/.well-known/acme-challenge/<token>`.
#[derive(Clone, Debug)]
pub struct Challenge {
    /// Last segment of the path.
    pub token: String,
    /// Body of the response; secret until the challenge is over.
    pub key_auth: SecretString,
}

/// Repeats a request while only its nonce is refused.
macro_rules! with_nonce_retries {
    ($request:expr) => {{
        let mut tries = 0;
        loop {
            match $request.await {
                Err(error) if is_bad_nonce(&error) && tries < NONCE_RETRIES => tries += 1,
                outcome => break outcome,
            }
        }
    }};
}

impl Account {
    /// Orders a certificate for one domain with a fresh ECDSA P-256 key.
    ///
    /// `replaces` is the chain in PEM of the certificate that this one renews. The directory learns its
    /// name (RFC 9773, section 5) and may lift rate limits; if it does not accept that, the order is made
    /// without.
    ///
    /// `publish` makes the response to the challenge visible everywhere; the directory validates only
    /// after it. It is not called if the directory still trusts an earlier
    /// validation. Dropping the future cancels the order, which then expires at the directory.
    ///
    /// # Errors
    /// [`Error`] with the class of the failure; `Transient` after [`MAX_ORDER`] and if `publish`
    /// fails.
    pub async fn order<P, F>(
        &self,
        domain: &str,
        replaces: Option<&str>,
        publish: P,
    ) -> Result<Issued, Error>
    where
        P: FnOnce(Challenge) -> F + Send,
        F: Future<Output = Result<(), String>> + Send,
    {
        let ordered = timeout(MAX_ORDER, self.run(domain, replaces, publish)).await;
        ordered.unwrap_or_else(|_| {
            let reason = "the order did not end in time".to_owned();
            Err(Error::new(Class::Transient, reason))
        })
    }

    async fn run<P, F>(
        &self,
        domain: &str,
        replaces: Option<&str>,
        publish: P,
    ) -> Result<Issued, Error>
    where
        P: FnOnce(Challenge) -> F + Send,
        F: Future<Output = Result<(), String>> + Send,
    {
        let classify = |error| self.refusals.classify(error);
        let mut order = self.new_order(domain, replaces).await?;
        self.authorize(&mut order, publish).await?;

        let key = KeyPair::generate().map_err(|_| not_made("key"))?;
        let key_pem = SecretString::new(key.serialize_pem());
        let mut params =
            CertificateParams::new([domain.to_owned()]).map_err(|_| not_made("request"))?;
        params.distinguished_name = DistinguishedName::new();
        let request = params
            .serialize_request(&key)
            .map_err(|_| not_made("request"))?;
        with_nonce_retries!(order.finalize_csr(request.der())).map_err(classify)?;
        let policy = policy();
        let chain_pem = with_nonce_retries!(order.poll_certificate(&policy)).map_err(classify)?;
        Ok(Issued { chain_pem, key_pem })
    }

    /// Creates the order, which names the certificate it replaces if the directory accepts that.
    async fn new_order(&self, domain: &str, replaces: Option<&str>) -> Result<Order, Error> {
        let identifiers = [Identifier::Dns(domain.to_owned())];
        let chain = replaces.and_then(|chain_pem| pki::certificates(chain_pem).ok());
        let leaf = chain.as_ref().and_then(|chain| chain.first());
        // A leaf without an authority key identifier has no name.
        if let Some(id) = leaf.and_then(|leaf| CertificateIdentifier::try_from(leaf).ok()) {
            let new = NewOrder::new(&identifiers).replaces(id);
            match with_nonce_retries!(self.inner.new_order(&new)) {
                Ok(order) => return Ok(order),
                Err(error) if concerns_replacement(&error) => {
                    tracing::debug!(subsystem = "stagefirst", domain, %error, "replaced certificate not named");
                }
                Err(error) => return Err(self.refusals.classify(error)),
            }
        }
        let new = NewOrder::new(&identifiers);
        let order = with_nonce_retries!(self.inner.new_order(&new));
        order.map_err(|error| self.refusals.classify(error))
    }

    /// Answers the challenge and waits for the verdict.
    async fn authorize<P, F>(&self, order: &mut Order, publish: P) -> Result<(), Error>
    where
        P: FnOnce(Challenge) -> F + Send,
        F: Future<Output = Result<(), String>> + Send,
    {
        let classify = |error| self.refusals.classify(error);
        let mut tries = 0;
        let challenge = loop {
            let mut authorizations = order.authorizations();
            let mut authorization = match authorizations.next().await {
                None => break None,
                Some(Err(error)) if is_bad_nonce(&error) && tries < NONCE_RETRIES => {
                    tries += 1;
                    continue;
                }
                Some(found) => found.map_err(classify)?,
            };
            if authorization.status == AuthorizationStatus::Valid {
                break None;
            }
            let Some(mut challenge) = authorization.challenge(ChallengeType::Http01) else {
                return Err(Error::unknown(
                    "the directory offers no http-01 challenge".to_owned(),
                ));
            };
            let answer = Challenge {
                token: challenge.token.clone(),
                key_auth: SecretString::new(challenge.key_authorization().as_str().to_owned()),
            };
            let published = publish(answer.clone()).await;
            published.map_err(|reason| {
                Error::new(
                    Class::Transient,
                    format!("challenge not published: {reason}"),
                )
            })?;
            with_nonce_retries!(challenge.set_ready())
                .map_err(|error| redacted(classify(error), &answer))?;
            break Some(answer);
        };
        let policy = policy();
        let status = with_nonce_retries!(order.poll_ready(&policy));
        if matches!(status, Ok(OrderStatus::Ready | OrderStatus::Valid)) {
            return Ok(());
        }
        // The challenge has the precise reason.
        let error = match self.verdict(order).await {
            Some(error) => error,
            None => match status {
                Err(error) => classify(error),
                Ok(_) => Error::new(Class::Validation, "the domain was not validated".to_owned()),
            },
        };
        Err(match &challenge {
            Some(challenge) => redacted(error, challenge),
            None => error,
        })
    }

    /// Reason of a failed validation, if the directory gives one.
    async fn verdict(&self, order: &mut Order) -> Option<Error> {
        let mut authorizations = order.authorizations();
        let mut authorization = authorizations.next().await?.ok()?;
        with_nonce_retries!(async { authorization.refresh().await.map(|_| ()) }).ok()?;
        let mut challenges = authorization.challenges.iter();
        challenges.find_map(|challenge| Some(of_problem(challenge.error.as_ref()?, None)))
    }
}

/// Whether an order may succeed that does not name the certificate it replaces.
///
/// A directory refuses one that was replaced before (`alreadyReplaced`), that it does not know, or
/// that another account ordered; which problem that is, is its choice.
fn concerns_replacement(error: &instant_acme::Error) -> bool {
    match error {
        instant_acme::Error::Unsupported(_) => true,
        // The engine's, if the directory ignored the name.
        instant_acme::Error::Other(error) => !error.is::<TransportError>(),
        instant_acme::Error::Api(problem) => {
            let error = of_problem(problem, None);
            let other = matches!(error.class, Class::RateLimit | Class::Transient);
            !other && !error.account_lost
        }
        _ => false,
    }
}

/// Removes the response to the challenge and its parts from the reason.
fn redacted(error: Error, challenge: &Challenge) -> Error {
    let key_auth = challenge.key_auth.expose();
    let thumbprint = key_auth.rsplit('.').next().unwrap_or_default();
    error.without(&[key_auth, thumbprint, &challenge.token])
}

fn not_made(what: &str) -> Error {
    Error::unknown(format!("the {what} of the certificate could not be made"))
}

fn policy() -> RetryPolicy {
    RetryPolicy::new().backoff(1.5).timeout(MAX_POLL)
}
