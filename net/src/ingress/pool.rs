//! Pool of the connections of one worker to replicas.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};

use super::{HEAD_MARGIN, Settings, body::RequestBody};

/// Maximum number of idle connections per replica.
const MAX_IDLE: usize = 64;

/// Time a connection may take to become ready again after its response has ended; its task only has
/// to be scheduled once.
const READY_TIMEOUT: Duration = Duration::from_millis(100);

/// A replica that does not answer an HTTP/2 ping while it has requests is gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Time without an acknowledgement after which the host of a replica counts as lost
/// (`TCP_USER_TIMEOUT` of tcp(7)). Longer than the mesh is away while a daemon is replaced.
const LOSS_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without a packet after which the kernel probes a connection, and pause between two probes.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// The sending end of a connection to a replica.
pub(super) enum Sender {
    /// Carries one request at a time.
    Http1(http1::SendRequest<RequestBody>),
    /// Carries many; clones share the connection.
    Http2(http2::SendRequest<RequestBody>),
}

impl Sender {
    /// Whether the connection carries other requests as well.
    pub(super) fn is_multiplexed(&self) -> bool {
        matches!(self, Self::Http2(_))
    }

    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }

    /// Sends a request and waits for the head of its response.
    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, TrySendError<Request<RequestBody>>> {
        match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            Self::Http2(sender) => sender.try_send_request(request).await,
        }
    }
}

/// Keeps connections to replicas for later requests.
pub(super) struct Pool {
    kept: Mutex<Kept>,
    idle_timeout: Duration,
    connect_timeout: Duration,
    max_head_bytes: usize,
}

#[derive(Default)]
struct Kept {
    /// Idle HTTP/1.1 connections, the oldest first.
    idle: HashMap<SocketAddr, Vec<(http1::SendRequest<RequestBody>, Instant)>>,
    /// The HTTP/2 connection of a replica, with the time of its last request.
    multiplexed: HashMap<SocketAddr, (http2::SendRequest<RequestBody>, Instant)>,
}

impl Pool {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            kept: Mutex::default(),
            idle_timeout: settings.pool_idle_timeout,
            connect_timeout: settings.connect_timeout,
            max_head_bytes: settings.max_head_bytes,
        }
    }

    /// Takes an open connection to `addr` that speaks the wanted protocol: the idle one that was
    /// used last, or a share of the HTTP/2 connection.
    pub(super) async fn take(&self, addr: SocketAddr, http2: bool) -> Option<Sender> {
        if http2 {
            let mut kept = self.kept();
            let (sender, used) = kept.multiplexed.get_mut(&addr)?;
            if sender.is_closed() {
                kept.multiplexed.remove(&addr);
                return None;
            }
            *used = Instant::now();
            return Some(Sender::Http2(sender.clone()));
        }
        loop {
            let (mut sender, since) = self.kept().idle.get_mut(&addr)?.pop()?;
            if sender.is_closed() || since.elapsed() >= self.idle_timeout {
                continue;
            }
            if sender.is_ready()
                || matches!(
                    Box::pin(timeout(READY_TIMEOUT, sender.ready())).await,
                    Ok(Ok(()))
                )
            {
                return Some(Sender::Http1(sender));
            }
        }
    }

    /// Whether an HTTP/2 connection to `addr` is open.
    pub(super) fn multiplexes(&self, addr: SocketAddr) -> bool {
        let kept = self.kept();
        let shared = kept.multiplexed.get(&addr);
        shared.is_some_and(|(sender, _)| !sender.is_closed())
    }

    /// Keeps a connection whose response is complete.
    pub(super) fn put(&self, addr: SocketAddr, sender: Sender) {
        let Sender::Http1(sender) = sender else {
            return; // a share of a connection that was kept when it was opened
        };
        if sender.is_closed() {
            return;
        }
        let now = Instant::now();
        let mut kept = self.kept();
        let idle = kept.idle.entry(addr).or_default();
        // The oldest come first, so expired connections are at the front.
        let expired = idle.partition_point(|(_, since)| now - *since >= self.idle_timeout);
        let surplus = (idle.len() + 1).saturating_sub(MAX_IDLE).max(expired);
        drop(idle.drain(..surplus));
        idle.push((sender, now));
    }

    /// Drops the connections to one replica; running requests finish.
    pub(super) fn forget(&self, addr: SocketAddr) {
        let mut kept = self.kept();
        kept.idle.remove(&addr);
        kept.multiplexed.remove(&addr);
    }

    /// Closes idle connections to replicas that are not `wanted`.
    pub(super) fn retain(&self, wanted: impl Fn(SocketAddr) -> bool) {
        let mut kept = self.kept();
        let now = Instant::now();
        kept.idle.retain(|addr, _| wanted(*addr));
        kept.multiplexed
            .retain(|addr, (_, used)| wanted(*addr) && now - *used < self.idle_timeout);
    }

    /// Opens a new connection; its task ends with the connection.
    pub(super) async fn connect(&self, addr: SocketAddr, http2: bool) -> io::Result<Sender> {
        timeout(self.connect_timeout, self.open(addr, http2))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    async fn open(&self, addr: SocketAddr, http2: bool) -> io::Result<Sender> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        detect_loss(&stream)?;
        let io = TokioIo::new(stream);
        if http2 {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_INTERVAL)
                .max_header_list_size(u32::try_from(self.max_head_bytes).unwrap_or(u32::MAX))
                .handshake(io)
                .await
                .map_err(io::Error::other)?;
            tokio::spawn(log_end(addr, connection));
            let shared = (sender.clone(), Instant::now());
            self.kept().multiplexed.insert(addr, shared);
            return Ok(Sender::Http2(sender));
        }
        let (sender, connection) = http1::Builder::new()
            .max_header_size(self.max_head_bytes)
            // Bounds what a response holds while it waits for its client.
            .max_buf_size(self.max_head_bytes + HEAD_MARGIN)
            .handshake(io)
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(log_end(addr, connection.with_upgrades()));
        Ok(Sender::Http1(sender))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets a connection fail whose other end has lost its power or its network, and sends nothing that
/// would say so: a request on it would wait for the whole timeout of responses.
fn detect_loss(stream: &TcpStream) -> io::Result<()> {
    let unacknowledged = u32::try_from(LOSS_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, unacknowledged)?;
    // For a request that was acknowledged: only probes notice the loss.
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

async fn log_end(addr: SocketAddr, connection: impl Future<Output = hyper::Result<()>>) {
    if let Err(why) = connection.await {
        tracing::debug!(subsystem = "ingress", %addr, %why, "connection to upstream ended");
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn silent_loss_of_a_replica_is_detected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        detect_loss(&stream).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 10_000);
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), KEEPALIVE);
    }
}
