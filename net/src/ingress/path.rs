//! Matching of configured paths, and removal of their prefixes.
//!
//! Matching uses the percent-decoded path without dot segments (RFC 3986, section 5.2.4) and
//! ignores ASCII case, so that an encoded spelling or one with dot segments cannot bypass a longer
//! route.

use std::borrow::Cow;

/// A configured path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Every path.
    Any,
    /// The path itself and everything below it.
    Subtree(Box<[u8]>),
    /// Everything that begins with these bytes.
    Prefix(Box<[u8]>),
}

impl Pattern {
    pub(super) fn new(configured: &str) -> Self {
        if configured.is_empty() || configured == "/" {
            return Self::Any;
        }
        match configured.strip_suffix('*') {
            Some(prefix) => Self::Prefix(prefix.as_bytes().into()),
            None => Self::Subtree(
                configured
                    .strip_suffix('/')
                    .unwrap_or(configured)
                    .as_bytes()
                    .into(),
            ),
        }
    }

    #[cfg(test)]
    pub(super) fn matches(&self, path: &NormalizedPath<'_>) -> bool {
        match self {
            Self::Any => true,
            Self::Prefix(prefix) => starts_with(&path.bytes, prefix),
            Self::Subtree(base) => {
                starts_with(&path.bytes, base)
                    && matches!(path.bytes.get(base.len()), None | Some(b'/'))
            }
        }
    }
}

/// A request path normalized for matching.
pub(super) struct NormalizedPath<'a> {
    bytes: Cow<'a, [u8]>,
    /// Whether dot segments were removed.
    has_dot_segments: bool,
}

impl<'a> NormalizedPath<'a> {
    pub(super) fn new(path: &'a str) -> Self {
        let raw = path.as_bytes();
        let decoded = if raw.contains(&b'%') {
            Cow::Owned(decode(raw))
        } else {
            Cow::Borrowed(raw)
        };
        let dots = |segment: &[u8]| segment == b"." || segment == b"..";
        if decoded.split(|&b| b == b'/').any(dots) {
            Self {
                bytes: Cow::Owned(without_dots(&decoded)),
                has_dot_segments: true,
            }
        } else {
            Self {
                bytes: decoded,
                has_dot_segments: false,
            }
        }
    }
}

impl NormalizedPath<'_> {
    /// The path in lower case.
    pub(super) fn folded(&self) -> Cow<'_, [u8]> {
        if self.bytes.iter().any(u8::is_ascii_uppercase) {
            Cow::Owned(self.bytes.to_ascii_lowercase())
        } else {
            Cow::Borrowed(&self.bytes)
        }
    }
}

/// Removes `prefix`, which the path was matched by, from the start of `path`.
///
/// The part after the prefix stays byte for byte as it was written, unless dot segments make it
/// unclear where the prefix ends. The result begins with a slash.
pub(super) fn strip(path: &str, prefix: &[u8]) -> String {
    let normalized = NormalizedPath::new(path);
    let rest = match encoded_prefix_length(path.as_bytes(), prefix) {
        Some(length) if !normalized.has_dot_segments && path.is_char_boundary(length) => {
            path[length..].to_owned()
        }
        Some(_) | None if starts_with(&normalized.bytes, prefix) => {
            encode(&normalized.bytes[prefix.len()..])
        }
        Some(_) | None => path.to_owned(),
    };
    if rest.starts_with('/') {
        rest
    } else {
        format!("/{rest}")
    }
}

/// Length of the start of `raw` that decodes to `prefix`; `None` if it decodes to something else.
fn encoded_prefix_length(raw: &[u8], prefix: &[u8]) -> Option<usize> {
    let mut at = 0;
    for wanted in prefix {
        let (byte, length) = read(&raw[at..])?;
        if !byte.eq_ignore_ascii_case(wanted) {
            return None;
        }
        at += length;
    }
    Some(at)
}

fn starts_with(path: &[u8], prefix: &[u8]) -> bool {
    path.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Decodes the first byte of `raw`, and returns it with the length of its encoding.
fn read(raw: &[u8]) -> Option<(u8, usize)> {
    let hex = |at: usize| raw.get(at).and_then(|&b| char::from(b).to_digit(16));
    match (*raw.first()?, hex(1), hex(2)) {
        (b'%', Some(high), Some(low)) => u8::try_from(high * 16 + low).ok().map(|b| (b, 3)),
        (byte, _, _) => Some((byte, 1)),
    }
}

fn decode(raw: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut at = 0;
    while let Some((byte, length)) = read(&raw[at..]) {
        decoded.push(byte);
        at += length;
    }
    decoded
}

fn without_dots(path: &[u8]) -> Vec<u8> {
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut open = false; // whether the path ends in a directory
    for segment in path
        .strip_prefix(b"/")
        .unwrap_or(path)
        .split(|&b| b == b'/')
    {
        open = matches!(segment, b"." | b"..");
        match segment {
            b"." => {}
            b".." => drop(kept.pop()),
            name => kept.push(name),
        }
    }
    let mut clean = Vec::with_capacity(path.len());
    for segment in &kept {
        clean.push(b'/');
        clean.extend_from_slice(segment);
    }
    if open || clean.is_empty() {
        clean.push(b'/');
    }
    clean
}

fn encode(path: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(path.len());
    for &byte in path {
        if byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_and_dot_segments_removed() {
        let table = [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a%2fb", "/a/b"),
            ("/%61", "/a"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/../../b", "/b"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/a//b", "/a//b"),
            ("/a.b/..c", "/a.b/..c"),
            ("/%zz%4", "/%zz%4"),
            ("*", "*"),
        ];
        for (path, normalized) in table {
            assert_eq!(
                String::from_utf8_lossy(&NormalizedPath::new(path).bytes),
                normalized,
                "{path}"
            );
        }
    }

    #[test]
    fn stripping_keeps_the_encoding_of_the_rest() {
        let table = [
            ("/api/foo", "/api", "/foo"),
            ("/api", "/api", "/"),
            ("/api/", "/api", "/"),
            ("/API/Foo%20x", "/api", "/Foo%20x"),
            ("/%61pi/x%2Fy", "/api", "/x%2Fy"),
            ("/apix", "/api", "/x"),
            ("/api//x", "/api", "//x"),
            ("/b/../api/x%20y", "/api", "/x%20y"),
            ("/api/../api/x", "/api", "/x"),
            ("/%C3%A9/x", "/é", "/x"),
        ];
        for (path, prefix, rest) in table {
            assert_eq!(strip(path, prefix.as_bytes()), rest, "{path}");
        }
    }
}
