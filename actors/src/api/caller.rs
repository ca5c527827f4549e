//! Who made a call, as the handlers see it.

use std::fmt;

use jaco_proto::{Error, ErrorCode};
use tonic::Request;

use super::{
    admission::{ANONYMOUS, LOCAL, Transport},
    forwarded::TokenHash,
};
use crate::peer::Sender;

/// The admitted caller of one request; put there by the admission layer.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Token identity, `local`, `setup`, `anonymous` or, of a member that calls for itself, its
    /// hostname.
    pub identity: String,
    /// The operator token that proved it, if one did.
    pub token: Option<TokenHash>,
    /// The listener the call came in on.
    pub transport: Transport,
    /// The member that made the call, or passed it on.
    pub sender: Option<Sender>,
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

    /// Whether the caller proved nothing.
    #[must_use]
    pub fn is_stranger(&self) -> bool {
        self.token.is_none() && self.identity == ANONYMOUS
    }

    /// Whether the caller is an operator of a node's machine, who needs no token.
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
