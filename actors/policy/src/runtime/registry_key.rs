//! Image references, registry keys and the selection of pull credentials.
//!
//! A key is `host[:port][/path]` in canonical form: stored keys and looked-up keys are
//! canonicalized by [`jaco_state::registry`].

use std::sync::Arc;

use imbl::OrdMap;
use jaco_engine::Credential;
use jaco_proto::v1::RegistryCredential;

pub use reference::{InvalidReference, Reference};

mod reference;

/// Lookup key of an image: host and full repository path, without tag or digest.
///
/// # Errors
/// [`InvalidReference`], as [`Reference::parse`].
pub fn image_key(image: &str) -> Result<String, InvalidReference> {
    Reference::parse(image).map(|reference| reference.key())
}

/// Returns the credential of an image: the one with the longest matching key prefix, or the only
/// one of the registry.
///
/// `None` means an anonymous pull.
///
/// # Errors
/// [`InvalidReference`]: a malformed reference fails the pull instead of making it anonymous.
pub fn resolve(
    image: &str,
    stored: &OrdMap<String, Arc<RegistryCredential>>,
) -> Result<Option<Credential>, InvalidReference> {
    let key = image_key(image)?;
    let mut candidate = key.as_str();
    loop {
        if let Some(found) = stored.get(candidate) {
            return Ok(Some(credential(candidate, found)));
        }
        match candidate.rsplit_once('/') {
            Some((shorter, _)) => candidate = shorter,
            None => break,
        }
    }
    let host = host_of(&key);
    let mut of_host = stored.iter().filter(|(key, _)| host_of(key) == host);
    Ok(match (of_host.next(), of_host.next()) {
        (Some((key, only)), None) => Some(credential(key, only)),
        (None, _) | (Some(_), Some(_)) => None,
    })
}

fn credential(key: &str, stored: &RegistryCredential) -> Credential {
    Credential {
        username: stored.username.clone(),
        secret: String::from_utf8_lossy(&stored.secret).into_owned().into(),
        server: host_of(key).to_owned(),
    }
}

fn host_of(key: &str) -> &str {
    key.split_once('/').map_or(key, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn store(keys: &[&str]) -> OrdMap<String, Arc<RegistryCredential>> {
        keys.iter()
            .map(|key| {
                let row = RegistryCredential {
                    registry: (*key).to_owned(),
                    username: format!("user-of-{key}"),
                    secret: b"s3cret".to_vec(),
                    updated_at: None,
                };
                ((*key).to_owned(), Arc::new(row))
            })
            .collect()
    }

    #[test]
    fn longest_key_prefix_wins() {
        let stored = store(&["ghcr.io", "ghcr.io/owner"]);
        let found = resolve("ghcr.io/owner/app:1", &stored).unwrap().unwrap();
        assert_eq!(found.username, "user-of-ghcr.io/owner");
        assert_eq!(found.server, "ghcr.io");
        let found = resolve("ghcr.io/ownership/app", &stored).unwrap().unwrap();
        assert_eq!(found.username, "user-of-ghcr.io");
    }

    #[test]
    fn only_unambiguous_credential_of_host_is_used() {
        let one = store(&["ghcr.io/a", "quay.io"]);
        assert_eq!(
            resolve("ghcr.io/b/app", &one).unwrap().unwrap().username,
            "user-of-ghcr.io/a"
        );
        let two = store(&["ghcr.io/a", "ghcr.io/c"]);
        assert_eq!(resolve("ghcr.io/b/app", &two), Ok(None));
    }

    #[test]
    fn malformed_reference_is_an_error() {
        assert!(resolve("no such image", &store(&["docker.io"])).is_err());
    }

    #[test]
    fn debug_output_hides_secrets() {
        let found = resolve("alpine", &store(&["docker.io"])).unwrap();
        assert!(!format!("{found:?}").contains("s3cret"));
    }

    proptest! {
        #[test]
        fn resolving_never_panics(image in "\\PC{0,60}") {
            let _ = resolve(&image, &store(&["docker.io", "ghcr.io/a"]));
        }
    }
}
