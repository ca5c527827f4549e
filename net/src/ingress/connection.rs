//! One client connection.

use std::{
    convert::Infallible,
    future::poll_fn,
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderValue, Request, Response};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
    time::{Instant, Sleep, sleep_until},
};

use super::{
    HEAD_MARGIN, Phase, Scheme,
    body::{ClientBody, ResponseBody},
    certificates::H2,
    forward,
    handshake::Tls,
    send_timeout::{StreamTasks, TimedBody},
    timeouts::{ClientTimeouts, TimedStream},
    worker::Worker,
};

/// Concurrent requests of an HTTP/2 connection.
const MAX_STREAMS: u32 = 250;
/// Streams that a client may reset before they were served (CVE-2023-44487); more close the
/// connection.
const MAX_PENDING_RESETS: usize = 20;
/// Streams that a client may break by protocol errors before the connection is closed.
const MAX_LOCAL_RESETS: usize = 1024;
/// Flow control windows in bytes, which bound request bodies in memory.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Response bytes buffered per stream, beside the part of a body that exceeds it.
const SEND_BUFFER: usize = 64 * 1024;
/// An HTTP/2 client that does not answer a ping is gone.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Time that a drain gives a connection that was just accepted to send its request: the client would
/// see a failed one.
pub(super) const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// State shared by the requests of one client connection.
pub(super) struct Connection {
    pub(super) worker: Arc<Worker>,
    pub(super) scheme: Scheme,
    /// Address of the client as a field value.
    pub(super) peer: HeaderValue,
    /// Address of the other end of the connection.
    pub(super) peer_ip: IpAddr,
    pub(super) phase: watch::Receiver<Phase>,
}

/// Serves an accepted connection of the plain listener to its end.
pub(super) async fn serve_plain(
    stream: TcpStream,
    peer: SocketAddr,
    worker: Arc<Worker>,
    phase: watch::Receiver<Phase>,
) {
    let connection = Connection::new(Scheme::Http, peer, worker, phase);
    connection.http1(stream).await;
}

/// Serves an accepted connection of the TLS listener to its end.
///
/// Handshake and protocols are boxed, so that each takes only the memory of its own state.
pub(super) async fn serve_tls(
    tls: Tls,
    stream: TcpStream,
    peer: SocketAddr,
    worker: Arc<Worker>,
    mut phase: watch::Receiver<Phase>,
) {
    let limit = worker.shared.settings.request_head_timeout;
    let accepted = tokio::select! {
        accepted = Box::pin(tls.accept(stream, limit)) => accepted,
        // A drain lets the handshake end: the client would see a failed request.
        _ = phase.wait_for(|phase| *phase == Phase::Closed) => return,
    };
    let connection = Connection::new(Scheme::Https, peer, worker, phase);
    match accepted {
        Ok(stream) if stream.get_ref().1.alpn_protocol() == Some(H2) => {
            Box::pin(connection.http2(stream)).await;
        }
        Ok(stream) => Box::pin(connection.http1(stream)).await,
        Err(why) => tracing::debug!(subsystem = "ingress", %why, "TLS handshake failed"),
    }
}

/// The address of a client as a field value.
pub(super) fn peer_header(peer: SocketAddr) -> HeaderValue {
    let ip = peer.ip().to_canonical().to_string();
    // An IP address is always a valid field value.
    HeaderValue::try_from(ip).unwrap_or(HeaderValue::from_static("unknown"))
}

impl Connection {
    fn new(
        scheme: Scheme,
        peer: SocketAddr,
        worker: Arc<Worker>,
        phase: watch::Receiver<Phase>,
    ) -> Self {
        Self {
            worker,
            scheme,
            peer: peer_header(peer),
            peer_ip: peer.ip().to_canonical(),
            phase,
        }
    }

    /// Handles a request that hyper has read.
    ///
    /// Boxed, because hyper keeps room for the future on the heap while the connection is idle.
    fn handle(
        self: &Arc<Self>,
        timeouts: &Arc<ClientTimeouts>,
        request: Request<Incoming>,
    ) -> Pin<Box<impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + use<>>>
    {
        let request = request.map(ClientBody::from);
        Box::pin(forward::handle(self.clone(), timeouts.serve(), request))
    }

    async fn http1(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let settings = &self.worker.shared.settings;
        let timeouts = ClientTimeouts::new(settings.request_head_timeout, settings.idle_timeout);
        let mut builder = http1::Builder::new();
        builder
            .header_read_timeout(None)
            .max_header_size(settings.max_head_bytes)
            .max_buf_size(settings.max_head_bytes + HEAD_MARGIN);
        let phase = self.phase.clone();
        let io = TokioIo::new(TimedStream::new(stream, timeouts.clone()));
        let this = Arc::new(self);
        let service = {
            let timeouts = timeouts.clone();
            service_fn(move |request| this.handle(&timeouts, request))
        };
        let connection = pin!(builder.serve_connection(io, service).with_upgrades());
        drive(connection, &timeouts, phase, |connection| {
            connection.graceful_shutdown();
        })
        .await;
    }
}

impl Connection {
    async fn http2(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let settings = &self.worker.shared.settings;
        let timeouts = ClientTimeouts::multiplexed(settings.idle_timeout);
        let tasks = StreamTasks::new(settings.idle_timeout);
        let mut builder = http2::Builder::new(tasks.clone());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_LOCAL_RESETS)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .max_header_list_size(u32::try_from(settings.max_head_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .enable_connect_protocol();
        let phase = self.phase.clone();
        let this = Arc::new(self);
        let service = {
            let (timeouts, tasks) = (timeouts.clone(), tasks.clone());
            service_fn(move |request| {
                let (waiting, handled) = (tasks.accept(), this.handle(&timeouts, request));
                async move {
                    let response = handled.await?;
                    Ok::<_, Infallible>(response.map(|body| TimedBody::new(body, waiting)))
                }
            })
        };
        let connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        drive(connection, &timeouts, phase, |connection| {
            connection.graceful_shutdown();
        })
        .await;
    }
}

/// End of a poll of a connection.
enum Polled {
    /// The connection has ended.
    Ended(hyper::Result<()>),
    /// The client has exceeded its timeout.
    Expired,
    /// The drain waits no longer for a request on the connection.
    ShutDown,
}

/// Runs a connection until it ends, times out or is drained.
async fn drive<C>(
    mut connection: Pin<&mut C>,
    timeouts: &ClientTimeouts,
    mut phase: watch::Receiver<Phase>,
    shut_down: impl Fn(Pin<&mut C>),
) where
    C: Future<Output = hyper::Result<()>>,
{
    let mut timer = pin!(sleep_until(Instant::now()));
    let mut grace = pin!(sleep_until(Instant::now()));
    let (mut draining, mut is_shut_down) = (false, false);
    loop {
        let polled = poll_fn(|cx| {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(Polled::Ended(ended));
            }
            if draining
                && !is_shut_down
                && (!timeouts.awaits_head() || grace.as_mut().poll(cx).is_ready())
            {
                return Poll::Ready(Polled::ShutDown);
            }
            let deadline = || timeouts.deadline();
            poll_expired(deadline, timer.as_mut(), cx).map(|()| Polled::Expired)
        });
        tokio::select! {
            polled = polled => match polled {
                Polled::Ended(Ok(())) | Polled::Expired => return,
                Polled::Ended(Err(why)) => {
                    tracing::debug!(subsystem = "ingress", %why, "client connection ended");
                    return;
                }
                Polled::ShutDown => {
                    is_shut_down = true;
                    shut_down(connection.as_mut());
                }
            },
            changed = phase.wait_for(|phase| {
                *phase == Phase::Closed || (*phase >= Phase::Draining && !draining)
            }) => match changed.map(|phase| *phase) {
                Ok(Phase::Draining | Phase::Closing) => {
                    draining = true;
                    grace.as_mut().reset(Instant::now() + FIRST_REQUEST);
                }
                // An error means that the proxy was dropped without a drain.
                Ok(Phase::Serving | Phase::Closed) | Err(_) => return,
            },
        }
    }
}

/// Ready when the deadline of the client has passed, if there is one.
///
/// The timer is reset early only if the deadline has moved to before it; a timer that fires too
/// early is reset to the deadline of that moment.
pub(super) fn poll_expired(
    current: impl Fn() -> Option<Instant>,
    mut timer: Pin<&mut Sleep>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    loop {
        let Some(deadline) = current() else {
            return Poll::Pending;
        };
        if timer.is_elapsed() || deadline < timer.deadline() {
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
        if timer.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Size of the future that a function of three arguments returns.
    fn size_of_future<A, B, C, F>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// Every connection and every request in progress holds one of these.
    #[test]
    fn futures_stay_small() {
        let plain = |stream, peer, worker| {
            serve_plain(
                stream,
                peer,
                worker,
                watch::Sender::new(Phase::Serving).subscribe(),
            )
        };
        let tls = |tls, stream, (peer, worker)| {
            serve_tls(
                tls,
                stream,
                peer,
                worker,
                watch::Sender::new(Phase::Serving).subscribe(),
            )
        };
        let sizes = [
            ("request", size_of_future(forward::handle), 8192),
            ("idle connection", size_of_future(Connection::handle), 8),
            ("plain connection", size_of_future(plain), 2048),
            ("TLS connection", size_of_future(tls), 2048),
        ];
        for (name, size, limit) in sizes {
            assert!(
                size <= limit,
                "{name}: {size} bytes, at most {limit}: {sizes:?}"
            );
        }
    }
}
