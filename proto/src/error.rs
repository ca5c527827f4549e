//! The typed error that every call answers with, and how it travels.
//!
//! - [`ErrorCode`]: the closed list of failures.
//! - [`Error`]: what our code answers with; becomes a [`tonic::Status`].
//! - [`DecodedError`]: what a client reads from any status, ours or not.
//! - [`drop_unreadable_details`]: what a client does to headers before.

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

/// A failure as a user sees it: a code, one sentence and the facts behind it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Error {
    /// What kind of failure this is.
    pub code: ErrorCode,
    /// One sentence without a full stop, for people.
    pub message: String,
    /// The facts by name, sorted; values are free text.
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

    /// Adds one fact; a second value for a key replaces the first.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl fmt::Display) -> Self {
        self.details.insert(key.into(), value.to_string());
        self
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
