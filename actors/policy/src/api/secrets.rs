//! Secrets of an apply: which values are new.

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::{
    Error, ErrorCode,
    manifest::jaco::secrets::{check_name, check_value},
    secret::SecretBytes,
    v1::{Secret, SecretInfo},
};
use jaco_state::State;

/// Seals the values of secrets with one key.
pub trait SecretSealer {
    /// Opens a stored value; `None` if this key does not open it.
    fn open(&self, secret: &Secret) -> Option<SecretBytes>;

    /// Seals a value as `secret`, which has everything but the sealed value and the id of the key,
    /// and returns both.
    ///
    /// # Errors
    /// `rand_failed`.
    fn seal(&self, secret: &Secret, value: &[u8]) -> Result<(Vec<u8>, String), Error>;
}

/// Entity and version that the value of a secret is sealed as, so that it opens nowhere else.
#[must_use]
pub fn sealed_as(secret: &Secret) -> (String, u64) {
    let entity = format!("secret/{}/{}", secret.deployment, secret.name);
    (entity, secret.version)
}

/// Returns the next version of a secret with this value, or `None` if the stored one has it.
///
/// # Errors
/// `validation_failed` for a name or a value that a container cannot have, and those of the sealer.
pub fn next(
    state: &State,
    deployment: &str,
    name: &str,
    value: &[u8],
    sealer: &impl SecretSealer,
) -> Result<Option<Secret>, Error> {
    check_name(name)?;
    check_value(name, value)?;
    let stored = state.secret(deployment, name);
    let is_same = |stored: &Secret| {
        let opened = sealer.open(stored);
        opened.is_some_and(|opened| opened.expose() == value)
    };
    if stored.is_some_and(|stored| is_same(stored)) {
        return Ok(None);
    }
    let secret = Secret {
        deployment: deployment.to_owned(),
        name: name.to_owned(),
        version: stored.map_or(1, |stored| stored.version.saturating_add(1)),
        ..Secret::default()
    };
    let (sealed, key_id) = sealer.seal(&secret, value)?;
    Ok(Some(Secret {
        sealed,
        key_id,
        ..secret
    }))
}

/// Returns the secrets of an apply whose values are new.
///
/// # Errors
/// `validation_failed` for a value without a declaration, and those of [`next`].
pub fn changed(
    state: &State,
    deployment: &str,
    declared: &BTreeSet<String>,
    values: &BTreeMap<String, Vec<u8>>,
    sealer: &impl SecretSealer,
) -> Result<Vec<Secret>, Error> {
    if let Some(name) = values.keys().find(|name| !declared.contains(*name)) {
        let shown: String = name.chars().take(64).collect();
        let message = format!("a value was sent for secret {shown:?}, which jaco.yaml lacks");
        return Err(Error::new(ErrorCode::ValidationFailed, message)
            .with("field", "secret_values")
            .with("name", shown));
    }
    let secrets = values.iter();
    let secrets = secrets.map(|(name, value)| next(state, deployment, name, value, sealer));
    secrets.filter_map(Result::transpose).collect()
}

/// Describes a stored secret, without its value.
#[must_use]
pub fn info(state: &State, secret: &Secret) -> SecretInfo {
    let deployment = state.deployments.get(&secret.deployment);
    let services = deployment.into_iter().flat_map(|row| &row.services);
    let users = services.filter(|service| service.secrets.contains(&secret.name));
    let mut users: Vec<String> = users.map(|service| service.name.clone()).collect();
    users.sort();
    SecretInfo {
        deployment: secret.deployment.clone(),
        name: secret.name.clone(),
        version: secret.version,
        updated_at: secret.updated_at,
        updated_by: secret.updated_by.clone(),
        services: users,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jaco_proto::v1;

    use super::*;

    /// Seals by a prefix with entity and version.
    struct Prefix(&'static str);

    impl SecretSealer for Prefix {
        fn open(&self, secret: &Secret) -> Option<SecretBytes> {
            let (entity, version) = sealed_as(secret);
            let prefix = format!("{}:{entity}:{version}:", self.0);
            let value = secret.sealed.strip_prefix(prefix.as_bytes())?;
            Some(SecretBytes::new(value.to_vec()))
        }

        fn seal(&self, secret: &Secret, value: &[u8]) -> Result<(Vec<u8>, String), Error> {
            let (entity, version) = sealed_as(secret);
            let mut sealed = format!("{}:{entity}:{version}:", self.0).into_bytes();
            sealed.extend(value);
            Ok((sealed, self.0.to_owned()))
        }
    }

    const SEALER: Prefix = Prefix("k1");

    fn with(secrets: &[&Secret]) -> State {
        let mut state = State::default();
        for &secret in secrets {
            let key = (secret.deployment.clone(), secret.name.clone());
            state.secrets.insert(key, Arc::new(secret.clone()));
        }
        state
    }

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
            .collect()
    }

    fn versions(secrets: &[Secret]) -> Vec<(&str, u64)> {
        let secrets = secrets.iter();
        secrets
            .map(|secret| (&*secret.name, secret.version))
            .collect()
    }

    #[test]
    fn only_other_values_get_a_version() {
        let declared: BTreeSet<String> = ["A", "B", "C"].map(str::to_owned).into();
        let all = |state: &State, pairs: &[(&str, &str)], sealer: &Prefix| {
            changed(state, "shop", &declared, &values(pairs), sealer).unwrap()
        };
        let first = all(&State::default(), &[("A", "x"), ("B", "x")], &SEALER);
        assert_eq!(versions(&first), [("A", 1), ("B", 1)]);
        assert_ne!(first[0].sealed, first[1].sealed, "equal values do not show");
        let state = with(&[&first[0], &first[1]]);
        assert_eq!(all(&state, &[("A", "x")], &SEALER), []);
        let second = all(&state, &[("A", "x"), ("B", "y"), ("C", "")], &SEALER);
        assert_eq!(versions(&second), [("B", 2), ("C", 1)]);
        // A value that does not open cannot be compared.
        let lost = all(&state, &[("A", "x")], &Prefix("k2"));
        assert_eq!(versions(&lost), [("A", 2)]);
        assert_eq!(lost[0].key_id, "k2");
    }

    #[test]
    fn values_without_declaration_are_refused() {
        let declared = BTreeSet::from(["A".to_owned()]);
        let values = values(&[("A", "x"), ("B", "y")]);
        let error = changed(&State::default(), "shop", &declared, &values, &SEALER).unwrap_err();
        assert_eq!(error.details["name"], "B");
    }

    #[test]
    fn secret_of_other_deployment_does_not_open() {
        let secret = next(&State::default(), "shop", "A", b"x", &SEALER).unwrap();
        let secret = secret.unwrap();
        assert!(SEALER.open(&secret).is_some());
        for moved in [
            Secret {
                deployment: "other".into(),
                ..secret.clone()
            },
            Secret {
                name: "B".into(),
                ..secret.clone()
            },
            Secret {
                version: 2,
                ..secret.clone()
            },
        ] {
            assert!(SEALER.open(&moved).is_none());
        }
    }

    #[test]
    fn info_names_the_services_in_force() {
        let secret = next(&State::default(), "shop", "A", b"x", &SEALER).unwrap();
        let mut state = with(&[&secret.clone().unwrap()]);
        let service = |name: &str, secrets: &[&str]| v1::ServiceSpec {
            name: name.into(),
            secrets: secrets.iter().map(|&name| name.to_owned()).collect(),
            ..Default::default()
        };
        let deployment = v1::Deployment {
            name: "shop".into(),
            services: vec![
                service("web", &["A"]),
                service("db", &["B"]),
                service("api", &["A"]),
            ],
            ..Default::default()
        };
        state
            .deployments
            .insert("shop".into(), Arc::new(deployment));
        assert_eq!(info(&state, &secret.unwrap()).services, ["api", "web"]);
    }
}
