//! Secrets that containers have as environment variables, sealed with the secrets key.

use std::sync::Arc;

use jaco_net::secrets::SecretsKey;
use jaco_policy::api::secrets::{SecretSealer, sealed_as};
use jaco_proto::{
    Error,
    secret::SecretBytes,
    v1::{self, Secret, command::Payload},
};
use jaco_state::State;

use super::{files::not_sealed, reseal::key_missing};

/// Seals with the secrets key of the cluster.
#[derive(Debug)]
pub(crate) struct ValueSealer(pub(crate) Arc<SecretsKey>);

impl SecretSealer for ValueSealer {
    fn open(&self, secret: &Secret) -> Option<SecretBytes> {
        let (entity, version) = sealed_as(secret);
        self.0.open(&entity, version, &secret.sealed).ok()
    }

    fn seal(&self, secret: &Secret, value: &[u8]) -> Result<(Vec<u8>, String), Error> {
        let (entity, version) = sealed_as(secret);
        let sealed = self.0.seal(&entity, version, value).map_err(not_sealed)?;
        Ok((sealed, self.0.id()))
    }
}

/// Returns the commands that seal every secret anew.
///
/// # Errors
/// `secrets_key_missing` if there are secrets and no old key.
pub(crate) fn reseal(
    state: &State,
    old: Option<&SecretsKey>,
    new: &SecretsKey,
) -> Result<Vec<Payload>, Error> {
    let mut payloads = Vec::new();
    for secret in state.secrets.values() {
        let old = old.ok_or_else(key_missing)?;
        let (entity, version) = sealed_as(secret);
        let Ok(opened) = old.open(&entity, version, &secret.sealed) else {
            tracing::warn!(
                subsystem = "state",
                deployment = secret.deployment,
                name = secret.name,
                "a secret cannot be sealed anew"
            );
            continue;
        };
        let sealed = new.seal(&entity, version, opened.expose());
        let secret = Secret {
            sealed: sealed.map_err(not_sealed)?,
            key_id: new.id(),
            ..Secret::clone(secret)
        };
        payloads.push(Payload::SecretUpsert(v1::SecretUpsert {
            secret: Some(secret),
        }));
    }
    Ok(payloads)
}

#[cfg(test)]
mod tests {
    use jaco_proto::ErrorCode;

    use super::*;

    #[test]
    fn rotation_keeps_values_and_versions() {
        let (old, new) = (SecretsKey::new([1; 32]), SecretsKey::new([2; 32]));
        let secret = Secret {
            deployment: "shop".into(),
            name: "A".into(),
            version: 7,
            updated_by: "ann".into(),
            ..Default::default()
        };
        let sealer = ValueSealer(Arc::new(old.clone()));
        let (sealed, key_id) = sealer.seal(&secret, b"s3cret").unwrap();
        let secret = Secret {
            sealed,
            key_id,
            ..secret
        };
        let mut state = State::default();
        let key = (secret.deployment.clone(), secret.name.clone());
        state.secrets.insert(key, Arc::new(secret.clone()));

        let error = reseal(&state, None, &new).unwrap_err();
        assert_eq!(error.code, ErrorCode::SecretsKeyMissing);
        let payloads = reseal(&state, Some(&old), &new).unwrap();
        let [Payload::SecretUpsert(upsert)] = &payloads[..] else {
            panic!("{payloads:?}");
        };
        let resealed = upsert.secret.clone().unwrap();
        let sealer = ValueSealer(Arc::new(new.clone()));
        assert_eq!(sealer.open(&resealed).unwrap().expose(), b"s3cret");
        assert_eq!(resealed.key_id, new.id());
        let (sealed, key_id) = (secret.sealed.clone(), secret.key_id.clone());
        assert_eq!(
            Secret {
                sealed,
                key_id,
                ..resealed
            },
            secret
        );
        // A value that does not open stays as it is.
        assert_eq!(reseal(&state, Some(&new), &old).unwrap().len(), 0);
    }
}
