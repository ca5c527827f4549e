use proptest::{collection::btree_map, prelude::*, sample::select};
use prost_types::Any;

use super::*;
use crate::Error;

fn detail(type_url: &str, value: Vec<u8>) -> Any {
    Any {
        type_url: type_url.to_owned(),
        value,
    }
}

fn typed_error(code: &str) -> Vec<u8> {
    v1::Error {
        code: code.to_owned(),
        message: "text".to_owned(),
        details: BTreeMap::from([("port".to_owned(), "80".to_owned())]),
    }
    .encode_to_vec()
}

fn status_with(code: Code, text: &str, details: Vec<Any>) -> Status {
    let envelope = status::RpcStatus {
        code: code as i32,
        message: text.to_owned(),
        details,
    };
    Status::with_details(code, text, envelope.encode_to_vec().into())
}

#[test]
fn code_is_read_from_the_text_prefix() {
    for (grpc, text, code, message) in [
        (Code::Unavailable, "no_leader: ask b", "no_leader", "ask b"),
        (
            Code::PermissionDenied,
            "join_token_invalid",
            "join_token_invalid",
            "",
        ),
        (Code::Internal, "raft_apply: a: b", "raft_apply", "a: b"),
        (Code::Internal, "x9: y", "x9", "y"),
        (
            Code::Unavailable,
            "dial tcp: refused",
            "unavailable",
            "dial tcp: refused",
        ),
        (
            Code::Internal,
            "node join rpc: no_leader",
            "internal",
            "node join rpc: no_leader",
        ),
        (Code::Internal, "no_leader:x", "internal", "no_leader:x"),
        (Code::Internal, "9x: y", "internal", "9x: y"),
        (Code::Internal, "_x: y", "internal", "_x: y"),
        (Code::Internal, "Bad: y", "internal", "Bad: y"),
        (Code::Internal, ": y", "internal", ": y"),
        (Code::DeadlineExceeded, "", "deadline_exceeded", ""),
        (
            Code::Unimplemented,
            "Method not here",
            "unimplemented",
            "Method not here",
        ),
    ] {
        let decoded = DecodedError::from_status(&Status::new(grpc, text));

        assert_eq!(
            (decoded.code.as_str(), decoded.message.as_str()),
            (code, message),
            "{text}"
        );
        assert_eq!(decoded.grpc, grpc);
        assert!(decoded.details.is_empty());
    }
}

#[test]
fn first_typed_error_wins_over_the_text() {
    let status = status_with(
        Code::InvalidArgument,
        "other: text",
        vec![
            detail(
                "type.googleapis.com/google.rpc.ErrorInfo",
                typed_error("wrong_type"),
            ),
            detail("type.googleapis.com/jaco.v1.Error", vec![0xff]),
            detail("example.org/x/jaco.v1.Error", typed_error("reserved_port")),
            detail("type.googleapis.com/jaco.v1.Error", typed_error("second")),
        ],
    );

    let decoded = DecodedError::from_status(&status);

    assert_eq!(decoded.code, "reserved_port");
    assert_eq!(decoded.known(), Some(ErrorCode::ReservedPort));
    assert_eq!(decoded.details["port"], "80");
    assert_eq!(decoded.to_string(), "reserved_port: text");
}

#[test]
fn type_is_matched_after_the_last_slash() {
    for (url, found) in [
        ("jaco.v1.Error", true),
        ("/jaco.v1.Error", true),
        ("type.googleapis.com/xjaco.v1.Error", false),
        ("jaco.v1.Error/other", false),
        ("", false),
    ] {
        let status = status_with(
            Code::Internal,
            "Text",
            vec![detail(url, typed_error("a_code"))],
        );
        let code = DecodedError::from_status(&status).code;
        assert_eq!(code == "a_code", found, "{url}");
    }
}

#[test]
fn unknown_codes_are_kept() {
    let status = status_with(
        Code::Aborted,
        "from_the_future",
        vec![detail("x/jaco.v1.Error", typed_error("from_the_future"))],
    );

    let decoded = DecodedError::from_status(&status);

    assert_eq!(decoded.code, "from_the_future");
    assert_eq!(decoded.known(), None);
}

#[test]
fn envelope_with_other_status_keeps_the_text() {
    let envelope = status::RpcStatus {
        code: Code::NotFound as i32,
        message: "inner: text".to_owned(),
        details: Vec::new(),
    };
    let bytes = envelope.encode_to_vec();

    let same = Status::with_details(Code::NotFound, "outer: text", bytes.clone().into());
    let other = Status::with_details(Code::Internal, "outer: text", bytes.into());

    assert_eq!(DecodedError::from_status(&same).code, "inner");
    assert_eq!(DecodedError::from_status(&other).code, "outer");
}

#[test]
fn only_node_failures_are_retried_elsewhere() {
    for (grpc, text, elsewhere) in [
        (Code::Unavailable, "connection refused", true),
        (Code::DeadlineExceeded, "too slow", true),
        (Code::Unavailable, "no_leader", true),
        (Code::FailedPrecondition, "no_leader: election", true),
        (Code::Internal, "raft_apply_failed: x", false),
        (Code::Unauthenticated, "token_invalid", false),
        (Code::Internal, "no leader", false),
    ] {
        let status = Status::new(grpc, text);
        assert_eq!(
            DecodedError::from_status(&status).retry_elsewhere(),
            elsewhere,
            "{text}"
        );
    }
    let typed = status_with(
        Code::FailedPrecondition,
        "Text",
        vec![detail("x/jaco.v1.Error", typed_error("no_leader"))],
    );
    assert!(DecodedError::from_status(&typed).retry_elsewhere());
}

proptest! {
    #[test]
    fn error_survives_the_trailers(
        code in select(ErrorCode::ALL),
        message in ".{0,200}",
        details in btree_map("[a-z_]{1,20}", ".{0,60}", 0..6),
    ) {
        let error = Error { code, message, details };

        let mut trailers = http::HeaderMap::new();
        Status::from(error.clone()).add_header(&mut trailers).unwrap();
        let status = Status::from_header_map(&trailers).unwrap();
        let decoded = DecodedError::from_status(&status);

        prop_assert_eq!(decoded.known(), Some(code));
        prop_assert_eq!(decoded.grpc, code.grpc());
        prop_assert_eq!(&decoded.message, &error.message);
        prop_assert_eq!(&decoded.details, &error.details);
    }

    #[test]
    fn arbitrary_details_decode_to_an_error(
        grpc in 0..20,
        text in ".*",
        details in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let status = Status::with_details(Code::from(grpc), text, details.into());
        let decoded = DecodedError::from_status(&status);
        prop_assert!(!decoded.code.is_empty());
    }

    #[test]
    fn damaged_details_decode_to_an_error(at in 0_usize..200, byte in any::<u8>()) {
        let status = Status::from(Error::new(ErrorCode::NoLeader, "text").with("key", "value"));
        let mut details = status.details().to_vec();
        let at = at % details.len();
        details[at] = byte;
        let damaged = Status::with_details(status.code(), status.message(), details.into());
        prop_assert!(!DecodedError::from_status(&damaged).code.is_empty());
    }
}
