//! Canonical keys of image registries.

/// Name of Docker Hub in keys.
pub const HUB: &str = "docker.io";

/// Returns the key that credentials of `registry` are stored under: a host, or host and path.
///
/// Scheme, query, fragment, letter case and the aliases of Docker Hub do not distinguish keys; a
/// port does. `None` if no host is left.
#[must_use]
pub fn canonical_key(registry: &str) -> Option<String> {
    // One pass can expose text that the next one strips; repeated until stable, so that the
    // function is idempotent.
    let mut key = registry.trim().to_lowercase();
    loop {
        let next = reduce(&key)?;
        if next == key {
            return Some(key);
        }
        key = next;
    }
}

/// One pass over lower-case text; the result is never longer.
fn reduce(lower: &str) -> Option<String> {
    let lower = lower.trim();
    let rest = lower.split_once("://").map_or(lower, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if host.is_empty() {
        return None;
    }
    let host = canonical_host(host);
    Some(match path.trim_matches('/') {
        "" => host.to_owned(),
        path => format!("{host}/{path}"),
    })
}

/// Returns the canonical name of a registry's `host`, given in lower case: Docker Hub has several.
#[must_use]
pub fn canonical_host(host: &str) -> &str {
    match host {
        "index.docker.io" | "registry-1.docker.io" | "registry.docker.io" => HUB,
        host => host,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::canonical_key;

    #[test]
    fn spellings_of_one_registry_share_a_key() {
        for (given, key) in [
            ("docker.io", Some("docker.io")),
            ("https://index.docker.io/v1/", Some("docker.io/v1")),
            (" Registry-1.Docker.IO ", Some("docker.io")),
            ("registry.docker.io/library", Some("docker.io/library")),
            ("ghcr.io/Acme/Team/", Some("ghcr.io/acme/team")),
            ("http://localhost:5000/?x=/y#z", Some("localhost:5000")),
            ("quay.io#frag/ment", Some("quay.io")),
            ("", None),
            ("   ", None),
            ("https://", None),
            ("/path/only", None),
            ("https:///path", None),
            (" https://GHCR.io/Owner/ ", Some("ghcr.io/owner")),
            ("registry-1.docker.io", Some("docker.io")),
            ("https://index.docker.io/v1/?x=1#y", Some("docker.io/v1")),
            ("reg.local:5000", Some("reg.local:5000")),
            ("https:///x", None),
            ("A ?", Some("a")),
            ("a/ /", Some("a")),
            ("a://b/://c", Some("c")),
            (" ?", None),
        ] {
            assert_eq!(canonical_key(given).as_deref(), key, "{given:?}");
        }
    }

    proptest! {
        #[test]
        fn canonical_key_is_idempotent(key in "\\PC{0,40}") {
            if let Some(once) = canonical_key(&key) {
                prop_assert_eq!(canonical_key(&once), Some(once));
            }
        }
    }
}
