//! Constructors and reasons of rejections.

use jaco_proto::{Error, ErrorCode};

/// The lock is held by another lessee. This and the constants below are values of the detail
/// `reason`.
pub const CERT_LOCK_HELD: &str = "cert_lock_held";
/// The address block belongs to another network or host.
pub const CIDR_TAKEN: &str = "cidr_taken";
/// The address block lost its network too short a time ago.
pub const CIDR_QUARANTINED: &str = "cidr_quarantined";
/// The deployment was changed after the command was built.
pub const STALE_REVISION: &str = "stale_revision";
/// The secret has a newer version by now.
pub const STALE_VERSION: &str = "stale_version";
/// Another secrets key was named after the command was built.
pub const SECRETS_KEY_CHANGED: &str = "secrets_key_changed";
/// The raft id was assigned before.
pub const RAFT_ID_TAKEN: &str = "raft_id_taken";

/// Rejects a command that is invalid in every state.
pub(super) fn invalid(field: &str, reason: &str) -> Error {
    Error::new(
        ErrorCode::ValidationFailed,
        format!("the command is not valid: {field}: {reason}"),
    )
    .with("field", field)
    .with("reason", reason)
}

/// Rejects a command that conflicts with the current state and has no error code of its own.
pub(super) fn conflict(reason: &'static str, message: &str) -> Error {
    Error::new(ErrorCode::RaftApplyFailed, message)
        .with("outcome", "rejected")
        .with("reason", reason)
}

/// Returns a required field of a command.
pub(super) fn required<'a, T>(field: &str, value: Option<&'a T>) -> Result<&'a T, Error> {
    value.ok_or_else(|| invalid(field, "missing"))
}
