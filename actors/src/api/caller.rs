//! The admitted caller of a request, as the handlers see it.

use std::fmt;

use jaco_proto::{Error, ErrorCode};
use tonic::Request;

use super::{
    admission::{ANONYMOUS, LOCAL, Transport},
    forwarded::TokenHash,
};
use crate::peer::Sender;

/// The admitted caller of one request; set by the admission layer.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Token identity, `local`, `setup`, `anonymous`, or the hostname of a member that calls on its
    /// own behalf.
    pub identity: String,
    /// Hash of the operator token that authenticated it, if one did.
    pub token: Option<TokenHash>,
    /// The listener that received the call.
    pub transport: Transport,
    /// The member that made or forwarded the call.
    pub sender: Option<Sender>,
    /// Correlates log lines; the client's `x-request-id` or a fresh UUID.
    pub request_id: String,
}

impl Caller {
    /// Returns the caller of `request`.
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

    /// Whether the caller presented no credential.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.token.is_none() && self.identity == ANONYMOUS
    }

    /// Whether the caller is an operator on a node's machine, which needs no token.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self.transport {
            Transport::Process | Transport::Local => true,
            Transport::Peer => self.identity == LOCAL && self.token.is_none(),
            Transport::Api => false,
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.identity)
    }
}
