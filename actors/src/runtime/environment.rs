//! Secrets that a container has as environment variables.
//!
//! They are opened when the container is created, and the engine keeps them with it: every user of the
//! engine can read them.

use jaco_net::secrets::SecretsKey;
use jaco_policy::{api::secrets::sealed_as, runtime::replica::core::PrepareError};
use jaco_proto::v1::ServiceSpec;
use jaco_state::State;

/// Returns the secrets of a service in the clear, by name.
///
/// # Errors
/// [`PrepareError::SecretClosed`] if one does not open, [`PrepareError::Retry`] if one has no value.
pub(super) fn secrets(
    key: Option<&SecretsKey>,
    state: &State,
    deployment: &str,
    spec: &ServiceSpec,
) -> Result<Vec<(String, Option<String>)>, PrepareError> {
    let names = spec.secrets.iter();
    let opened = names.map(|name| {
        let closed = |reason: &str| PrepareError::SecretClosed {
            name: name.clone(),
            reason: reason.to_owned(),
        };
        let secret = state.secret(deployment, name);
        let secret = secret.ok_or_else(|| {
            PrepareError::Retry(format!("the value of secret {name:?} is not there"))
        })?;
        let key = key.ok_or_else(|| closed("this node does not have the cluster's secrets key"))?;
        let (entity, version) = sealed_as(secret);
        let opened = key.open(&entity, version, &secret.sealed);
        let opened = opened.map_err(|error| closed(&error.to_string()))?;
        let value = std::str::from_utf8(opened.expose());
        let value = value.map_err(|_| closed("its value is no text"))?;
        Ok((name.clone(), Some(value.to_owned())))
    });
    opened.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jaco_policy::api::secrets::{SecretSealer as _, next};

    use super::*;
    use crate::secrets::ValueSealer;

    fn spec(secrets: &[&str]) -> ServiceSpec {
        ServiceSpec {
            secrets: secrets.iter().map(|&name| name.to_owned()).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn values_open_with_the_right_key_only() {
        let (key, other) = (SecretsKey::new([1; 32]), SecretsKey::new([2; 32]));
        let sealer = ValueSealer(Arc::new(key.clone()));
        let mut state = State::default();
        let secret = next(&state, "shop", "A", b"s3cret", &sealer)
            .unwrap()
            .unwrap();
        assert!(sealer.open(&secret).is_some());
        let name = ("shop".to_owned(), "A".to_owned());
        state.secrets.insert(name, Arc::new(secret));

        let read =
            |key, deployment: &str, names: &[&str]| secrets(key, &state, deployment, &spec(names));
        let opened = read(Some(&key), "shop", &["A"]).unwrap();
        assert_eq!(opened, [("A".to_owned(), Some("s3cret".to_owned()))]);
        assert_eq!(read(None, "shop", &[]).unwrap(), []);
        for key in [None, Some(&other)] {
            let error = read(key, "shop", &["A"]).unwrap_err();
            assert!(matches!(error, PrepareError::SecretClosed { name, .. } if name == "A"));
        }
        for (deployment, name) in [("shop", "B"), ("other", "A")] {
            let error = read(Some(&key), deployment, &[name]).unwrap_err();
            assert!(matches!(error, PrepareError::Retry(_)), "{error:?}");
        }
    }
}
