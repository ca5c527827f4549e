//! WebSockets over HTTP/2: an extended CONNECT (RFC 8441) becomes an HTTP/1.1 upgrade.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode,
    header::{CONTENT_LENGTH, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY},
};
use hyper::ext::Protocol;
use sha1::{Digest, Sha1};

use super::body::ClientBody;

/// Concatenated to the key before it is hashed (RFC 6455, section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const WEBSOCKET: &str = "websocket";
/// Fields of the HTTP/1.1 handshake that a client of HTTP/2 must not send.
const HANDSHAKE: [HeaderName; 2] = [SEC_WEBSOCKET_KEY, CONTENT_LENGTH];

/// Whether `request` opens a tunnel that is translated.
///
/// # Errors
/// The status to refuse the request with: a plain CONNECT, or a protocol other than WebSocket.
pub(super) fn is_websocket(request: &Request<ClientBody>) -> Result<bool, StatusCode> {
    if request.method() != Method::CONNECT {
        return Ok(false);
    }
    match request.extensions().get::<Protocol>() {
        Some(protocol) if protocol.as_str() == WEBSOCKET => Ok(true),
        Some(_) => Err(StatusCode::NOT_IMPLEMENTED),
        None => Err(StatusCode::BAD_REQUEST),
    }
}

/// A WebSocket handshake with a replica.
#[derive(Debug)]
pub(super) struct Handshake {
    accept: String,
}

impl Handshake {
    /// Starts a handshake by adding its fields to a request.
    pub(super) fn start(headers: &mut HeaderMap) -> (Self, HeaderValue) {
        for name in HANDSHAKE {
            headers.remove(name);
        }
        // The key only has to differ between connections: it guards against caches.
        let nonce = [getrandom::u64(), getrandom::u64()].map(Result::unwrap_or_default);
        let key = STANDARD.encode(nonce.map(u64::to_be_bytes).concat());
        let accept = accept(key.as_bytes());
        if let Ok(key) = HeaderValue::try_from(key) {
            headers.insert(SEC_WEBSOCKET_KEY, key);
        }
        (Self { accept }, HeaderValue::from_static(WEBSOCKET))
    }

    /// Whether the replica's fields complete the handshake; removes the one that proves it.
    pub(super) fn complete(&self, headers: &mut HeaderMap) -> bool {
        let proof = headers.remove(SEC_WEBSOCKET_ACCEPT);
        proof.is_some_and(|proof| proof.as_bytes() == self.accept.as_bytes())
    }
}

fn accept(key: &[u8]) -> String {
    let digest = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    STANDARD.encode(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_is_that_of_the_rfc() {
        let accepted = accept(b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accepted, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn handshake_needs_the_matching_proof() {
        let mut request = HeaderMap::new();
        request.insert(SEC_WEBSOCKET_KEY, HeaderValue::from_static("client's"));
        let (handshake, protocol) = Handshake::start(&mut request);
        assert_eq!(protocol, "websocket");
        let key = request[SEC_WEBSOCKET_KEY].as_bytes().to_owned();
        assert_eq!(STANDARD.decode(&key).unwrap().len(), 16);
        let mut answer = HeaderMap::new();
        assert!(!handshake.complete(&mut answer));
        for (proof, completes) in [(accept(&key), true), (accept(b"other"), false)] {
            answer.insert(SEC_WEBSOCKET_ACCEPT, proof.try_into().unwrap());
            assert_eq!(handshake.complete(&mut answer), completes);
            assert!(answer.is_empty());
        }
    }
}
