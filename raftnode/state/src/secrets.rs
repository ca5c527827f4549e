//! Secrets that containers of a deployment have as environment variables.

use std::{collections::BTreeSet, sync::Arc};

use jaco_proto::{Error, ErrorCode, v1};
use sha2::{Digest as _, Sha256};

use crate::State;

/// Error for a secret that a deployment does not have.
#[must_use]
pub fn secret_not_found(deployment: &str, name: &str) -> Error {
    let message = format!("deployment {deployment:?} has no secret {name:?}");
    Error::new(ErrorCode::SecretNotFound, message)
        .with("deployment", deployment)
        .with("name", name)
}

impl State {
    /// Iterates over the secrets of a deployment, by name.
    pub fn secrets_of<'a>(
        &'a self,
        deployment: &'a str,
    ) -> impl Iterator<Item = &'a Arc<v1::Secret>> {
        let from = (deployment.to_owned(), String::new());
        let own = self.secrets.range(from..);
        own.take_while(move |((owner, _), _)| owner == deployment)
            .map(|(_, secret)| secret)
    }

    /// Returns the secret `name` of a deployment.
    #[must_use]
    pub fn secret(&self, deployment: &str, name: &str) -> Option<&Arc<v1::Secret>> {
        let key = (deployment.to_owned(), name.to_owned());
        self.secrets.get(&key)
    }

    /// Returns a digest of the names, versions and times of a service's secrets, 0 without any: a
    /// container is outdated as soon as it changes. The time tells a secret from one of the same name
    /// and version that was removed before.
    #[must_use]
    pub fn secrets_version(&self, deployment: &str, service: &v1::ServiceSpec) -> u64 {
        if service.secrets.is_empty() {
            return 0;
        }
        let names: BTreeSet<&str> = service.secrets.iter().map(String::as_str).collect();
        let mut hash = Sha256::new();
        for name in names {
            hash.update(name);
            hash.update([0]);
            if let Some(secret) = self.secret(deployment, name) {
                let at = secret.updated_at.unwrap_or_default();
                hash.update(secret.version.to_be_bytes());
                hash.update(at.seconds.to_be_bytes());
                hash.update(at.nanos.to_be_bytes());
            }
        }
        let digest: [u8; 32] = hash.finalize().into();
        let (head, _) = digest.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        u64::from_be_bytes(*head)
    }
}
