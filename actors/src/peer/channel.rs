//! Channel of the generated clients to one member.

use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Request, Response};
use jaco_proto::{Error, ErrorCode};
use tonic::{Status, body::Body};
use tower::Service;

use super::{CallError, Link};

/// Calls one member over the peer transport. Transport errors become `peer_unreachable`.
#[derive(Clone)]
pub struct PeerChannel {
    link: Arc<dyn Link>,
    host: Arc<str>,
}

impl PeerChannel {
    pub(super) fn new(link: Arc<dyn Link>, host: &str) -> Self {
        let host = Arc::from(host);
        Self { link, host }
    }
}

impl fmt::Debug for PeerChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PeerChannel({})", self.host)
    }
}

impl Service<Request<Body>> for PeerChannel {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.link.call(&self.host, request);
        Box::pin(async move {
            Ok(match answer.await {
                Ok(response) => response,
                Err(
                    CallError::NotSent { host, reason } | CallError::Unanswered { host, reason },
                ) => {
                    let message = format!("member {host:?} does not answer");
                    let error = Error::new(ErrorCode::PeerUnreachable, message)
                        .with("peer", host)
                        .because(reason);
                    Status::from(error).into_http()
                }
            })
        })
    }
}
