//! quinn's connections and streams behind the traits of h3.
//!
//! They are not those of `h3-quinn`, which lets h3 read frames of any length and panics when a
//! stream is given up during a read; and a request has to learn that its client gave it up.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use h3::{
    error::Code,
    quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf},
};
use quinn::{ConnectionError, ReadError, VarInt, WriteError};
use tokio::time::{Sleep, sleep};

use super::frames::{FrameError, FrameScanner};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send + Sync>>;
type Arriving<T> = Boxed<Result<T, ConnectionError>>;

/// A QUIC connection that carries HTTP/3.
pub(super) struct Transport {
    requests: Arriving<(quinn::SendStream, quinn::RecvStream)>,
    unidirectional: Arriving<quinn::RecvStream>,
    opener: Opener,
    given_up: Option<GivenUp>,
    /// Largest length of a frame other than DATA.
    limit: usize,
    send_timeout: Duration,
}

/// Resolves when the client wants no more of a response, or has received all of it.
pub(super) type GivenUp = Boxed<()>;

impl Transport {
    /// Reads frames other than DATA of at most `limit` bytes. A stream fails once its client has
    /// taken nothing of what is written for `send_timeout`.
    pub(super) fn new(connection: quinn::Connection, limit: usize, send_timeout: Duration) -> Self {
        Self {
            requests: next_request(connection.clone()),
            unidirectional: next_unidirectional(connection.clone()),
            opener: Opener {
                connection,
                opening: None,
                send_timeout,
            },
            given_up: None,
            limit,
            send_timeout,
        }
    }

    /// Of the stream that was accepted last.
    pub(super) fn take_given_up(&mut self) -> Option<GivenUp> {
        self.given_up.take()
    }

    fn receiving(
        &self,
        stream: quinn::RecvStream,
        scanner: FrameScanner,
    ) -> Result<RecvStream, ConnectionErrorIncoming> {
        Ok(RecvStream {
            id: stream_id(stream.id())?,
            stream,
            scanner,
            unscanned: Bytes::new(),
            connection: self.opener.connection.clone(),
        })
    }
}

// The futures own their connection: those of quinn forget their place in the queue when they are
// dropped, so one is kept until it is done.
fn next_request(connection: quinn::Connection) -> Arriving<(quinn::SendStream, quinn::RecvStream)> {
    Box::pin(async move { connection.accept_bi().await })
}

fn next_unidirectional(connection: quinn::Connection) -> Arriving<quinn::RecvStream> {
    Box::pin(async move { connection.accept_uni().await })
}

impl quic::Connection<Bytes> for Transport {
    type RecvStream = RecvStream;
    type OpenStreams = Opener;

    fn poll_accept_recv(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<RecvStream, ConnectionErrorIncoming>> {
        let accepted = ready!(self.unidirectional.as_mut().poll(cx));
        self.unidirectional = next_unidirectional(self.opener.connection.clone());
        let stream = accepted.map_err(connection_error)?;
        let scanner = FrameScanner::unidirectional(self.limit);
        Poll::Ready(self.receiving(stream, scanner))
    }

    fn poll_accept_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BidiStream, ConnectionErrorIncoming>> {
        let accepted = ready!(self.requests.as_mut().poll(cx));
        self.requests = next_request(self.opener.connection.clone());
        let (send, recv) = accepted.map_err(connection_error)?;
        let stopped = send.stopped();
        let recv = self.receiving(recv, FrameScanner::request(self.limit))?;
        let send = SendStream::new(send, self.send_timeout)?;
        self.given_up = Some(Box::pin(async move { drop(stopped.await) }));
        Poll::Ready(Ok(BidiStream { send, recv }))
    }

    fn opener(&self) -> Opener {
        self.opener.clone()
    }
}

/// Opens streams of a connection and closes it.
pub(super) struct Opener {
    connection: quinn::Connection,
    opening: Option<Arriving<quinn::SendStream>>,
    send_timeout: Duration,
}

impl Clone for Opener {
    fn clone(&self) -> Self {
        Self {
            connection: self.connection.clone(),
            opening: None,
            send_timeout: self.send_timeout,
        }
    }
}

impl quic::OpenStreams<Bytes> for Opener {
    type BidiStream = BidiStream;
    type SendStream = SendStream;

    /// A server opens no streams for requests.
    fn poll_open_bidi(
        &mut self,
        _cx: &mut Context<'_>,
    ) -> Poll<Result<BidiStream, StreamErrorIncoming>> {
        let reason = "a server opens no bidirectional streams";
        Poll::Ready(Err(StreamErrorIncoming::Unknown(reason.into())))
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        let connection = self.connection.clone();
        let opening = self
            .opening
            .get_or_insert_with(|| Box::pin(async move { connection.open_uni().await }));
        let opened = ready!(opening.as_mut().poll(cx));
        self.opening = None;
        let limit = self.send_timeout;
        let opened = opened.map_err(connection_error);
        let opened = opened.and_then(|stream| SendStream::new(stream, limit));
        Poll::Ready(opened.map_err(broken))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.connection.close(var(code.value()), reason);
    }
}

impl quic::OpenStreams<Bytes> for Transport {
    type BidiStream = BidiStream;
    type SendStream = SendStream;

    fn poll_open_bidi(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<BidiStream, StreamErrorIncoming>> {
        self.opener.poll_open_bidi(cx)
    }

    fn poll_open_send(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        self.opener.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.opener.close(code, reason);
    }
}

/// The stream of a request and its response.
pub(super) struct BidiStream {
    send: SendStream,
    recv: RecvStream,
}

impl quic::BidiStream<Bytes> for BidiStream {
    type SendStream = SendStream;
    type RecvStream = RecvStream;

    fn split(self) -> (SendStream, RecvStream) {
        (self.send, self.recv)
    }
}

impl quic::SendStream<Bytes> for BidiStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(cx)
    }

    fn reset(&mut self, code: u64) {
        self.send.reset(code);
    }

    fn send_id(&self) -> StreamId {
        self.send.send_id()
    }
}

impl quic::RecvStream for BidiStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.recv.poll_data(cx)
    }

    fn stop_sending(&mut self, code: u64) {
        self.recv.stop_sending(code);
    }

    fn recv_id(&self) -> StreamId {
        self.recv.recv_id()
    }
}

/// The client has no room for what is sent to it.
#[derive(Debug, thiserror::Error)]
#[error("the client takes nothing of the response")]
struct Blocked;

/// The sending half of a stream; dropped before anything was sent, it is reset.
pub(super) struct SendStream {
    id: StreamId,
    stream: quinn::SendStream,
    writing: Option<WriteBuf<Bytes>>,
    used: bool,
    /// Longest wait for a client that takes nothing.
    limit: Duration,
    /// Ends the wait for a client that has no room.
    blocked: Option<Pin<Box<Sleep>>>,
    /// Waits for the client's acknowledgement of everything.
    finishing: Option<Boxed<()>>,
}

impl SendStream {
    fn new(stream: quinn::SendStream, limit: Duration) -> Result<Self, ConnectionErrorIncoming> {
        Ok(Self {
            id: stream_id(stream.id())?,
            stream,
            writing: None,
            used: false,
            limit,
            blocked: None,
            finishing: None,
        })
    }
}

impl quic::SendStream<Bytes> for SendStream {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        if let Some(data) = &mut self.writing {
            while data.has_remaining() {
                let stream = Pin::new(&mut self.stream);
                if let Poll::Ready(written) = stream.poll_write(cx, data.chunk()) {
                    self.blocked = None;
                    data.advance(written.map_err(write_error)?);
                    continue;
                }
                let limit = self.limit;
                let blocked = self.blocked.get_or_insert_with(|| Box::pin(sleep(limit)));
                ready!(blocked.as_mut().poll(cx));
                return Poll::Ready(Err(StreamErrorIncoming::Unknown(Box::new(Blocked))));
            }
        }
        self.writing = None;
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.used = true;
        self.writing = Some(data.into());
        Ok(())
    }

    /// Ready when the client has everything: a connection that is closed earlier loses the rest.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        let Self {
            stream, finishing, ..
        } = self;
        let finishing = match finishing {
            Some(finishing) => finishing,
            None => {
                stream
                    .finish()
                    .map_err(|closed| StreamErrorIncoming::Unknown(Box::new(closed)))?;
                let stopped = stream.stopped();
                finishing.insert(Box::pin(async move { drop(stopped.await) }))
            }
        };
        finishing.as_mut().poll(cx).map(Ok)
    }

    fn reset(&mut self, code: u64) {
        let _ = self.stream.reset(var(code)); // it may have ended already
    }

    fn send_id(&self) -> StreamId {
        self.id
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if !self.used {
            // Without this quinn would finish it, which is no response.
            let _ = self.stream.reset(var(Code::H3_REQUEST_INCOMPLETE.value()));
        }
    }
}

/// The receiving half of a stream.
pub(super) struct RecvStream {
    id: StreamId,
    stream: quinn::RecvStream,
    scanner: FrameScanner,
    /// Received, but not handed to h3.
    unscanned: Bytes,
    connection: quinn::Connection,
}

impl RecvStream {
    /// Ends the stream for h3, and the connection if the client broke the protocol.
    fn fail(&mut self, why: FrameError) -> StreamErrorIncoming {
        let code = match why {
            FrameError::TooLong => Code::H3_EXCESSIVE_LOAD,
            FrameError::Truncated => Code::H3_FRAME_ERROR,
        };
        if why == FrameError::Truncated {
            self.connection
                .close(var(code.value()), why.to_string().as_bytes());
        }
        StreamErrorIncoming::StreamTerminated {
            error_code: code.value(),
        }
    }
}

impl quic::RecvStream for RecvStream {
    type Buf = Bytes;

    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        loop {
            match self.scanner.next_piece(&mut self.unscanned) {
                Ok(None) => {}
                Ok(piece) => return Poll::Ready(Ok(piece)),
                Err(why) => return Poll::Ready(Err(self.fail(why))),
            }
            // The future holds nothing: the stream itself remembers its waker.
            let chunk = ready!(pin!(self.stream.read_chunk(usize::MAX, true)).poll(cx));
            match chunk.map_err(read_error)? {
                Some(chunk) => self.unscanned = chunk.bytes,
                None => {
                    let ended = self.scanner.end();
                    return Poll::Ready(ended.map(|()| None).map_err(|why| self.fail(why)));
                }
            }
        }
    }

    fn stop_sending(&mut self, code: u64) {
        let _ = self.stream.stop(var(code)); // it may have ended already
    }

    fn recv_id(&self) -> StreamId {
        self.id
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        let _ = self.stream.stop(var(Code::H3_NO_ERROR.value())); // it may have ended already
    }
}

/// The same id for h3, which closes the connection if it were none.
fn stream_id(id: quinn::StreamId) -> Result<StreamId, ConnectionErrorIncoming> {
    StreamId::try_from(VarInt::from(id).into_inner())
        .map_err(|invalid| ConnectionErrorIncoming::InternalError(invalid.to_string()))
}

fn var(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

fn connection_error(error: ConnectionError) -> ConnectionErrorIncoming {
    match error {
        ConnectionError::ApplicationClosed(closed) => ConnectionErrorIncoming::ApplicationClose {
            error_code: closed.error_code.into_inner(),
        },
        ConnectionError::TimedOut => ConnectionErrorIncoming::Timeout,
        other @ (ConnectionError::VersionMismatch
        | ConnectionError::TransportError(_)
        | ConnectionError::ConnectionClosed(_)
        | ConnectionError::Reset
        | ConnectionError::LocallyClosed
        | ConnectionError::CidsExhausted) => ConnectionErrorIncoming::Undefined(Arc::new(other)),
    }
}

fn lost(error: ConnectionError) -> StreamErrorIncoming {
    broken(connection_error(error))
}

fn broken(connection_error: ConnectionErrorIncoming) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming { connection_error }
}

fn read_error(error: ReadError) -> StreamErrorIncoming {
    match error {
        ReadError::Reset(code) => StreamErrorIncoming::StreamTerminated {
            error_code: code.into_inner(),
        },
        ReadError::ConnectionLost(error) => lost(error),
        other @ (ReadError::ClosedStream
        | ReadError::IllegalOrderedRead
        | ReadError::ZeroRttRejected) => StreamErrorIncoming::Unknown(Box::new(other)),
    }
}

fn write_error(error: WriteError) -> StreamErrorIncoming {
    match error {
        WriteError::Stopped(code) => StreamErrorIncoming::StreamTerminated {
            error_code: code.into_inner(),
        },
        WriteError::ConnectionLost(error) => lost(error),
        other @ (WriteError::ClosedStream | WriteError::ZeroRttRejected) => {
            StreamErrorIncoming::Unknown(Box::new(other))
        }
    }
}
