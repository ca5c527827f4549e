//! Metadata about the caller of a request that a member forwards to the leader.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use jaco_proto::{Error, ErrorCode};

/// Marks a forwarded request, which is not forwarded again.
const MARK: HeaderName = HeaderName::from_static("jaco-forwarded");
/// Identity of the original caller.
const IDENTITY: HeaderName = HeaderName::from_static("jaco-forwarded-identity");
/// Hash of its token.
const TOKEN: HeaderName = HeaderName::from_static("jaco-forwarded-token");

/// SHA-256 over the text of a token, which identifies it. Not shown in logs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenHash(pub [u8; 32]);

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(<redacted>)")
    }
}

/// The original caller of a request, as known to the member that forwards it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Identity; `None` where the credential is inside the request.
    pub identity: Option<String>,
    /// Hash of the token; `None` for a caller that needs none.
    pub token: Option<TokenHash>,
}

impl Forwarded {
    /// Reads the metadata of a request; `None` if it was not forwarded.
    ///
    /// # Errors
    /// `token_invalid` for metadata that a member never sends.
    pub fn read(headers: &HeaderMap) -> Result<Option<Self>, Error> {
        match headers.get(MARK).map(HeaderValue::as_bytes) {
            None => return Ok(None),
            Some(b"1") => {}
            Some(_) => return Err(unreadable()),
        }
        let identity = headers.get(IDENTITY).map(|value| {
            let text = value.to_str().map_err(|_| unreadable())?;
            decode(text).ok_or_else(unreadable)
        });
        let token = headers.get(TOKEN).map(|value| {
            let mut hash = [0; 32];
            decode_hex(value.as_bytes(), &mut hash).ok_or_else(unreadable)?;
            Ok::<_, Error>(TokenHash(hash))
        });
        Ok(Some(Self {
            identity: identity.transpose()?,
            token: token.transpose()?,
        }))
    }

    /// Writes the metadata to a request.
    pub fn write(&self, headers: &mut HeaderMap) {
        headers.insert(MARK, HeaderValue::from_static("1"));
        let value = |text: String| HeaderValue::from_str(&text);
        if let Some(Ok(identity)) = self.identity.as_deref().map(|text| value(encode(text))) {
            headers.insert(IDENTITY, identity);
        }
        if let Some(Ok(mut token)) = self.token.map(|hash| value(hex::encode(hash.0))) {
            token.set_sensitive(true);
            headers.insert(TOKEN, token);
        }
    }

    /// Removes the metadata, which is meaningless from any caller but a member.
    pub fn strip(headers: &mut HeaderMap) {
        for name in [MARK, IDENTITY, TOKEN] {
            headers.remove(name);
        }
    }
}

fn unreadable() -> Error {
    Error::new(
        ErrorCode::TokenInvalid,
        "the forwarded caller cannot be read",
    )
}

/// Encodes an identity for metadata: `%` and everything but visible ASCII becomes `%xx`.
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push_str(&hex::encode([byte]));
        }
    }
    out
}

fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let mut byte = [0];
            decode_hex(after.get(..2)?, &mut byte)?;
            out.push(byte[0]);
            rest = &after[2..];
        } else {
            out.push(first);
            rest = after;
        }
    }
    String::from_utf8(out).ok()
}

/// Decodes lower-case hexadecimal digits, exactly as many as fill `out`.
fn decode_hex(text: &[u8], out: &mut [u8]) -> Option<()> {
    if text.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    hex::decode_to_slice(text, out).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(pairs: &[(&str, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|&(name, value)| {
            let name: HeaderName = name.parse().unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        });
        pairs.collect()
    }

    proptest! {
        #[test]
        fn metadata_round_trips(
            identity in proptest::option::of(".{0,40}"),
            token in proptest::option::of(any::<[u8; 32]>()),
        ) {
            let forwarded = Forwarded { identity, token: token.map(TokenHash) };
            let mut headers = HeaderMap::new();
            forwarded.write(&mut headers);
            prop_assert_eq!(Forwarded::read(&headers).unwrap(), Some(forwarded));
            Forwarded::strip(&mut headers);
            prop_assert!(headers.is_empty());
        }
    }

    #[test]
    fn identity_without_the_mark_is_ignored() {
        let headers = header(&[("jaco-forwarded-identity", "ci")]);
        assert_eq!(Forwarded::read(&headers), Ok(None));
    }

    #[test]
    fn malformed_metadata_is_refused() {
        let short = "ab".repeat(31);
        let upper = "AB".repeat(32);
        for (name, value) in [
            ("jaco-forwarded", "2"),
            ("jaco-forwarded", ""),
            ("jaco-forwarded-identity", "%"),
            ("jaco-forwarded-identity", "%0"),
            ("jaco-forwarded-identity", "%zz"),
            ("jaco-forwarded-identity", "%ff"),
            ("jaco-forwarded-token", ""),
            ("jaco-forwarded-token", short.as_str()),
            ("jaco-forwarded-token", upper.as_str()),
        ] {
            let mut headers = header(&[("jaco-forwarded", "1")]);
            for (name, value) in &header(&[(name, value)]) {
                headers.insert(name, value.clone());
            }
            let error = Forwarded::read(&headers).unwrap_err();
            assert_eq!(error.code, ErrorCode::TokenInvalid, "{name}: {value}");
        }
    }

    #[test]
    fn token_hash_is_redacted() {
        let forwarded = Forwarded {
            identity: None,
            token: Some(TokenHash([0xab; 32])),
        };
        let shown = format!("{forwarded:?}");
        assert!(!shown.contains("171") && !shown.contains("ab, "), "{shown}");
        let mut headers = HeaderMap::new();
        forwarded.write(&mut headers);
        assert!(!format!("{headers:?}").contains("abab"));
    }
}
