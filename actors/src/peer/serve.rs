//! Server side of calls from members.

use std::{
    convert::Infallible,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use http_body_util::StreamBody;
use jaco_net::quic::{self, FrameReader, Reservation, StreamError};
use tokio::time::timeout;
use tonic::{Status, body::Body};
use tower::{ServiceExt as _, util::BoxCloneSyncService};

use super::{
    Sender,
    call::{read_body, send_body},
    receive::busy,
    wire,
};
use crate::lock::lock;

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

    /// Serves one call; cancelled when the caller stops the stream. The received bytes count against
    /// the caller's budget until the response is sent.
    pub(super) async fn serve(self, caller: Sender, to: quic::Sender, mut from: FrameReader) {
        let stopped = to.stopped();
        let work = async move {
            let held = Arc::new(Mutex::new(Reservation::default()));
            let keep = Arc::clone(&held);
            let received = move |from: &mut FrameReader| lock(&keep).merge(from.take_reservation());
            let head = match timeout(HEAD, from.next()).await {
                Ok(Ok(Some(head))) => Some(head),
                Ok(Err(StreamError::Busy)) => None,
                Ok(Ok(None) | Err(_)) | Err(_) => return,
            };
            let response = if let Some(head) = head {
                received(&mut from);
                let Ok(request) = wire::read_request(&head) else {
                    return; // dropping the stream resets it
                };
                drop(head);
                let broken = |reason: String| Status::cancelled(reason);
                let body = Body::new(StreamBody::new(read_body(from, broken, (), received)));
                let mut request = request.map(|()| body);
                request.extensions_mut().insert(caller);
                match self.0.oneshot(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            } else {
                busy().into_http()
            };
            let (parts, body) = response.into_parts();
            let Ok(head) = wire::response_head(parts.status, &parts.headers) else {
                return;
            };
            // An error means that the caller is gone, which needs no handling.
            let _ = send_body(to, head, body).await;
            drop(held);
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
