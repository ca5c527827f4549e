//! Request and response bodies in transit; nothing is buffered.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::Instant;

use super::{
    active::Target,
    http3::body::{BodyError as StreamError, RequestBody as StreamBody},
    observe::Measured,
    pool::Sender,
    timeouts::ServingGuard,
    worker::Worker,
};
use crate::limit::Permit;

/// Progress of forwarding the body of a request.
#[derive(Debug)]
pub(super) struct Progress {
    sent: AtomicBool,
    last: Mutex<Instant>,
}

impl Progress {
    /// Progress of a body of which nothing was sent yet.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            sent: AtomicBool::new(false),
            last: Mutex::new(Instant::now()),
        })
    }

    /// When the client last sent a part of the body.
    pub(super) fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a part was sent.
    pub(super) fn advance(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

/// The body a client sends.
pub(super) enum ClientBody {
    /// Over HTTP/1.1 or HTTP/2.
    Hyper(Incoming),
    /// Over HTTP/3; boxed because it is large and most requests have none.
    Http3(Box<StreamBody>),
}

impl From<Incoming> for ClientBody {
    fn from(body: Incoming) -> Self {
        Self::Hyper(body)
    }
}

impl From<StreamBody> for ClientBody {
    fn from(body: StreamBody) -> Self {
        Self::Http3(Box::new(body))
    }
}

/// Why the body of a request ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error(transparent)]
    Hyper(#[from] hyper::Error),
    #[error(transparent)]
    Http3(#[from] StreamError),
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let failed = |failed: Result<_, _>| failed.map_err(BodyError::Hyper);
        match &mut *self {
            Self::Hyper(body) => Pin::new(body).poll_frame(cx).map(|frame| frame.map(failed)),
            Self::Http3(body) => {
                let frame = ready!(Pin::new(&mut **body).poll_frame(cx));
                Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Http3)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Hyper(body) => body.is_end_stream(),
            Self::Http3(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Hyper(body) => body.size_hint(),
            Self::Http3(body) => body.size_hint(),
        }
    }
}

/// The body sent to a replica.
pub(super) struct RequestBody(Option<(ClientBody, Arc<Progress>)>);

impl RequestBody {
    /// Forwards `incoming`.
    pub(super) fn new(incoming: ClientBody) -> Self {
        if incoming.is_end_stream() {
            return Self::empty();
        }
        Self(Some((incoming, Progress::new())))
    }

    /// No body.
    pub(super) fn empty() -> Self {
        Self(None)
    }

    /// Its progress; `None` if there is no body.
    pub(super) fn progress(&self) -> Option<Arc<Progress>> {
        self.0.as_ref().map(|(_, progress)| progress.clone())
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some((incoming, progress)) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(&mut *incoming).poll_frame(cx));
        progress.advance();
        if frame.is_none() || incoming.is_end_stream() {
            progress.sent.store(true, Ordering::Release);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|(incoming, _)| incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0
            .as_ref()
            .map_or(SizeHint::with_exact(0), |(incoming, _)| {
                incoming.size_hint()
            })
    }
}

/// The connection a response arrives on; it returns to the pool once the response is complete.
pub(super) struct Origin {
    pub(super) worker: Arc<Worker>,
    pub(super) target: Target,
    pub(super) sender: Sender,
    /// The body of the request, which may still be in transit.
    pub(super) progress: Option<Arc<Progress>>,
    /// Whether the connection may carry another request after this one.
    pub(super) reusable: bool,
}

impl Origin {
    fn complete(self) {
        let sent = self
            .progress
            .is_none_or(|progress| progress.sent.load(Ordering::Acquire));
        if let Some(upstream) = self.target.upstream().filter(|_| sent && self.reusable) {
            self.worker.pool.put(upstream.addr, self.sender);
        }
    }

    /// Marks the replica down after it broke its response.
    fn fail(self, why: &hyper::Error) {
        // A reset stream of an open HTTP/2 connection is the application's answer.
        let broken = !self.sender.is_multiplexed() || self.sender.is_closed();
        if let Some(upstream) = self.target.upstream().filter(|_| broken) {
            self.worker
                .shared
                .health
                .mark_down(upstream, Instant::now(), why);
        }
    }
}

/// The body sent to a client; `ServingGuard` suspends the client's timeouts while it exists.
pub(super) struct ResponseBody {
    incoming: Option<Incoming>,
    /// A body of the proxy itself.
    text: Option<Bytes>,
    origin: Option<Origin>,
    serving: Option<ServingGuard>,
    measured: Option<Measured>,
    /// Keeps the request in flight until the body is complete or dropped.
    _permit: Option<Permit>,
    /// The replica that answers, for the log.
    replica: Option<Arc<str>>,
}

impl ResponseBody {
    /// Forwards a replica's body and returns its connection to the pool at the end.
    pub(super) fn new(incoming: Incoming, origin: Origin, serving: ServingGuard) -> Self {
        let logs = origin.worker.shared.settings.access_log.is_some();
        let upstream = origin.target.upstream().filter(|_| logs);
        let replica = upstream.map(|upstream| upstream.replica.clone());
        let mut body = Self {
            replica,
            incoming: Some(incoming),
            text: None,
            origin: Some(origin),
            serving: Some(serving),
            measured: None,
            _permit: None,
        };
        body.check_in();
        body
    }

    /// A body of the proxy itself; `serving` is absent if the response begins a tunnel.
    pub(super) fn text(text: Bytes, serving: Option<ServingGuard>) -> Self {
        Self {
            replica: None,
            incoming: None,
            text: Some(text).filter(|text| !text.is_empty()),
            origin: None,
            serving,
            measured: None,
            _permit: None,
        }
    }

    /// Whether the response begins a tunnel.
    pub(super) fn begins_tunnel(&self) -> bool {
        self.serving.is_none()
    }

    /// Counts the request among those in flight while this body exists.
    pub(super) fn hold(&mut self, permit: Option<Permit>) {
        self._permit = permit;
    }

    /// Counts the request when this body is complete or dropped.
    pub(super) fn measure(&mut self, mut measured: Measured) {
        if let Some(logged) = &mut measured.logged {
            logged.replica = self.replica.take();
        }
        self.measured = Some(measured);
    }

    /// Adds to the bytes of the log.
    fn count(&mut self, data: Option<&Bytes>) {
        let measured = self.measured.as_mut();
        if let Some(logged) = measured.and_then(|measured| measured.logged.as_mut()) {
            logged.bytes += data.map_or(0, |data| data.len() as u64);
        }
    }

    fn check_in(&mut self) {
        if self.incoming.as_ref().is_none_or(Body::is_end_stream)
            && let Some(origin) = self.origin.take()
        {
            origin.complete();
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(incoming) = &mut self.incoming else {
            let text = self.text.take();
            self.count(text.as_ref());
            return Poll::Ready(text.map(|text| Ok(Frame::data(text))));
        };
        let frame = ready!(Pin::new(incoming).poll_frame(cx));
        match &frame {
            None => {
                self.incoming = None;
                self.check_in();
            }
            Some(Ok(frame)) => {
                self.count(frame.data_ref());
                self.check_in();
            }
            Some(Err(why)) => {
                if let Some(origin) = self.origin.take() {
                    origin.fail(why);
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_none() && self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let text = self.text.as_ref().map_or(0, Bytes::len);
        self.incoming
            .as_ref()
            .map_or(SizeHint::with_exact(text as u64), Body::size_hint)
    }
}
