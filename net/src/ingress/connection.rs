//! One client connection.

use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use http::HeaderValue;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::watch,
    time::{Instant, Sleep, sleep_until},
};

use super::{
    Phase, Scheme, forward,
    timeouts::{ClientTimeouts, TimedStream},
    worker::Worker,
};

/// State shared by the requests of one client connection.
pub(super) struct Connection {
    pub(super) worker: Arc<Worker>,
    /// Address of the client as a field value.
    pub(super) peer: HeaderValue,
    pub(super) phase: watch::Receiver<Phase>,
}

/// Serves an accepted connection to its end.
pub(super) async fn serve(
    scheme: Scheme,
    stream: TcpStream,
    peer: SocketAddr,
    worker: Arc<Worker>,
    phase: watch::Receiver<Phase>,
) {
    if let Err(why) = stream.set_nodelay(true) {
        tracing::debug!(subsystem = "ingress", %why, "failed to set up a client connection");
        return;
    }
    let connection = Connection {
        worker,
        peer: peer_header(peer),
        phase,
    };
    match scheme {
        Scheme::Http => connection.http1(stream).await,
    }
}

fn peer_header(peer: SocketAddr) -> HeaderValue {
    let ip = peer.ip().to_canonical().to_string();
    // An IP address is always a valid field value.
    HeaderValue::try_from(ip).unwrap_or(HeaderValue::from_static("unknown"))
}

impl Connection {
    async fn http1(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let settings = &self.worker.shared.settings;
        let timeouts = ClientTimeouts::new(settings.request_head_timeout, settings.idle_timeout);
        let mut builder = http1::Builder::new();
        builder
            .header_read_timeout(None)
            .max_header_size(settings.max_head_bytes)
            // The buffer must be larger than the head, or hyper rejects a complete head of maximum
            // length.
            .max_buf_size(settings.max_head_bytes + 16 * 1024);
        let phase = self.phase.clone();
        let io = TokioIo::new(TimedStream {
            stream,
            timeouts: timeouts.clone(),
        });
        let this = Arc::new(self);
        let service = {
            let timeouts = timeouts.clone();
            service_fn(move |request| forward::handle(this.clone(), timeouts.serve(), request))
        };
        let connection = pin!(builder.serve_connection(io, service).with_upgrades());
        drive(connection, &timeouts, phase, |connection| {
            connection.graceful_shutdown();
        })
        .await;
    }
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
    let mut draining = false;
    loop {
        let ended = poll_fn(|cx| match connection.as_mut().poll(cx) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending => poll_expired(timeouts, timer.as_mut(), cx).map(|()| None),
        });
        tokio::select! {
            ended = ended => {
                if let Some(Err(why)) = ended {
                    tracing::debug!(subsystem = "ingress", %why, "client connection ended");
                }
                return;
            }
            changed = phase.wait_for(|phase| {
                *phase == Phase::Closed || (*phase == Phase::Draining && !draining)
            }) => match changed.map(|phase| *phase) {
                Ok(Phase::Draining) => {
                    draining = true;
                    shut_down(connection.as_mut());
                }
                // An error means that the proxy was dropped without a drain.
                Ok(Phase::Serving | Phase::Closed) | Err(_) => return,
            },
        }
    }
}

/// Ready when the client has exceeded its timeout.
///
/// The timer is reset early only if the deadline has moved to before it; a timer that fires too
/// early is reset to the deadline of that moment.
fn poll_expired(
    timeouts: &ClientTimeouts,
    mut timer: Pin<&mut Sleep>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    loop {
        let Some(deadline) = timeouts.deadline() else {
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
