//! Rejections: how a command is refused.

use jaco_proto::{Error, ErrorCode};

/// The lock is held by another lessee; in the detail `reason` of a rejection.
pub const CERT_LOCK_HELD: &str = "cert_lock_held";
/// The address block belongs to another network or host.
pub const CIDR_TAKEN: &str = "cidr_taken";
/// The deployment moved on since the command was built.
pub const STALE_REVISION: &str = "stale_revision";
/// The raft id was given out already.
pub const RAFT_ID_TAKEN: &str = "raft_id_taken";

/// A command that no state would accept.
pub(super) fn invalid(field: &str, reason: &str) -> Error {
    Error::new(
        ErrorCode::ValidationFailed,
        format!("the command is not valid: {field}: {reason}"),
    )
    .with("field", field)
    .with("reason", reason)
}

/// A command that lost against the present state, for a reason without a code of its own.
pub(super) fn lost(reason: &'static str, message: &str) -> Error {
    Error::new(ErrorCode::RaftApplyFailed, message)
        .with("outcome", "rejected")
        .with("reason", reason)
}

/// The part of a command that must be there.
pub(super) fn required<'a, T>(field: &str, value: Option<&'a T>) -> Result<&'a T, Error> {
    value.ok_or_else(|| invalid(field, "missing"))
}
