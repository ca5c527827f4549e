//! Pool of the connections of one worker to replicas.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};

use super::{Settings, body::RequestBody};

/// The sending end of a connection to a replica.
pub(super) type Sender = SendRequest<RequestBody>;

/// Maximum number of idle connections per replica.
const MAX_IDLE: usize = 64;

/// Time a connection may take to become ready again after its response has ended; its task only has
/// to be scheduled once.
const READY_TIMEOUT: Duration = Duration::from_millis(100);

/// Keeps idle connections to replicas for later requests.
pub(super) struct Pool {
    idle: Mutex<HashMap<SocketAddr, Vec<(Sender, Instant)>>>,
    idle_timeout: Duration,
    connect_timeout: Duration,
    max_head_bytes: usize,
}

impl Pool {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            idle: Mutex::default(),
            idle_timeout: settings.pool_idle_timeout,
            connect_timeout: settings.connect_timeout,
            max_head_bytes: settings.max_head_bytes,
        }
    }

    /// Takes the idle connection to `addr` that was used last, if one is still open.
    pub(super) async fn take(&self, addr: SocketAddr) -> Option<Sender> {
        loop {
            let (mut sender, since) = self.idle().get_mut(&addr)?.pop()?;
            if sender.is_closed() || since.elapsed() >= self.idle_timeout {
                continue;
            }
            if sender.is_ready()
                || matches!(timeout(READY_TIMEOUT, sender.ready()).await, Ok(Ok(())))
            {
                return Some(sender);
            }
        }
    }

    /// Keeps a connection whose response is complete.
    pub(super) fn put(&self, addr: SocketAddr, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let now = Instant::now();
        let mut idle = self.idle();
        let kept = idle.entry(addr).or_default();
        // The oldest come first, so expired connections are at the front.
        let expired = kept.partition_point(|(_, since)| now - *since >= self.idle_timeout);
        let surplus = (kept.len() + 1).saturating_sub(MAX_IDLE).max(expired);
        drop(kept.drain(..surplus));
        kept.push((sender, now));
    }

    /// Drops the idle connections to one replica.
    pub(super) fn forget(&self, addr: SocketAddr) {
        self.idle().remove(&addr);
    }

    /// Closes idle connections to replicas that are not `wanted`.
    pub(super) fn retain(&self, wanted: impl Fn(SocketAddr) -> bool) {
        self.idle().retain(|addr, _| wanted(*addr));
    }

    /// Opens a new connection; its task ends with the connection.
    pub(super) async fn connect(&self, addr: SocketAddr) -> io::Result<Sender> {
        let stream = timeout(self.connect_timeout, TcpStream::connect(addr))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::Builder::new()
            .max_header_size(self.max_head_bytes)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(why) = connection.with_upgrades().await {
                tracing::debug!(subsystem = "ingress", %addr, %why, "connection to upstream ended");
            }
        });
        Ok(sender)
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<SocketAddr, Vec<(Sender, Instant)>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
