//! Image references: `[host[:port]/]path[:tag][@digest]`.
//!
//! Source: the grammar of <https://pkg.go.dev/github.com/distribution/reference>.

use std::net::Ipv6Addr;

use jaco_proto::config::is_hostname;
use jaco_state::registry::{HUB, canonical_host};

/// Longest host and path together, in bytes.
const NAME_MAX: usize = 255;
const TAG_MAX: usize = 128;
/// Fewest hex digits of a digest; SHA-256 has exactly 64.
const DIGEST_MIN: usize = 32;

/// Error of a malformed image reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid image reference `{image}`: {why}")]
pub struct InvalidReference {
    /// The reference.
    pub image: String,
    /// Why it is malformed.
    pub why: &'static str,
}

/// The parts of a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference<'a> {
    /// Registry and port in lower case, in canonical form; Docker Hub when none is given.
    pub host: String,
    /// Repository; `library/` is prepended where Docker Hub expects it.
    pub path: String,
    /// The tag, if there is one.
    pub tag: Option<&'a str>,
    /// The digest, if there is one; it takes precedence over the tag.
    pub digest: Option<&'a str>,
}

impl<'a> Reference<'a> {
    /// Parses a reference.
    ///
    /// # Errors
    /// [`InvalidReference`] names the malformed part.
    pub fn parse(image: &'a str) -> Result<Self, InvalidReference> {
        parse(image).map_err(|why| InvalidReference {
            image: image.to_owned(),
            why,
        })
    }

    /// Host and repository: the lookup key of a credential.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}", self.host, self.path)
    }
}

fn parse(image: &str) -> Result<Reference<'_>, &'static str> {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return Err("the digest is malformed");
    }
    let (host, rest) = match name.split_once('/') {
        Some((first, rest)) if names_host(first) => (Some(first), rest),
        Some(_) | None => (None, name),
    };
    if host.is_some_and(|host| !is_host(host)) {
        return Err("the registry is malformed");
    }
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (rest, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err("the tag is malformed");
    }
    if path.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("the repository must be lower-case");
    }
    if !path.split('/').all(is_component) {
        return Err("the repository is malformed");
    }
    if host.is_none() && is_hex(path) && path.len() == 64 {
        return Err("an id is no name");
    }
    let host = host.unwrap_or(HUB).to_ascii_lowercase();
    let host = canonical_host(&host).to_owned();
    let path = if host == HUB && !path.contains('/') {
        format!("library/{path}")
    } else {
        path.to_owned()
    };
    let reference = Reference {
        host,
        path,
        tag,
        digest,
    };
    if reference.key().len() > NAME_MAX {
        return Err("the name is too long");
    }
    Ok(reference)
}

/// Whether the first segment is a registry: it cannot be part of a repository name, or is
/// `localhost`.
fn names_host(segment: &str) -> bool {
    segment == "localhost"
        || segment.contains(['.', ':'])
        || segment.bytes().any(|byte| byte.is_ascii_uppercase())
}

/// Host name or address of a registry, with a port or without.
fn is_host(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        Some(_) | None => (text, None),
    };
    let bracketed = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    let is_named = match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => is_hostname(name),
    };
    let is_port =
        |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    is_named && port.is_none_or(is_port)
}

/// Runs of letters and digits between single `.` and `_`, double `__`, or any number of `-`.
fn is_component(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let mut rest = text.trim_start_matches(is_word);
    if rest.len() == text.len() {
        return false;
    }
    while !rest.is_empty() {
        let after = rest.trim_start_matches(['.', '_', '-']);
        let separator = &rest[..rest.len() - after.len()];
        let known = matches!(separator, "." | "_" | "__") || separator.bytes().all(|b| b == b'-');
        let next = after.trim_start_matches(is_word);
        if !known || next.len() == after.len() {
            return false;
        }
        rest = next;
    }
    true
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= TAG_MAX
        && tag.bytes().next().is_some_and(is_word)
        && tag
            .bytes()
            .all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else {
        return false;
    };
    let is_algorithm = |part: &str| {
        part.bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_alphabetic())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    algorithm.split(['+', '.', '-', '_']).all(is_algorithm)
        && hex.len() >= DIGEST_MIN
        && is_hex(hex)
        && (algorithm != "sha256" || hex.len() == 64)
}

fn is_hex(text: &str) -> bool {
    text.bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHA: &str = "sha256:e4829ddca52f3e8e2a64224c086cc7e17b7ff917e5871cf3197144773e577fc4";

    #[test]
    fn every_form_is_parsed_into_its_parts() {
        let pinned = format!("alpine@{SHA}");
        let both = format!("GHCR.io/owner/app:1@{SHA}");
        let own = format!("127.0.0.1:5000/app:1@{SHA}");
        for (image, host, path, tag, digest) in [
            ("alpine", "docker.io", "library/alpine", None, None),
            (
                "alpine:3.20",
                "docker.io",
                "library/alpine",
                Some("3.20"),
                None,
            ),
            (&pinned, "docker.io", "library/alpine", None, Some(SHA)),
            (
                "bitnami/redis:7",
                "docker.io",
                "bitnami/redis",
                Some("7"),
                None,
            ),
            (
                "docker.io/alpine",
                "docker.io",
                "library/alpine",
                None,
                None,
            ),
            ("index.docker.io/a/b", "docker.io", "a/b", None, None),
            (
                "registry-1.docker.io/a",
                "docker.io",
                "library/a",
                None,
                None,
            ),
            (&both, "ghcr.io", "owner/app", Some("1"), Some(SHA)),
            ("localhost/app", "localhost", "app", None, None),
            (
                "localhost:5000/app:v1",
                "localhost:5000",
                "app",
                Some("v1"),
                None,
            ),
            (
                "reg.local:5000/team/app",
                "reg.local:5000",
                "team/app",
                None,
                None,
            ),
            (&own, "127.0.0.1:5000", "app", Some("1"), Some(SHA)),
            ("REG/app", "reg", "app", None, None),
            ("Reg.Local:5000/app", "reg.local:5000", "app", None, None),
            ("[::1]/app", "[::1]", "app", None, None),
            (
                "[fd00::A]:5000/t/app:1",
                "[fd00::a]:5000",
                "t/app",
                Some("1"),
                None,
            ),
            ("host/app", "docker.io", "host/app", None, None),
            ("r.io/a.b_c__d---e/f", "r.io", "a.b_c__d---e/f", None, None),
            ("r.io/a:_.-x", "r.io", "a", Some("_.-x"), None),
            ("app:5000", "docker.io", "library/app", Some("5000"), None),
        ] {
            let expected = Reference {
                host: host.to_owned(),
                path: path.to_owned(),
                tag,
                digest,
            };
            assert_eq!(Reference::parse(image), Ok(expected), "{image}");
        }
    }

    #[test]
    fn malformed_reference_names_the_malformed_part() {
        let long = format!("r.io/{}", "a".repeat(251));
        let id = "a".repeat(64);
        let tag = format!("a:{}", "t".repeat(129));
        let hub = "a/".repeat(124);
        let hub = hub.trim_end_matches('/');
        for (image, why) in [
            ("", "the repository is malformed"),
            (":tag", "the repository is malformed"),
            ("ghcr.io/", "the repository is malformed"),
            ("a//b", "the repository is malformed"),
            ("/a", "the repository is malformed"),
            ("a/", "the repository is malformed"),
            ("a b", "the repository is malformed"),
            ("ä", "the repository is malformed"),
            ("-a", "the repository is malformed"),
            ("a-", "the repository is malformed"),
            ("a..b", "the repository is malformed"),
            ("a___b", "the repository is malformed"),
            ("a._b", "the repository is malformed"),
            ("r.io/a:b:c", "the repository is malformed"),
            ("https://r.io/a", "the registry is malformed"),
            ("http://127.0.0.1:1/a", "the registry is malformed"),
            ("Upper", "the repository must be lower-case"),
            ("ghcr.io/Owner/app", "the repository must be lower-case"),
            ("alpine:", "the tag is malformed"),
            ("alpine:-1", "the tag is malformed"),
            ("alpine:1 2", "the tag is malformed"),
            (&tag, "the tag is malformed"),
            ("alpine@", "the digest is malformed"),
            ("alpine@sha256:abc", "the digest is malformed"),
            ("alpine@latest", "the digest is malformed"),
            (&format!("alpine@{SHA}0"), "the digest is malformed"),
            (
                &format!("alpine@{}", SHA.to_uppercase()),
                "the digest is malformed",
            ),
            (&format!("alpine@{SHA}@{SHA}"), "the digest is malformed"),
            ("r.io:/a", "the registry is malformed"),
            ("r.io:x/a", "the registry is malformed"),
            ("r.io:1:2/a", "the registry is malformed"),
            (":5000/a", "the registry is malformed"),
            ("-r.io/a", "the registry is malformed"),
            ("r..io/a", "the registry is malformed"),
            ("r_x.io/a", "the registry is malformed"),
            ("::1/a", "the registry is malformed"),
            ("[::1/a", "the registry is malformed"),
            ("[::g]/a", "the registry is malformed"),
            ("[::1]5000/a", "the registry is malformed"),
            (&long, "the name is too long"),
            (hub, "the name is too long"),
            ("r.io:99999/a", "the registry is malformed"),
            (&id, "an id is no name"),
        ] {
            let error = Reference::parse(image).unwrap_err();
            assert_eq!((error.image.as_str(), error.why), (image, why));
        }
        assert!(Reference::parse(&long[..NAME_MAX]).is_ok());
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_keys_are_canonical(
            image in "(\\PC{0,40}|[a-zA-Z0-9:/@._\\[\\]-]{0,60})",
        ) {
            // `A/a` names registry `A` only because of its capital, which the canonical form lacks.
            if let Ok(reference) = Reference::parse(&image)
                && names_host(&reference.host)
            {
                let key = reference.key();
                let again = Reference::parse(&key).map(|again| again.key());
                prop_assert_eq!(again, Ok(key));
            }
        }
    }
}
