//! One UDP socket for outgoing and incoming connections.

use std::{
    collections::HashMap,
    fmt, io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use quinn::{
    EndpointConfig, Incoming,
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use rustix::net::sockopt;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use super::{
    BindError, Closed, ConnectError, Connection, Reason, Roster, Settings,
    admission::{Admission, HandshakeLimiter},
    io_thread::IoThread,
    verify::configurations,
};
use crate::tls::CertSlot;

/// Connection attempts that quinn queues until they are accepted; it refuses more.
const MAX_QUEUED_ATTEMPTS: usize = 512;
/// Bytes buffered for one queued attempt, and for all of them.
const QUEUED_ATTEMPT_BYTES: (u64, u64) = (16 << 10, 2 << 20);
/// Socket buffer size requested from the kernel, which may grant less.
const SOCKET_BUFFER: usize = 4 << 20;
/// Longest wait of [`Endpoint::close`] for the connections to shut down.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Configuration of an endpoint.
#[derive(Clone, Debug)]
pub struct Args {
    /// UDP address to bind; port 0 lets the system choose.
    pub address: SocketAddr,
    /// Certificate and key of this node; every handshake uses the slot's current content.
    pub identity: Arc<CertSlot>,
    /// Certificate of the cluster's CA, PEM.
    pub ca_pem: String,
    /// Membership lookup.
    pub roster: Arc<dyn Roster>,
    /// Limits and timeouts.
    pub settings: Settings,
}

/// Outcome of an incoming connection attempt.
#[derive(Debug)]
pub enum IncomingPeer {
    /// An authenticated member.
    Member(Connection),
    /// An attempt that failed. Under load some of these are dropped.
    Refused(SocketAddr, ConnectError),
}

/// A socket of the peer transport. Clones share it; it stays open until [`Endpoint::close`] or
/// until the last clone and connection are dropped.
#[derive(Clone)]
pub struct Endpoint {
    inner: quinn::Endpoint,
    io: IoThread,
    client: quinn::ClientConfig,
    roster: Arc<dyn Roster>,
    settings: Settings,
    incarnation: u64,
}

impl Endpoint {
    /// Binds the socket; incoming connections are not accepted before [`Endpoint::serve`].
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(args: Args) -> Result<Self, BindError> {
        let Args {
            address,
            identity,
            ca_pem,
            roster,
            settings,
        } = args;
        let unusable = |_| BindError::Setting("cipher suites");
        let (server, client) = configurations(&identity, &ca_pem, roster.clone())?;
        let transport = settings.transport()?;
        let server = QuicServerConfig::try_from(server).map_err(unusable)?;
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(server));
        server
            .transport_config(transport.clone())
            .migration(false)
            .max_incoming(MAX_QUEUED_ATTEMPTS)
            .incoming_buffer_size(QUEUED_ATTEMPT_BYTES.0)
            .incoming_buffer_size_total(QUEUED_ATTEMPT_BYTES.1);
        let client = QuicClientConfig::try_from(client).map_err(unusable)?;
        let mut client = quinn::ClientConfig::new(Arc::new(client));
        client.transport_config(transport);

        let socket = |error: io::Error| BindError::Socket(address, error);
        let udp = UdpSocket::bind(address).map_err(socket)?;
        // Large buffers avoid packet loss on bursts of raft messages; smaller ones work as well.
        let _ = sockopt::set_socket_recv_buffer_size(&udp, SOCKET_BUFFER);
        let _ = sockopt::set_socket_send_buffer_size(&udp, SOCKET_BUFFER);
        let io = IoThread::start().map_err(BindError::Thread)?;
        let runtime = Arc::new(io.clone());
        let inner = quinn::Endpoint::new(EndpointConfig::default(), Some(server), udp, runtime)
            .map_err(socket)?;
        let mut incarnation = [0; 8];
        getrandom::fill(&mut incarnation)
            .map_err(|error| socket(io::Error::other(error.to_string())))?;
        Ok(Self {
            inner,
            io,
            client,
            roster,
            settings,
            incarnation: u64::from_be_bytes(incarnation),
        })
    }

    /// The address the socket is bound to.
    ///
    /// # Errors
    /// The error of `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    /// Connects to member `hostname` at `address`; returns once the member has accepted this node.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn dial(
        &self,
        hostname: &str,
        address: SocketAddr,
    ) -> Result<Connection, ConnectError> {
        let attempt = async {
            let connecting = self
                .inner
                .connect_with(self.client.clone(), address, hostname)
                .map_err(|error| ConnectError::InvalidAddress(error.to_string()))?;
            let connected = connecting
                .await
                .map_err(|error| ConnectError::Handshake(Closed::from(error).unauthenticated()))?;
            Connection::greet(connected, &self.io, &*self.roster, self.incarnation).await
        };
        let connection = timeout(self.settings.handshake, attempt)
            .await
            .unwrap_or(Err(ConnectError::TimedOut))?;
        if connection.member().hostname == hostname {
            Ok(connection)
        } else {
            connection.close(Reason::NotMember);
            Err(ConnectError::NotMember)
        }
    }

    /// Accepts members until the endpoint is closed or the receiver of `arrivals` is dropped.
    pub async fn serve(&self, arrivals: mpsc::Sender<IncomingPeer>) {
        let mut admission = HandshakeLimiter::new(&self.settings);
        let mut handshakes = JoinSet::new();
        let mut in_progress = HashMap::new();
        loop {
            tokio::select! {
                () = arrivals.closed() => return,
                Some(ended) = handshakes.join_next_with_id(), if !handshakes.is_empty() => {
                    let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                    if let Some((address, member, validated)) = in_progress.remove(&id) {
                        admission.release(address, member, validated);
                    }
                }
                incoming = self.inner.accept() => {
                    let Some(incoming) = incoming else { return };
                    let from = incoming.remote_address();
                    let validated = incoming.remote_address_validated();
                    // Under a flood the roster is consulted for validated addresses only.
                    let trusted = validated || !admission.requires_validation();
                    let member = trusted && self.roster.has_member_at(from.ip());
                    match admission.admit(from.ip(), member, validated) {
                        Admission::Accept => {
                            let (this, arrivals) = (self.clone(), arrivals.clone());
                            let handshake = handshakes.spawn(async move {
                                this.receive(incoming, from, arrivals).await;
                            });
                            in_progress.insert(handshake.id(), (from.ip(), member, validated));
                        }
                        // An attempt that already carries a token cannot be retried; drop it.
                        Admission::Retry => if let Err(refused) = incoming.retry() {
                            refused.into_incoming().ignore();
                        },
                        Admission::Ignore => incoming.ignore(),
                    }
                }
            }
        }
    }

    async fn receive(&self, incoming: Incoming, from: SocketAddr, to: mpsc::Sender<IncomingPeer>) {
        let attempt = async {
            let broken = |error: quinn::ConnectionError| ConnectError::Handshake(error.into());
            let connected = incoming.accept().map_err(broken)?.await.map_err(broken)?;
            Connection::greet(connected, &self.io, &*self.roster, self.incarnation).await
        };
        let result = timeout(self.settings.handshake, attempt).await;
        match result.unwrap_or(Err(ConnectError::TimedOut)) {
            Ok(connection) => {
                let _ = to.send(IncomingPeer::Member(connection)).await; // the receiver may be gone
            }
            // Refusals are only logged, so a full channel drops them.
            Err(error) => {
                let _ = to.try_send(IncomingPeer::Refused(from, error));
            }
        }
    }

    /// Number of connections, those in handshake included.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.inner.open_connections()
    }

    /// Closes every connection and waits up to 500 ms for them to shut down.
    pub async fn close(&self) {
        self.inner
            .close(Reason::Leaving.code(), Reason::Leaving.text().as_bytes());
        let _ = timeout(CLOSE_TIMEOUT, self.inner.wait_idle()).await; // peers time out otherwise
    }

    /// As [`Endpoint::close`], but without waiting.
    pub fn abandon(&self) {
        self.inner
            .close(Reason::Leaving.code(), Reason::Leaving.text().as_bytes());
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.inner.local_addr().ok())
            .finish_non_exhaustive()
    }
}
