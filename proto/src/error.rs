//! The typed error of all API calls, and its encoding.
//!
//! - [`ErrorCode`]: the closed list of failures.
//! - [`Error`]: the error that handlers return; converts to a [`tonic::Status`].
//! - [`DecodedError`]: the error that a client reads from any status, of any server.
//! - [`drop_unreadable_details`]: sanitizes headers before a client reads them.

mod code;
#[cfg(feature = "grpc")]
mod decoded;
#[cfg(feature = "grpc")]
mod headers;
#[cfg(feature = "grpc")]
mod status;

use std::{collections::BTreeMap, fmt};

pub use code::{ErrorCode, UnknownCode};
#[cfg(feature = "grpc")]
pub use decoded::DecodedError;
#[cfg(feature = "grpc")]
pub use headers::drop_unreadable_details;

use crate::v1;

/// A failure as displayed to a user: a code, one sentence and details.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Error {
    /// Kind of the failure.
    pub code: ErrorCode,
    /// One sentence without a full stop, for display.
    pub message: String,
    /// Details by name, sorted; values are free text.
    pub details: BTreeMap<String, String>,
}

impl Error {
    /// Creates an error without details.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: BTreeMap::new(),
        }
    }

    /// Adds a detail; a second value for a key replaces the first.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl fmt::Display) -> Self {
        self.details.insert(key.into(), value.to_string());
        self
    }

    /// Adds the cause to the message and as detail `reason`: not every client shows details.
    #[must_use]
    pub fn because(mut self, reason: impl fmt::Display) -> Self {
        let reason = reason.to_string();
        if !reason.is_empty() {
            self.message = format!("{}: {reason}", self.message);
        }
        self.with("reason", reason)
    }
}

impl From<Error> for v1::Error {
    fn from(error: Error) -> Self {
        Self {
            code: error.code.as_str().to_owned(),
            message: error.message,
            details: error.details,
        }
    }
}

impl TryFrom<v1::Error> for Error {
    type Error = UnknownCode;

    fn try_from(error: v1::Error) -> Result<Self, UnknownCode> {
        Ok(Self {
            code: error.code.parse()?,
            message: error.message,
            details: error.details,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_is_in_message_and_details() {
        let error = Error::new(ErrorCode::Internal, "broken").because("disk full");
        assert_eq!(error.to_string(), "internal: broken: disk full");
        assert_eq!(error.details["reason"], "disk full");
        let error = Error::new(ErrorCode::Internal, "broken").because("");
        assert_eq!(error.message, "broken");
    }
}
