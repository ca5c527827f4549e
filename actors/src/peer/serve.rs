//! Server side of calls from members.

use std::{convert::Infallible, fmt, time::Duration};

use http::{Request, Response};
use http_body_util::StreamBody;
use jaco_net::quic::{self, FrameReader};
use tokio::time::timeout;
use tonic::{Status, body::Body};
use tower::{ServiceExt as _, util::BoxCloneSyncService};

use super::{
    Sender,
    call::{read_body, send_body},
    wire,
};

/// Time limit for the head of a request.
const HEAD: Duration = Duration::from_secs(10);

/// Service that answers calls of members, with admission in front of the `jaco.v1` services.
#[derive(Clone)]
pub(crate) struct Services(BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>);

impl Services {
    /// Wraps `service`, which finds the [`Sender`] among the extensions of a request.
    pub(crate) fn new<S>(service: S) -> Self
    where
        S: tower::Service<Request<Body>, Response = Response<Body>, Error = Infallible>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        Self(BoxCloneSyncService::new(service))
    }

    /// Serves one call; cancelled when the caller stops the stream.
    pub(super) async fn serve(self, caller: Sender, to: quic::Sender, mut from: FrameReader) {
        let stopped = to.stopped();
        let work = async move {
            let Ok(Ok(Some(head))) = timeout(HEAD, from.next()).await else {
                return;
            };
            let Ok(request) = wire::read_request(&head) else {
                return; // dropping the stream resets it
            };
            let broken = |reason: String| Status::cancelled(reason);
            let body = Body::new(StreamBody::new(read_body(from, broken, ())));
            let mut request = request.map(|()| body);
            request.extensions_mut().insert(caller);
            let response = match self.0.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            let (parts, body) = response.into_parts();
            let Ok(head) = wire::response_head(parts.status, &parts.headers) else {
                return;
            };
            // An error means that the caller is gone, which needs no handling.
            let _ = send_body(to, head, body).await;
        };
        tokio::select! {
            () = work => {}
            () = stopped => {}
        }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Services")
    }
}
