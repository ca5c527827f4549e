//! Decodes an error from any gRPC status.

use std::{collections::BTreeMap, fmt};

use prost::Message;
use tonic::{Code, Status};

use super::{ErrorCode, status};
use crate::v1;

/// A failure as read by a client: like [`Error`](super::Error), but from a server of any version,
/// so the code may be unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct DecodedError {
    /// The code as sent; the name of the gRPC status in snake case if none was sent.
    pub code: String,
    /// One sentence for display; may be empty.
    pub message: String,
    /// Details by name; empty unless the server sent a typed error.
    pub details: BTreeMap<String, String>,
    /// gRPC status of the failure.
    pub grpc: Code,
}

impl DecodedError {
    /// Decodes the error from, in this order: the first typed error in the details, the prefix
    /// `code: ` of the text, the gRPC status itself.
    ///
    /// Details that do not decode are ignored.
    pub fn from_status(status: &Status) -> Self {
        let envelope = status::RpcStatus::decode(status.details()).unwrap_or_default();
        if let Some(error) = typed(&envelope) {
            return Self {
                code: error.code,
                message: error.message,
                details: error.details,
                grpc: status.code(),
            };
        }
        let text = if envelope.code == status.code() as i32 && !envelope.message.is_empty() {
            &envelope.message
        } else {
            status.message()
        };
        let (code, message) = prefixed(text).unwrap_or((grpc_name(status.code()), text));
        Self {
            code: code.to_owned(),
            message: message.to_owned(),
            details: BTreeMap::new(),
            grpc: status.code(),
        }
    }

    /// Returns the code, if this version knows it.
    pub fn known(&self) -> Option<ErrorCode> {
        self.code.parse().ok()
    }

    /// Whether another node may succeed with the same call: this one is unreachable, too slow or
    /// has no leader.
    ///
    /// A stream must not be retried midway in any case.
    pub fn retry_elsewhere(&self) -> bool {
        matches!(self.grpc, Code::Unavailable | Code::DeadlineExceeded)
            || self.known() == Some(ErrorCode::NoLeader)
    }
}

impl fmt::Display for DecodedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.code)?;
        if self.message.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", self.message)
    }
}

impl From<Status> for DecodedError {
    fn from(status: Status) -> Self {
        Self::from_status(&status)
    }
}

fn typed(envelope: &status::RpcStatus) -> Option<v1::Error> {
    envelope
        .details
        .iter()
        .filter(|any| any.type_url.rsplit('/').next() == Some(status::TYPE_NAME))
        .filter_map(|any| v1::Error::decode(&any.value[..]).ok())
        .find(|error| !error.code.is_empty())
}

/// Splits `code: text`; a text that consists of a code alone counts as one.
fn prefixed(text: &str) -> Option<(&str, &str)> {
    let (code, message) = text.split_once(": ").unwrap_or((text, ""));
    let looks_like_code = code.starts_with(|c: char| c.is_ascii_lowercase())
        && code
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    looks_like_code.then_some((code, message))
}

/// The name of a gRPC status in snake case.
fn grpc_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::Unknown => "unknown",
        Code::InvalidArgument => "invalid_argument",
        Code::DeadlineExceeded => "deadline_exceeded",
        Code::NotFound => "not_found",
        Code::AlreadyExists => "already_exists",
        Code::PermissionDenied => "permission_denied",
        Code::ResourceExhausted => "resource_exhausted",
        Code::FailedPrecondition => "failed_precondition",
        Code::Aborted => "aborted",
        Code::OutOfRange => "out_of_range",
        Code::Unimplemented => "unimplemented",
        Code::Internal => "internal",
        Code::Unavailable => "unavailable",
        Code::DataLoss => "data_loss",
        Code::Unauthenticated => "unauthenticated",
    }
}

#[cfg(test)]
mod tests;
