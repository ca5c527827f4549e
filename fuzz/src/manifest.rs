//! Properties of rejected and accepted manifests.

use std::collections::BTreeSet;

use jaco_proto::{
    Error, ErrorCode,
    error::DecodedError,
    manifest::{MAX_REPLICAS, Resolved},
    yaml::Position,
};
use tonic::Status;

use crate::tree::assert_inside;

/// Error codes of manifests.
const CODES: [ErrorCode; 14] = [
    ErrorCode::ValidationFailed,
    ErrorCode::ParseFailed,
    ErrorCode::UnknownService,
    ErrorCode::UnknownNetwork,
    ErrorCode::ReservedPort,
    ErrorCode::PortConflict,
    ErrorCode::ReplicasExceedPinnedHosts,
    ErrorCode::LegacyComposeField,
    ErrorCode::EnvFileUnresolved,
    ErrorCode::RouteTlsMixed,
    ErrorCode::RouteMultipleCatchall,
    ErrorCode::InvalidDependsOn,
    ErrorCode::UnknownDependsOnService,
    ErrorCode::UnsupportedDependsOnCondition,
];

/// Checks an error: its code is a manifest error code, its position is in the named file, and a
/// client decodes the same error.
pub(crate) fn assert_refusal(error: &Error, jaco: &[u8], compose: &[u8]) {
    assert!(CODES.contains(&error.code), "{error:?}");
    assert!(!error.message.is_empty(), "{error:?}");
    let number = |key: &str| error.details.get(key).map(|text| text.parse().unwrap());
    match (number("line"), number("col")) {
        (Some(line), Some(col)) => {
            let file = match error.details.get("file").map(String::as_str) {
                Some("jaco.yaml") => jaco,
                Some("compose.yaml") => compose,
                file => panic!("a place in the file {file:?}: {error:?}"),
            };
            assert_inside(file, Position { line, col, file: 0 });
        }
        (None, None) => {}
        place => panic!("half a place {place:?}: {error:?}"),
    }
    for text in error.details.values().chain([&error.message]) {
        assert!(text.chars().count() <= 501, "{} bytes", text.len());
    }
    let sent = DecodedError::from_status(&Status::from(error.clone()));
    assert_eq!(sent.known(), Some(error.code));
    if error.message.len() <= 1024 {
        assert_eq!(sent.message, error.message);
    }
    if error.details.values().all(|value| value.len() <= 512) && error.details.len() < 6 {
        assert_eq!(sent.details, error.details);
    }
}

/// Checks the properties of an accepted deployment that the rest of the system relies on.
pub(crate) fn assert_sound(resolved: &Resolved) {
    assert!(!resolved.deployment.is_empty());
    let names: Vec<_> = resolved
        .services
        .iter()
        .map(|service| &service.name)
        .collect();
    assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    for service in &resolved.services {
        assert!(
            (0..=MAX_REPLICAS).contains(&service.replicas),
            "{service:?}"
        );
        let distinct: BTreeSet<_> = service.networks.iter().collect();
        assert_eq!(distinct.len(), service.networks.len(), "{service:?}");
    }
    let mut keys = BTreeSet::new();
    for route in &resolved.routes {
        assert!(names.contains(&&route.service), "{route:?}");
        assert!((1..=65535).contains(&route.port), "{route:?}");
        assert!(!route.domain.is_empty(), "{route:?}");
        assert!(keys.insert((&route.domain, &route.path)), "{route:?}");
    }
    let mut ports = BTreeSet::new();
    for route in &resolved.tcp_routes {
        assert!(names.contains(&&route.service), "{route:?}");
        assert!((1..=65535).contains(&route.published_port), "{route:?}");
        assert!(![80, 443].contains(&route.published_port), "{route:?}");
        assert!(
            ports.insert((route.published_port, route.protocol)),
            "{route:?}"
        );
    }
    for privileged in &resolved.privileged {
        assert!(names.contains(&&privileged.service), "{privileged:?}");
    }
}

/// Removes the position of an error, to compare the errors of two spellings of one tree.
pub(crate) fn without_position(mut error: Error) -> Error {
    for key in ["line", "col"] {
        error.details.remove(key);
    }
    error
}
