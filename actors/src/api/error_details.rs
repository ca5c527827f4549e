//! Typed details for errors of the gRPC library.
//!
//! A message that cannot be decoded never reaches a handler: the gRPC library answers it, without
//! the details that every other error has.

use std::borrow::Cow;

use http::Response;
use jaco_proto::{Error, ErrorCode};
use tonic::{Code, Status, body::Body};

/// Adds details to an error that has none; other responses pass unchanged.
pub(super) fn add_details(method: &str, response: Response<Body>) -> Response<Body> {
    let headers = response.headers();
    if !headers.contains_key("grpc-status") || headers.contains_key("grpc-status-details-bin") {
        return response;
    }
    let Some(status) = Status::from_header_map(headers) else {
        return response;
    };
    match translate(method, &status) {
        Some(error) => Status::from(error).into_http(),
        None => response,
    }
}

fn translate(method: &str, status: &Status) -> Option<Error> {
    let error = match status.code() {
        // Code of the decoder for a message above the limit.
        Code::OutOfRange | Code::ResourceExhausted => {
            Error::new(ErrorCode::ValidationFailed, "the request is too large")
                .with("field", "request")
                .because(reason(status))
        }
        Code::Unimplemented => Error::new(
            ErrorCode::Unimplemented,
            format!("{method} is not served by this daemon"),
        )
        .with("method", method),
        // Handlers never answer these without details: the message did not decode.
        Code::Internal | Code::InvalidArgument => {
            Error::new(ErrorCode::ValidationFailed, "the request does not decode")
                .with("field", "request")
                .because(reason(status))
        }
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => return None,
    };
    Some(error)
}

fn reason(status: &Status) -> Cow<'_, str> {
    match status.message() {
        "" => "unknown".into(),
        message => message.into(),
    }
}

#[cfg(test)]
mod tests {
    use jaco_proto::error::DecodedError;

    use super::*;

    fn translated(status: Status) -> Option<DecodedError> {
        let response = add_details("/jaco.v1.X/Y", status.into_http());
        let status = Status::from_header_map(response.headers()).unwrap();
        (!status.details().is_empty()).then(|| DecodedError::from_status(&status))
    }

    #[test]
    fn errors_of_the_library_get_details() {
        for (status, code) in [
            (
                Status::out_of_range("too large"),
                ErrorCode::ValidationFailed,
            ),
            (Status::unimplemented(""), ErrorCode::Unimplemented),
            (
                Status::internal("buffer underflow"),
                ErrorCode::ValidationFailed,
            ),
        ] {
            assert_eq!(translated(status).unwrap().code, code.as_str());
        }
        assert_eq!(translated(Status::cancelled("gone")), None);
    }

    #[test]
    fn handler_error_passes_unchanged() {
        let error = Error::new(ErrorCode::Internal, "broken").with("reason", "disk");
        let passed = translated(error.into()).unwrap();
        assert_eq!(
            (passed.code.as_str(), passed.details["reason"].as_str()),
            ("internal", "disk")
        );
    }

    #[test]
    fn successful_response_passes_unchanged() {
        let response = add_details("/x", Response::new(Body::empty()));
        assert!(!response.headers().contains_key("grpc-status"));
    }
}
