//! Sanitizes headers of a status before the gRPC library reads them.

use base64::{Engine as _, engine::general_purpose};
use http::HeaderMap;

/// Header with an encoded `google.rpc.Status`.
const DETAILS: &str = "grpc-status-details-bin";

/// Accepts padded and unpadded text, like the gRPC library.
const BASE64: general_purpose::GeneralPurpose = general_purpose::GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    general_purpose::GeneralPurposeConfig::new()
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
);

/// Removes status details that are not valid base64 from headers or trailers of a response.
///
/// A client must call this before it reads the headers of an untrusted server as a
/// [`tonic::Status`], because the library panics on such details. The error is then read from the
/// remaining headers.
pub fn drop_unreadable_details(headers: &mut HeaderMap) {
    let readable = |value: &http::HeaderValue| BASE64.decode(value.as_bytes()).is_ok();
    if headers.get(DETAILS).is_some_and(|value| !readable(value)) {
        headers.remove(DETAILS);
    }
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Status};

    use super::*;

    #[test]
    fn only_invalid_base64_is_removed() {
        for (value, kept) in [
            ("", true),
            ("CAM", true),
            ("CAM=", true),
            ("CB", false), // leftover bits
            ("C", false),
            ("CAM==", false),
            ("CA-_", false),
            ("not base64", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", "3".parse().unwrap());
            headers.insert(DETAILS, value.parse().unwrap());
            drop_unreadable_details(&mut headers);
            assert_eq!(headers.contains_key(DETAILS), kept, "{value:?}");
            let status = Status::from_header_map(&headers).unwrap();
            assert_eq!(status.code(), Code::InvalidArgument);
        }
    }
}
