//! Client side of calls: requests and responses on streams of the member's connection.

use std::sync::Arc;

use bytes::Bytes;
use futures::{
    FutureExt as _, Stream,
    future::{BoxFuture, Either, select},
    stream,
};
use http::{Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use jaco_net::quic::{FrameReader, Kind, Sender, StreamError, frame::Batch};
use jaco_proto::{Error, ErrorCode};
use tokio::task::AbortHandle;
use tonic::{Status, body::Body};

use super::{
    CallError, Link,
    receive::busy,
    routes::PeerTransport,
    wire::{self, Part, WireError},
};

/// Calls members over their connections. Dropping an unfinished call or response cancels it on the
/// other side.
pub(super) struct QuicLink(pub(super) Arc<PeerTransport>);

impl Link for QuicLink {
    fn call(
        &self,
        host: &str,
        request: Request<Body>,
    ) -> BoxFuture<'static, Result<Response<Body>, CallError>> {
        let route = self.0.route(host);
        let host = host.to_owned();
        Box::pin(async move {
            let not_sent = |reason: &dyn std::fmt::Display| CallError::NotSent {
                host: host.clone(),
                reason: reason.to_string(),
            };
            let route = route.ok_or_else(|| not_sent(&"it is no member"))?;
            let connection = route.connection();
            let connection = connection.ok_or_else(|| not_sent(&"it is not connected"))?;
            let (parts, body) = request.into_parts();
            let head = wire::request_head(&parts).map_err(|error| not_sent(&error))?;
            let opened = connection.open_bi(Kind::Call).await;
            let (sender, receiver) = opened.map_err(|error| not_sent(&error))?;
            let frames = receiver.frames(wire::CALL_FRAME);
            let frames = frames.within(route.receive().calls());
            exchange(sender, frames, head, body)
                .await
                .map_err(|reason| CallError::Unanswered { host, reason })
        })
    }
}

/// Sends a request and waits for the head of the response. The remaining request body is sent while
/// the response body is read.
async fn exchange(
    sender: Sender,
    mut frames: FrameReader,
    head: Vec<u8>,
    body: Body,
) -> Result<Response<Body>, String> {
    let mut upload = send_body(sender, head, body).boxed();
    let answer = frames.next().boxed();
    let (answer, rest) = match select(answer, &mut upload).await {
        Either::Left((answer, _)) => (answer, true),
        // Even if the upload failed, the response has the reason.
        Either::Right((_, answer)) => (answer.await, false),
    };
    let head = match answer {
        Ok(Some(frame)) => wire::read_response(&frame).map_err(|error| error.to_string())?,
        Ok(None) => return Err("the stream ended before the answer".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    let upload = rest.then(|| Upload(tokio::spawn(upload.map(drop)).abort_handle()));
    let broken = |reason: String| {
        Status::from(
            Error::new(ErrorCode::PeerUnreachable, "the member's answer broke off").because(reason),
        )
    };
    // A piece counts against the budget until the reader of the response asks for the next one.
    let body = Body::new(StreamBody::new(read_body(frames, broken, upload, |_| {})));
    Ok(head.map(|()| body))
}

/// Task that sends the rest of a request; aborted when the response ends.
struct Upload(AbortHandle);

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Writes a head, a body and its trailers. If the body fails or this future is dropped, the stream
/// is reset.
pub(super) async fn send_body(
    mut sender: Sender,
    head: Vec<u8>,
    mut body: Body,
) -> Result<(), StreamError> {
    let mut batch = Batch::default();
    batch.push(head)?;
    loop {
        // Frames that are ready are sent in one batch; a pending frame flushes the batch.
        let frame = match body.frame().now_or_never() {
            Some(frame) => frame,
            None => {
                sender.batch(&mut batch).await?;
                body.frame().await
            }
        };
        let Some(frame) = frame else { break };
        let Ok(frame) = frame else {
            return Err(StreamError::Ended);
        };
        match frame.into_data() {
            Ok(mut data) => {
                while !data.is_empty() {
                    let piece = data.split_to(data.len().min(wire::DATA_BYTES));
                    batch.push_parts(&wire::DATA_PREFIX, piece)?;
                    if batch.bytes() >= wire::DATA_BYTES {
                        sender.batch(&mut batch).await?;
                    }
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    let trailers = wire::trailers(&trailers).map_err(|_| StreamError::Ended)?;
                    batch.push(trailers)?;
                }
            }
        }
    }
    sender.batch(&mut batch).await?;
    sender.finish();
    Ok(())
}

/// Reads a body up to its trailers or the end of the stream. `broken` makes the error of a
/// truncated stream; `with` is dropped at the end of the body; `received` is called after each
/// frame.
pub(super) fn read_body<T: Send + 'static>(
    frames: FrameReader,
    broken: impl Fn(String) -> Status + Send + 'static,
    with: T,
    received: impl FnMut(&mut FrameReader) + Send + 'static,
) -> impl Stream<Item = Result<Frame<Bytes>, Status>> + Send + 'static {
    let open = Some((frames, broken, with, received));
    stream::unfold(open, |open| async move {
        let (mut frames, broken, with, mut received) = open?;
        let part = match frames.next().await {
            Ok(None) => return None,
            Ok(Some(frame)) => wire::read_part(frame).map_err(|error: WireError| error.to_string()),
            Err(StreamError::Busy) => return Some((Err(busy()), None)),
            Err(error) => Err(error.to_string()),
        };
        received(&mut frames);
        Some(match part {
            Ok(Part::Data(data)) => {
                let open = Some((frames, broken, with, received));
                (Ok(Frame::data(data)), open)
            }
            Ok(Part::Trailers(trailers)) => (Ok(Frame::trailers(trailers)), None),
            Err(reason) => (Err(broken(reason)), None),
        })
    })
}
