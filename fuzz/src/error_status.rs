//! Fuzzes errors that a client reads from any gRPC status.

use http::{HeaderMap, HeaderValue};
use jaco_proto::{
    Error,
    error::{DecodedError, drop_unreadable_details},
};
use tonic::{Code, Status};

use crate::parts::parts;

/// Clients commonly reject headers above this size.
const HEADER_BYTES: usize = 8 << 10;

/// Input: a byte for the gRPC code, the status text, the status details, then a details header as
/// sent by a foreign server.
///
/// Every status yields an error code, and the same error after a round trip through HTTP headers.
/// An error with a known code that is sent again is equal, fits into a header, and no longer
/// changes when it is sent a third time.
pub fn error_status(data: &[u8]) {
    let (code, rest) = data.split_first().unwrap_or((&0, &[]));
    let [message, details, header] = parts(rest);
    foreign(message, header);
    let code = Code::from(i32::from(code % 17));
    let message = String::from_utf8_lossy(message).into_owned();
    let status = Status::with_details(code, message, details.to_vec().into());
    let decoded = DecodedError::from_status(&status);
    assert!(!decoded.code.is_empty());
    assert!(decoded.to_string().starts_with(&decoded.code));
    assert_eq!(decoded.grpc, code);
    assert_eq!(across_headers(&status), decoded);
    let Some(known) = decoded.known() else {
        return;
    };
    assert_eq!(known.as_str(), decoded.code);
    let sent = sent(&decoded);
    assert_eq!(sent.known(), Some(known));
    assert_eq!(sent.grpc, known.grpc());
    let details = decoded.details.iter();
    let bytes: usize = details
        .map(|(key, value)| key.len() + value.len() + 8)
        .sum();
    if decoded.message.len() <= 512 && bytes <= 512 {
        assert_eq!(
            (&sent.message, &sent.details),
            (&decoded.message, &decoded.details)
        );
    }
    assert_eq!(self::sent(&sent), sent, "not a fixed point");
}

/// Reads headers with arbitrary bytes.
fn foreign(message: &[u8], details: &[u8]) {
    let mut headers = HeaderMap::new();
    for (key, value) in [
        ("grpc-status", b"3".as_slice()),
        ("grpc-message", message),
        ("grpc-status-details-bin", details),
    ] {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(key, value);
        }
    }
    drop_unreadable_details(&mut headers);
    let status = Status::from_header_map(&headers).expect("a status");
    assert!(!DecodedError::from_status(&status).code.is_empty());
}

/// Returns the error that another client reads after ours forwarded it.
fn sent(decoded: &DecodedError) -> DecodedError {
    let status = Status::from(Error {
        code: decoded.known().expect("a known code"),
        message: decoded.message.clone(),
        details: decoded.details.clone(),
    });
    across_headers(&status)
}

fn across_headers(status: &Status) -> DecodedError {
    let mut headers = HeaderMap::new();
    status
        .add_header(&mut headers)
        .expect("every status has a header");
    let details = headers.get("grpc-status-details-bin");
    let known = DecodedError::from_status(status).known().is_some();
    let ours = known && status.message() == DecodedError::from_status(status).code;
    if let (true, Some(details)) = (ours && status.details().len() <= 4096 + 128, details) {
        assert!(details.len() <= HEADER_BYTES, "{} bytes", details.len());
    }
    let read = Status::from_header_map(&headers).expect("a status");
    assert_eq!(
        (read.code(), read.details()),
        (status.code(), status.details())
    );
    DecodedError::from_status(&read)
}
