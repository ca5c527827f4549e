//! Checks whether the addresses of a domain lead to this cluster.

use std::collections::BTreeMap;

use futures::{FutureExt as _, future::BoxFuture};
use jaco_net::{
    domain::{self, Response},
    ingress::{PROBE_PATH, ProbeKey},
    secrets::SecretsKey,
};
use jaco_policy::ingress::certificate::preflight::{self, AddressCheck, MAX_ADDRESSES};
use jaco_proto::{Error, ErrorCode};

use super::{Preflight, imported::SecretsKeys};

/// Port that directories validate on, and that probes are sent to.
const PORT: u16 = 80;
/// Label of the key that signs probes.
const LABEL: &str = "probe/v1";
/// Random bytes of a nonce.
const NONCE: usize = 16;

/// Key that signs the probes of a cluster.
#[must_use]
pub fn probe_key(key: &SecretsKey) -> ProbeKey {
    ProbeKey::new(key.derive(LABEL))
}

/// Checks domains by the nonces that their addresses sign.
#[derive(Clone)]
pub struct DomainCheck {
    secrets_key: SecretsKeys,
    port: u16,
}

impl DomainCheck {
    /// A check that asks port 80.
    #[must_use]
    pub fn new(secrets_key: SecretsKeys) -> Self {
        let port = PORT;
        Self { secrets_key, port }
    }

    /// Resolves a domain and asks each of its addresses, at most 16. The inner `Err` has the reason
    /// why it does not resolve.
    ///
    /// # Errors
    /// `secrets_key_missing` if this node has no key to judge the answers by, `rand_failed` without
    /// randomness.
    pub async fn check(&self, domain: &str) -> Result<Result<Vec<AddressCheck>, String>, Error> {
        let key = self.secrets_key.borrow().clone();
        let key = key.ok_or_else(key_missing)?;
        let mut nonce = [0; NONCE];
        getrandom::fill(&mut nonce)
            .map_err(|error| Error::new(ErrorCode::RandFailed, "no randomness").because(error))?;
        let nonce = hex::encode(nonce);
        let signature = probe_key(&key).answer(&nonce).unwrap_or_default();
        let addresses = match domain::resolve(domain, MAX_ADDRESSES).await {
            Ok(addresses) => addresses,
            Err(reason) => return Ok(Err(reason)),
        };
        let path = format!("{PROBE_PATH}{nonce}");
        let answers = domain::ask(addresses, self.port, domain, &path).await;
        let answers: BTreeMap<_, _> = answers
            .into_iter()
            .map(|(address, response)| (address, to_policy(response)))
            .collect();
        Ok(Ok(preflight::check(signature.as_bytes(), answers)))
    }
}

impl Preflight for DomainCheck {
    fn check(&self, domain: String) -> BoxFuture<'static, Result<(), String>> {
        let check = self.clone();
        async move {
            match DomainCheck::check(&check, &domain).await {
                Ok(resolved) => preflight::verdict(&resolved),
                // Without a key no answer can be judged; the directory finds out itself.
                Err(error) => {
                    tracing::debug!(subsystem = "stagefirst", domain, %error, "not checked");
                    Ok(())
                }
            }
        }
        .boxed()
    }
}

/// Error of what needs the secrets key on a node without it.
pub(crate) fn key_missing() -> Error {
    Error::new(
        ErrorCode::SecretsKeyMissing,
        "this node does not have the secrets key of the cluster",
    )
    .with("reason", "not found on this node")
}

fn to_policy(response: Response) -> preflight::Response {
    match response {
        Response::Body(body) => preflight::Response::Body(body),
        Response::None(reason) => preflight::Response::None(reason),
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroUsize, sync::Arc};

    use jaco_net::ingress::{ListenSockets, Proxy, Scheme, Settings};
    use jaco_policy::ingress::certificate::preflight::Verdict;
    use tokio::sync::watch;

    use super::*;

    /// A data plane on loopback, and a check that asks its port.
    fn start(answering: Option<&SecretsKey>, asking: Option<SecretsKey>) -> (Proxy, DomainCheck) {
        let settings = Settings {
            workers: NonZeroUsize::MIN,
            ..Settings::default()
        };
        let proxy = Proxy::new(settings);
        let at = ([127, 0, 0, 1], 0).into();
        let sockets = ListenSockets::bind(at, proxy.workers()).unwrap();
        let port = sockets.local_addr().port();
        proxy.listen(Scheme::Http, sockets).unwrap();
        proxy.swap_probe_key(answering.map(probe_key));
        let (_, secrets_key) = watch::channel(asking.map(Arc::new));
        (proxy, DomainCheck { secrets_key, port })
    }

    #[tokio::test]
    async fn address_is_ours_if_its_signature_fits() {
        let (key, other) = (SecretsKey::new([1; 32]), SecretsKey::new([2; 32]));
        for (answering, verdict) in [
            (Some(&key), Verdict::Ok),
            (Some(&other), Verdict::NotOurs),
            (None, Verdict::NotOurs),
        ] {
            let (_proxy, check) = start(answering, Some(key.clone()));
            let checks = check.check("127.0.0.1").await.unwrap().unwrap();
            let [only] = &checks[..] else {
                panic!("{checks:?}");
            };
            assert_eq!(only.verdict, verdict);
            let preflight = Preflight::check(&check, "127.0.0.1".to_owned()).await;
            assert_eq!(preflight.is_ok(), verdict == Verdict::Ok, "{preflight:?}");
        }
    }

    #[tokio::test]
    async fn missing_key_holds_up_no_order() {
        let (_proxy, check) = start(None, None);
        let error = check.check("127.0.0.1").await.unwrap_err();
        assert_eq!(error.code, ErrorCode::SecretsKeyMissing);
        let preflight = Preflight::check(&check, "127.0.0.1".to_owned()).await;
        assert_eq!(preflight, Ok(()));
    }

    #[tokio::test]
    async fn unresolved_domain_has_a_reason() {
        let (_proxy, check) = start(None, Some(SecretsKey::new([1; 32])));
        let reason = check.check("").await.unwrap().unwrap_err();
        assert!(!reason.is_empty());
    }
}
