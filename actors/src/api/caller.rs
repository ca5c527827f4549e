//! Who made a call, as the handlers see it.

use std::fmt;

use jaco_proto::{Error, ErrorCode};
use tonic::Request;

use super::admission::Transport;

/// The admitted caller of one request; put there by the admission layer.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Token identity, `local`, `setup` or `anonymous`.
    pub identity: String,
    /// The listener the call came in on.
    pub transport: Transport,
    /// Correlates log lines; the client's `x-request-id` or a fresh UUID.
    pub request_id: String,
}

impl Caller {
    /// The caller of `request`.
    ///
    /// # Errors
    /// `internal` if the request did not pass the admission layer.
    pub fn of<T>(request: &Request<T>) -> Result<Self, Error> {
        request
            .extensions()
            .get::<Self>()
            .cloned()
            .ok_or_else(|| Error::new(ErrorCode::Internal, "the request did not pass admission"))
    }

    /// Whether the caller holds an operator token, as opposed to this machine.
    #[must_use]
    pub fn has_token(&self) -> bool {
        match self.transport {
            Transport::Process | Transport::Local => false,
            Transport::Api => true,
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.identity)
    }
}
