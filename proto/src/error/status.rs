//! Encoding of an [`Error`] as a gRPC status with details.

use prost::Message;
use prost_types::Any;
use tonic::Status;

use super::Error;
use crate::v1;

/// Full name of the message inside the details.
pub(super) const TYPE_NAME: &str = "jaco.v1.Error";
const TYPE_URL: &str = "type.googleapis.com/jaco.v1.Error";

/// Longest message sent, in bytes.
const MAX_MESSAGE_BYTES: usize = 1024;
/// Longest value of one detail sent, in bytes.
const MAX_VALUE_BYTES: usize = 512;
/// Largest encoded error sent. Clients commonly reject headers above 8 KiB, after base64.
const MAX_ERROR_BYTES: usize = 4096;
const CUT_MARK: &str = "...";

/// `google.rpc.Status`, the message inside the `grpc-status-details-bin` trailer.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RpcStatus {
    /// Must equal the `grpc-status` trailer, or clients replace the whole error.
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    /// Equal to the `grpc-message` trailer, because some clients prefer it.
    #[prost(string, tag = "2")]
    pub(super) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) details: Vec<Any>,
}

/// Encodes the code as the status text and the complete error in the details.
///
/// Trailers are limited in size, so a message above 1 KiB or a detail above 512 bytes is cut
/// with `...`, and the largest details are left out of an error that is still above 4 KiB.
impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let grpc = error.code.grpc();
        let text = error.code.as_str();
        let details = RpcStatus {
            code: grpc as i32,
            message: text.to_owned(),
            details: vec![Any {
                type_url: TYPE_URL.to_owned(),
                value: fit(error.into()).encode_to_vec(),
            }],
        };
        Self::with_details(grpc, text, details.encode_to_vec().into())
    }
}

fn fit(mut error: v1::Error) -> v1::Error {
    cut(&mut error.message, MAX_MESSAGE_BYTES);
    for value in error.details.values_mut() {
        cut(value, MAX_VALUE_BYTES);
    }
    while error.encoded_len() > MAX_ERROR_BYTES {
        let largest = error
            .details
            .iter()
            .max_by_key(|(key, value)| key.len() + value.len())
            .map(|(key, _)| key.clone());
        let Some(key) = largest else { break };
        error.details.remove(&key);
    }
    error
}

fn cut(text: &mut String, limit: usize) {
    if text.len() > limit {
        let mut end = limit - CUT_MARK.len();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push_str(CUT_MARK);
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::ErrorCode;

    #[test]
    fn error_is_encoded_byte_for_byte() {
        let status = Status::from(
            Error::new(ErrorCode::NoLeader, "no leader")
                .with("leader_hint", "b")
                .with("a", "1"),
        );

        let mut error = b"\x0a\x09no_leader\x12\x09no leader".to_vec();
        error.extend(b"\x1a\x06\x0a\x01a\x12\x011");
        error.extend(b"\x1a\x10\x0a\x0bleader_hint\x12\x01b");
        let mut any = b"\x0a\x21type.googleapis.com/jaco.v1.Error\x12".to_vec();
        any.push(u8::try_from(error.len()).unwrap());
        any.extend(&error);
        let mut expected = b"\x08\x0e\x12\x09no_leader\x1a".to_vec();
        expected.push(u8::try_from(any.len()).unwrap());
        expected.extend(&any);
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.message(), "no_leader");
        assert_eq!(status.details(), expected);
    }

    #[test]
    fn details_are_sent_in_exactly_one_trailer() {
        let status = Status::from(Error::new(ErrorCode::ReservedPort, "port 80").with("port", 80));

        let mut trailers = http::HeaderMap::new();
        status.add_header(&mut trailers).unwrap();

        assert_eq!(trailers["grpc-status"], "3");
        assert_eq!(trailers["grpc-message"], "reserved_port");
        let details: Vec<_> = trailers.get_all("grpc-status-details-bin").iter().collect();
        assert_eq!(details.len(), 1);
    }

    #[test]
    fn every_error_fits_into_the_trailers() {
        let mut error = Error::new(ErrorCode::ValidationFailed, "é".repeat(5000));
        for index in 0..50 {
            error = error.with(format!("key{index}"), "ü".repeat(1000));
        }
        error = error.with("field", "ports");

        let status = Status::from(error);
        let sent = RpcStatus::decode(status.details()).unwrap();
        let sent = v1::Error::decode(&sent.details[0].value[..]).unwrap();

        assert!(status.details().len() < MAX_ERROR_BYTES + 128);
        assert_eq!(sent.code, "validation_failed");
        assert!(sent.message.len() <= MAX_MESSAGE_BYTES && sent.message.ends_with("é..."));
        assert_eq!(sent.details["field"], "ports");
    }

    #[test]
    fn text_is_cut_only_above_the_limit() {
        for (text, limit, expected) in [
            ("abcd", 4, "abcd"),
            ("abcde", 4, "a..."),
            ("aéiou", 5, "a..."),
            ("", 4, ""),
        ] {
            let mut cut_text = text.to_owned();
            cut(&mut cut_text, limit);
            assert_eq!(cut_text, expected);
        }
    }
}
