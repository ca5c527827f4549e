//! One TCP listener: accepts connections and connects each to an upstream.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::net::sockopt;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    Port, Upstream,
    ports::Shared,
    proxy_protocol::header_v2,
    relay::relay,
    upstream::{Backends, RoundRobin},
};

/// Pause before accepting again when the process is out of descriptors or memory.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// Silence after which the kernel asks whether the other side still exists; there is no limit on
/// the silence of one that answers.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(300);
/// Time between two such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Unanswered questions after which a connection is dead.
const KEEPALIVE_PROBES: u32 = 5;

/// Accepts connections for as long as it runs.
///
/// Aborted, it closes the listener; established connections stay. The fields are dropped in this
/// order, so the listener is closed once the receiver is gone.
pub(super) struct Acceptor {
    pub(super) listener: TcpListener,
    pub(super) port: Port,
    pub(super) shared: Arc<Shared>,
    /// True once the streams have to end.
    pub(super) closed: watch::Receiver<bool>,
    pub(super) backends: watch::Receiver<Arc<Backends>>,
    /// Number of open connections.
    pub(super) connections: Arc<AtomicUsize>,
}

impl Acceptor {
    pub(super) async fn run(self) {
        let turn = Arc::new(RoundRobin::default());
        loop {
            match self.listener.accept().await {
                Ok((client, peer)) => {
                    let connection = Connection {
                        port: self.port,
                        shared: self.shared.clone(),
                        backends: self.backends.borrow().clone(),
                        turn: turn.clone(),
                    };
                    let mut closed = self.closed.clone();
                    let counted = Counted::new(self.connections.clone());
                    tokio::spawn(async move {
                        let _counted = counted;
                        tokio::select! {
                            () = connection.run(client, peer) => {}
                            // An error means that the data plane was dropped without a drain.
                            _ = closed.wait_for(|closed| *closed) => {}
                        }
                    });
                }
                Err(error) if is_client_error(&error) => {}
                Err(error) => {
                    tracing::warn!(subsystem = "ingress", port = %self.port, %error, "failed to accept a connection");
                    sleep(EXHAUSTED_PAUSE).await;
                }
            }
        }
    }
}

/// Counts a connection until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether accepting failed because the client has gone.
fn is_client_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// A client connection on its way to an upstream.
struct Connection {
    port: Port,
    shared: Arc<Shared>,
    backends: Arc<Backends>,
    turn: Arc<RoundRobin>,
}

impl Connection {
    async fn run(self, client: TcpStream, peer: SocketAddr) {
        let Some((mut upstream, replica)) = self.connect().await else {
            tracing::debug!(subsystem = "ingress", port = %self.port, %peer, "no replica accepts connections");
            return reset(&client);
        };
        let Self {
            port,
            shared,
            backends,
            ..
        } = self;
        let relayed = async {
            prepare(&client)?;
            prepare(&upstream)?;
            if backends.proxy_v2 {
                let header = header_v2(peer, client.local_addr()?);
                upstream.write_all(&header).await?;
            }
            // A long connection must not keep the upstreams of its time.
            drop(backends);
            relay(&client, &upstream, &shared.pipes).await
        };
        if let Err(error) = relayed.await {
            tracing::debug!(subsystem = "ingress", %port, %peer, replica = &*replica, %error, "connection ended");
            reset(&client);
            reset(&upstream);
        }
    }

    /// Connects to the first upstream that accepts.
    async fn connect(&self) -> Option<(TcpStream, Arc<str>)> {
        let is_fresh = |host: &str| (self.shared.is_fresh)(host);
        for upstream in self.turn.order(&self.backends.upstreams, is_fresh) {
            let Upstream { replica, addr, .. } = upstream;
            let limit = self.shared.settings.connect_timeout;
            let error = match timeout(limit, TcpStream::connect(addr)).await {
                Ok(Ok(stream)) => return Some((stream, replica.clone())),
                Ok(Err(error)) => error,
                Err(_) => io::ErrorKind::TimedOut.into(),
            };
            tracing::debug!(subsystem = "ingress", port = %self.port, %replica, %addr, %error, "failed to connect to a replica");
        }
        None
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}

/// Lets the connection end with a reset when it is dropped: an orderly end would tell the other side
/// that it has received everything.
fn reset(stream: &TcpStream) {
    // Fails only on a connection that is gone already.
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}
