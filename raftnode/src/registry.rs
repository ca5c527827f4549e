//! Canonical keys of image registries.

/// The key that credentials of `registry` are stored under: a host, or host and path.
///
/// Scheme, query, fragment, letter case and the aliases of Docker Hub make no difference; a
/// port does. `None` if no host is left.
#[must_use]
pub fn canonical_key(registry: &str) -> Option<String> {
    let lower = registry.trim().to_lowercase();
    let rest = lower
        .split_once("://")
        .map_or(lower.as_str(), |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = match host {
        "" => return None,
        "index.docker.io" | "registry-1.docker.io" | "registry.docker.io" => "docker.io",
        host => host,
    };
    Some(match path.trim_matches('/') {
        "" => host.to_owned(),
        path => format!("{host}/{path}"),
    })
}

#[cfg(test)]
mod tests {
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
        ] {
            assert_eq!(canonical_key(given).as_deref(), key, "{given:?}");
        }
    }
}
