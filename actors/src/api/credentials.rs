//! Credentials of a call, kept to be checked again: a token may be revoked between the headers of a
//! request and the moment it is served.

use http::{HeaderValue, Request};
use jaco_proto::Error;
use tonic::body::Body;

use super::{
    admission::{AdmissionContext, Admitted, PresentedCredentials, Transport, admit},
    forwarded::Forwarded,
    methods::{Class, Method, ServedBy},
};
use crate::{
    node::{NodeContext, leader::LeaderLocation, removed},
    peer::Sender,
};

/// Credentials of a caller, and the method it calls.
pub(super) struct Credentials {
    transport: Transport,
    method: Method,
    authorization: Option<HeaderValue>,
    sender: Option<Sender>,
    forwarded: Result<Option<Forwarded>, Error>,
}

impl Credentials {
    /// Takes the credentials from `request`, and removes the metadata that only members may set.
    pub(super) fn take(transport: Transport, method: Method, request: &mut Request<Body>) -> Self {
        let sender = match transport {
            Transport::Peer => request.extensions_mut().remove::<Sender>(),
            Transport::Process | Transport::Local | Transport::Api => None,
        };
        let headers = request.headers_mut();
        let forwarded = match sender {
            Some(_) => Forwarded::read(headers),
            None => Ok(None),
        };
        // Metadata of any other caller is meaningless, and later layers must not use it.
        Forwarded::strip(headers);
        Self {
            transport,
            method,
            authorization: headers.get("authorization").cloned(),
            sender,
            forwarded,
        }
    }

    /// The member that makes or forwards the call.
    pub(super) fn sender(&self) -> Option<&Sender> {
        self.sender.as_ref()
    }

    /// Decides whether the call may proceed with the current state.
    ///
    /// # Errors
    /// The first failure in the order of the checks.
    pub(super) fn admit(&self, shared: &NodeContext) -> Result<Admitted, Error> {
        if shared.is_removed() && self.method.class != Class::Public {
            return Err(removed());
        }
        if self.transport == Transport::Peer && self.method.served_by == ServedBy::Leader {
            // A request is forwarded only once. A node that lost leadership says so before it
            // checks the token, which it may not know although the next leader does.
            let node = shared.running()?;
            if node.leader.location() != LeaderLocation::Local {
                return Err(node.leader.leaderless());
            }
        }
        let state = shared.state();
        let context = AdmissionContext {
            state: state.as_deref(),
            member: shared.is_member(),
            setup_token: shared.setup_token(),
        };
        let forwarded = self.forwarded.as_ref().map_err(Clone::clone)?;
        let presented = PresentedCredentials {
            authorization: self.authorization.as_ref().map(HeaderValue::as_bytes),
            sender: self.sender.as_ref(),
            forwarded: forwarded.as_ref(),
        };
        admit(self.transport, self.method, presented, &context)
    }
}
