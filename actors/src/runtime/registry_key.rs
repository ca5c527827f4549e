//! Image references, registry keys and the credential that pulls an image.
//!
//! Keys are `host[:port][/path]`, canonical on both sides: what an operator stores and what a
//! pull looks up meet in [`jaco_raftnode::registry`].

use std::{fmt, net::Ipv6Addr, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use imbl::OrdMap;
use jaco_proto::{config::is_hostname, v1::RegistryCredential};
use jaco_raftnode::registry::{HUB, canonical_host};

/// A reference that names no repository.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReference {
    /// The image reference does not name a repository.
    #[error("invalid image reference `{0}`")]
    Image(String),
}

/// What is shown in place of a secret.
const REDACTED: &str = "<redacted>";

/// A login for one registry.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Account name.
    pub username: String,
    /// Password or token.
    pub secret: String,
    /// Host part of the stored key.
    pub server: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("username", &self.username)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// Shortest secret that is looked for in texts: a shorter one is part of common words.
const REDACTED_MIN: usize = 4;

impl Credential {
    /// `text` without the secret, as it is or as it is sent: a registry may quote what it got.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        if self.secret.len() < REDACTED_MIN {
            return text.to_owned();
        }
        let sent = BASE64.encode(format!("{}:{}", self.username, self.secret));
        text.replace(&self.secret, REDACTED)
            .replace(&sent, REDACTED)
    }
}

/// The key an image is looked up by: host and full repository path, without tag or digest.
///
/// # Errors
/// [`InvalidReference::Image`] when the reference names no repository.
pub fn image_key(image: &str) -> Result<String, InvalidReference> {
    let invalid = || InvalidReference::Image(image.to_owned());
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let (host, path) = match name.split_once('/') {
        Some((first, rest)) if is_host(first) => (first, rest),
        Some(_) | None => (HUB, name),
    };
    let last = path.rfind('/').map_or(0, |slash| slash + 1);
    let path = path[last..]
        .find(':')
        .map_or(path, |colon| &path[..last + colon]);
    if path.is_empty() || !path.split('/').all(is_component) {
        return Err(invalid());
    }
    if !is_address(host) {
        return Err(invalid());
    }
    let host = host.to_lowercase();
    let host = canonical_host(&host);
    Ok(if host == HUB && !path.contains('/') {
        format!("{HUB}/library/{path}")
    } else {
        format!("{host}/{path}")
    })
}

/// The credential for an image: the longest stored prefix, or the registry's only one.
///
/// `None` pulls anonymously.
///
/// # Errors
/// [`InvalidReference::Image`]: an unparsable reference is a failed pull, not an anonymous one.
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
        secret: String::from_utf8_lossy(&stored.secret).into_owned(),
        server: host_of(key).to_owned(),
    }
}

fn host_of(key: &str) -> &str {
    key.split_once('/').map_or(key, |(host, _)| host)
}

/// The first segment is a registry when it cannot be a repository component.
fn is_host(segment: &str) -> bool {
    segment == "localhost"
        || segment.contains(['.', ':'])
        || segment.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Host name or address of a registry, with a port or without.
fn is_address(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        Some(_) | None => (host, None),
    };
    let bracketed = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let is_named = match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => is_hostname(name),
    };
    is_named
        && port.is_none_or(|port| {
            port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
        })
}

fn is_component(part: &str) -> bool {
    !part.is_empty()
        && part
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-'))
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
    fn images_have_one_spelling() {
        for (image, key) in [
            ("alpine", "docker.io/library/alpine"),
            ("alpine:3.20", "docker.io/library/alpine"),
            ("alpine@sha256:abc", "docker.io/library/alpine"),
            ("bitnami/redis:7", "docker.io/bitnami/redis"),
            ("index.docker.io/bitnami/redis", "docker.io/bitnami/redis"),
            ("docker.io/alpine", "docker.io/library/alpine"),
            ("GHCR.io/owner/app:1@sha256:abc", "ghcr.io/owner/app"),
            ("localhost/app", "localhost/app"),
            ("reg.local:5000/team/app:v1", "reg.local:5000/team/app"),
            ("reg.local:5000/app", "reg.local:5000/app"),
            ("[::1]:5000/app", "[::1]:5000/app"),
        ] {
            assert_eq!(image_key(image).as_deref(), Ok(key), "{image}");
        }
    }

    #[test]
    fn references_without_a_repository_are_refused() {
        for image in [
            "",
            ":tag",
            "ghcr.io/",
            "a//b",
            "Upper",
            "ghcr.io/Owner/app",
            "a b",
            "cr.?o/acme",
            "reg:port/app",
            ":5000/app",
            "[::g]/app",
            "a..b/app",
        ] {
            assert!(image_key(image).is_err(), "{image:?}");
        }
    }

    #[test]
    fn the_longest_prefix_wins() {
        let stored = store(&["ghcr.io", "ghcr.io/owner"]);
        let found = resolve("ghcr.io/owner/app:1", &stored).unwrap().unwrap();
        assert_eq!(found.username, "user-of-ghcr.io/owner");
        assert_eq!(found.server, "ghcr.io");
        let found = resolve("ghcr.io/ownership/app", &stored).unwrap().unwrap();
        assert_eq!(found.username, "user-of-ghcr.io");
    }

    #[test]
    fn a_single_credential_of_the_host_is_used_and_two_are_not() {
        let one = store(&["ghcr.io/a", "quay.io"]);
        assert_eq!(
            resolve("ghcr.io/b/app", &one).unwrap().unwrap().username,
            "user-of-ghcr.io/a"
        );
        let two = store(&["ghcr.io/a", "ghcr.io/c"]);
        assert_eq!(resolve("ghcr.io/b/app", &two), Ok(None));
    }

    #[test]
    fn a_bad_reference_is_an_error_not_an_anonymous_pull() {
        assert!(resolve("no such image", &store(&["docker.io"])).is_err());
    }

    #[test]
    fn a_registry_that_quotes_the_login_is_not_believed_to_the_letter() {
        let login = resolve("alpine", &store(&["docker.io"])).unwrap().unwrap();
        let sent = BASE64.encode("user-of-docker.io:s3cret");
        let quoted = format!("bad login s3cret (Basic {sent}) of user-of-docker.io");
        assert_eq!(
            login.redact(&quoted),
            "bad login <redacted> (Basic <redacted>) of user-of-docker.io"
        );
        let short = Credential {
            secret: "a".into(),
            ..login
        };
        assert_eq!(short.redact("a manifest"), "a manifest");
    }

    #[test]
    fn secrets_do_not_reach_debug_output() {
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
