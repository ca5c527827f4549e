//! The body of a request.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use h3::{error::StreamError, server::RequestStream};
use hyper::body::{Body, Frame, SizeHint};

use super::transport::RecvStream;

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum BodyError {
    #[error("the stream of the request failed")]
    Stream(#[source] StreamError),
    #[error("the length of the body differs from its Content-Length")]
    Length,
}

/// The body of a request, read from the client as the replica takes it.
pub(in super::super) struct RequestBody {
    stream: RequestStream<RecvStream, Bytes>,
    /// Data that was read to find out whether there is any.
    first: Option<Bytes>,
    part: Part,
    /// Bytes that are still to come, if the client announced how many.
    left: Option<u64>,
}

/// The part that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Data,
    Trailers,
    Nothing,
}

impl RequestBody {
    /// A body of `length` bytes, or one that ends with its stream.
    pub(super) fn new(stream: RequestStream<RecvStream, Bytes>, length: Option<u64>) -> Self {
        let part = if length == Some(0) {
            Part::Nothing
        } else {
            Part::Data
        };
        Self {
            stream,
            first: None,
            part,
            left: length,
        }
    }

    /// Finds out whether there is a body at all, which may arrive later than the head. With `wait`
    /// it waits for the first byte or the end.
    pub(super) async fn begin(&mut self, wait: bool) -> Result<(), BodyError> {
        if self.part != Part::Data || self.first.is_some() || self.left.is_some() {
            return Ok(());
        }
        poll_fn(|cx| match self.poll_data(cx) {
            Poll::Ready(Ok(Some(data))) => {
                self.first = Some(data);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Ok(None)) => {
                // Trailers of an empty body say nothing about it.
                self.part = Part::Nothing;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(why)) => Poll::Ready(Err(why)),
            Poll::Pending if wait => Poll::Pending,
            Poll::Pending => Poll::Ready(Ok(())),
        })
        .await
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BodyError>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Ok(Some(first)));
        }
        let data = ready!(self.stream.poll_recv_data(cx)).map_err(BodyError::Stream)?;
        Poll::Ready(Ok(data.map(|mut data| data.copy_to_bytes(data.remaining()))))
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame<Bytes>>, BodyError>> {
        if self.part == Part::Data {
            if let Some(data) = ready!(self.poll_data(cx))? {
                if let Some(left) = &mut self.left {
                    let less = left.checked_sub(data.len() as u64);
                    *left = less.ok_or(BodyError::Length)?;
                }
                return Poll::Ready(Ok(Some(Frame::data(data))));
            }
            if self.left.is_some_and(|left| left > 0) {
                return Poll::Ready(Err(BodyError::Length));
            }
            self.part = Part::Trailers;
        }
        if self.part == Part::Trailers {
            let trailers = ready!(self.stream.poll_recv_trailers(cx)).map_err(BodyError::Stream)?;
            self.part = Part::Nothing;
            return Poll::Ready(Ok(trailers.map(Frame::trailers)));
        }
        Poll::Ready(Ok(None))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = ready!(self.poll_part(cx));
        if polled.is_err() {
            self.part = Part::Nothing;
        }
        Poll::Ready(polled.transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.part == Part::Nothing
    }

    fn size_hint(&self) -> SizeHint {
        match (self.part, self.left) {
            (Part::Nothing, _) => SizeHint::with_exact(0),
            (Part::Data, Some(left)) => SizeHint::with_exact(left),
            (Part::Data | Part::Trailers, _) => SizeHint::new(),
        }
    }
}
