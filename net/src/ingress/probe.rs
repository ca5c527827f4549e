//! Answers to probes: whether an address leads to a node of this cluster.

use ring::hmac;
use zeroize::Zeroize as _;

/// Path of a probe; the nonce follows.
pub const PROBE_PATH: &str = "/.well-known/jaco-probe/";
/// Lengths of a nonce.
const NONCE: std::ops::RangeInclusive<usize> = 16..=64;

/// Key that signs nonces; equal on all nodes of a cluster.
#[derive(Clone)]
pub struct ProbeKey(hmac::Key);

impl ProbeKey {
    /// Wraps the bytes of a key.
    #[must_use]
    pub fn new(mut key: [u8; 32]) -> Self {
        let wrapped = Self(hmac::Key::new(hmac::HMAC_SHA256, &key));
        key.zeroize();
        wrapped
    }

    /// The answer to a probe with this nonce: its HMAC-SHA256 (RFC 2104) in hexadecimal digits.
    /// `None` unless the nonce has 16 to 64 letters, digits, `-` or `_`.
    #[must_use]
    pub fn answer(&self, nonce: &str) -> Option<String> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        let valid = NONCE.contains(&nonce.len()) && nonce.bytes().all(allowed);
        valid.then(|| hex::encode(hmac::sign(&self.0, nonce.as_bytes())))
    }
}

impl std::fmt::Debug for ProbeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ProbeKey(<redacted>)")
    }
}

/// The nonce that a request for `path` asks to sign, if it is the path of a probe.
pub(super) fn nonce(path: &str) -> Option<&str> {
    path.strip_prefix(PROBE_PATH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonce_is_signed_in_hexadecimal_digits() {
        // The HMAC was computed with Python.
        let key = ProbeKey::new([7; 32]);
        assert_eq!(
            key.answer("0123456789abcdef").unwrap(),
            "0f6d97c798d01f90e99ba4f560c4a577057f88bd261130276fcd4e54c12dd371"
        );
        assert_ne!(
            ProbeKey::new([8; 32]).answer("0123456789abcdef"),
            key.answer("0123456789abcdef")
        );
    }

    #[test]
    fn other_nonces_have_no_answer() {
        let key = ProbeKey::new([7; 32]);
        let long = "a".repeat(65);
        for nonce in [
            "",
            "0123456789abcde",
            &long,
            "0123456789abcde/",
            "0123456789abcde%",
            "0123456789abcde ",
            "0123456789abcdeä",
        ] {
            assert_eq!(key.answer(nonce), None, "{nonce}");
        }
        assert!(key.answer(&long[1..]).is_some());
        assert_eq!(nonce("/.well-known/jaco-probe/abc"), Some("abc"));
        assert_eq!(nonce("/x/.well-known/jaco-probe/abc"), None);
    }
}
