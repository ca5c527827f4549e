//! One listener of the proxy.

use std::{
    future::poll_fn,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use http::HeaderValue;
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    time::{Instant, Sleep, sleep, sleep_until},
};

use super::{
    Phase, Proxy, ProxyState, forward,
    timeouts::{ClientTimeouts, TimedStream},
};

/// Length of the accept queue in the kernel.
const BACKLOG: u32 = 1024;

/// Pause before accepting again when the process is out of descriptors or memory.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// A plain HTTP listener that is bound and ready to serve.
#[derive(Debug)]
pub struct ProxyServer {
    listener: TcpListener,
    proxy: Proxy,
    phase: watch::Receiver<Phase>,
}

impl ProxyServer {
    /// Binds `addr`, even while connections of an earlier listener are open on it.
    ///
    /// # Errors
    /// The system's error, most often that the address is in use.
    pub fn bind(addr: SocketAddr, proxy: &Proxy) -> io::Result<Self> {
        let socket = if addr.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            let socket = TcpSocket::new_v6()?;
            // The default depends on a sysctl; here `::` also accepts IPv4.
            rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
            socket
        };
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        let listener = socket.listen(BACKLOG)?;
        Ok(Self {
            listener,
            phase: proxy.phase(),
            proxy: proxy.clone(),
        })
    }

    /// Binds `port` on all addresses of the machine, IPv4 and IPv6 where available.
    ///
    /// # Errors
    /// The system's error, most often that the address is in use.
    pub fn bind_all(port: u16, proxy: &Proxy) -> io::Result<Self> {
        let without_v6 = |why: &io::Error| {
            matches!(
                why.kind(),
                io::ErrorKind::Unsupported | io::ErrorKind::AddrNotAvailable
            ) || why.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
        };
        match Self::bind((Ipv6Addr::UNSPECIFIED, port).into(), proxy) {
            Err(why) if without_v6(&why) => Self::bind((Ipv4Addr::UNSPECIFIED, port).into(), proxy),
            bound => bound,
        }
    }

    /// The address the listener is bound to.
    ///
    /// # Errors
    /// The error of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts connections until the proxy is drained.
    ///
    /// # Cancel safety
    /// Cancelled, it closes the listener; open connections are served until the proxy is drained.
    pub async fn serve(mut self) {
        loop {
            let accepted = tokio::select! {
                biased;
                _ = self.phase.wait_for(|phase| *phase != Phase::Serving) => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let connection = Connection {
                        shared: self.proxy.0.clone(),
                        peer: peer_header(peer),
                        phase: self.phase.clone(),
                    };
                    tokio::spawn(connection.serve(stream));
                }
                Err(why) if is_client_error(&why) => {}
                Err(why) => {
                    tracing::warn!(subsystem = "ingress", %why, "failed to accept a connection");
                    sleep(EXHAUSTED_PAUSE).await;
                }
            }
        }
    }
}

/// Whether accepting failed because the client has gone.
fn is_client_error(why: &io::Error) -> bool {
    matches!(
        why.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

fn peer_header(peer: SocketAddr) -> HeaderValue {
    let ip = peer.ip().to_canonical().to_string();
    // An IP address is always a valid field value.
    HeaderValue::try_from(ip).unwrap_or(HeaderValue::from_static("unknown"))
}

/// State shared by the requests of one client connection.
pub(super) struct Connection {
    pub(super) shared: Arc<ProxyState>,
    /// Address of the client as a field value.
    pub(super) peer: HeaderValue,
    pub(super) phase: watch::Receiver<Phase>,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        if let Err(why) = stream.set_nodelay(true) {
            tracing::debug!(subsystem = "ingress", %why, "failed to set up a client connection");
            return;
        }
        let settings = &self.shared.settings;
        let timeouts = ClientTimeouts::new(settings.request_head_timeout, settings.idle_timeout);
        let mut builder = http1::Builder::new();
        builder
            .header_read_timeout(None)
            .max_header_size(settings.max_head_bytes)
            // The buffer must be larger than the head, or hyper rejects a complete head of maximum
            // length.
            .max_buf_size(settings.max_head_bytes + 16 * 1024);
        let mut phase = self.phase.clone();
        let io = TokioIo::new(TimedStream {
            stream,
            timeouts: timeouts.clone(),
        });
        let this = Arc::new(self);
        let service = {
            let timeouts = timeouts.clone();
            service_fn(move |request| forward::handle(this.clone(), timeouts.serve(), request))
        };
        let mut connection = pin!(builder.serve_connection(io, service).with_upgrades());
        let mut timer = pin!(sleep_until(Instant::now()));
        let mut draining = false;
        loop {
            let ended = poll_fn(|cx| match connection.as_mut().poll(cx) {
                Poll::Ready(ended) => Poll::Ready(Some(ended)),
                Poll::Pending => poll_expired(&timeouts, timer.as_mut(), cx).map(|()| None),
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
                        connection.as_mut().graceful_shutdown();
                    }
                    // An error means that the proxy was dropped without a drain.
                    Ok(Phase::Serving | Phase::Closed) | Err(_) => return,
                },
            }
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
    cx: &mut std::task::Context<'_>,
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
