//! HTTP/3 (RFC 9114): clients over QUIC.
//!
//! A worker has a UDP socket and an endpoint of its own, and serves its connections in its own
//! thread, as it does those over TCP. Requests take the same path as in the other protocols.
//!
//! - [`sockets`]: the UDP sockets, also across processes; `steering`: how a packet finds its worker.
//! - `settings`: limits of the transport, and the connection ids.
//! - `connection`: one client; `request`, `body`: one request.
//! - `transport`, `frames`: the streams of QUIC as h3 may see them.

pub(super) mod body;
mod connection;
mod frames;
mod request;
mod settings;
pub(super) mod sockets;
mod steering;
mod transport;

use std::{
    io,
    net::{IpAddr, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use quinn::{AsyncUdpSocket, Endpoint, Incoming, Runtime as _, TokioRuntime, VarInt};
use tokio::{
    sync::watch,
    task::{JoinSet, yield_now},
    time::timeout,
};

pub(super) use self::settings::{Http3, Place};
use super::{Phase, worker::Worker};
use crate::quic::{
    Settings as Limits,
    admission::{Admission, HandshakeLimiter},
};

/// Longest wait for closed connections to tell their clients.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// The endpoint of a worker.
pub(super) struct Http3Listener {
    endpoint: Endpoint,
    /// The socket, which tasks of the endpoint hold for some time after it was dropped.
    socket: Weak<dyn AsyncUdpSocket>,
    handshakes: Arc<Mutex<HandshakeLimiter>>,
    /// Whether new clients wait for a successor of this process.
    handed_over: Arc<AtomicBool>,
    worker: Arc<Worker>,
    phase: watch::Receiver<Phase>,
}

impl Http3Listener {
    /// # Errors
    /// If the socket cannot be registered with the runtime.
    pub(super) fn new(
        socket: UdpSocket,
        http3: Http3,
        worker: Arc<Worker>,
        phase: watch::Receiver<Phase>,
    ) -> io::Result<Self> {
        let runtime = Arc::new(TokioRuntime);
        let socket = runtime.wrap_udp_socket(socket)?;
        let open = Arc::downgrade(&socket);
        let (config, server) = (http3.endpoint, Some(http3.server));
        let endpoint = Endpoint::new_with_abstract_socket(config, server, socket, runtime)?;
        let handshakes = HandshakeLimiter::new(&handshake_limits());
        Ok(Self {
            endpoint,
            socket: open,
            handshakes: Arc::new(Mutex::new(handshakes)),
            handed_over: http3.handed_over,
            worker,
            phase,
        })
    }

    /// Serves clients until the drain has ended their connections.
    pub(super) async fn serve(mut self) {
        let mut connections = JoinSet::new();
        loop {
            let incoming = tokio::select! {
                biased;
                _ = self.phase.wait_for(|phase| *phase != Phase::Serving) => break,
                Some(_) = connections.join_next() => continue,
                incoming = self.endpoint.accept() => incoming,
            };
            let Some(incoming) = incoming else { break };
            if let Some((incoming, handshake)) = self.admit(incoming) {
                let (worker, phase) = (self.worker.clone(), self.phase.clone());
                connections.spawn(async move {
                    let limit = worker.shared.settings.request_head_timeout;
                    let connected = connection::handshake(incoming, limit, phase.clone()).await;
                    drop(handshake);
                    if let Some(connected) = connected {
                        connection::serve(connected, worker, phase).await;
                    }
                });
            }
        }
        while !connections.is_empty() {
            tokio::select! {
                Some(_) = connections.join_next() => {}
                Some(incoming) = self.endpoint.accept() => {
                    if self.handed_over.load(Ordering::Relaxed) {
                        incoming.ignore(); // the client repeats its packet, which the successor gets
                    } else {
                        incoming.refuse(); // the client tries another protocol at once
                    }
                }
                else => break,
            }
        }
        self.endpoint.close(VarInt::from_u32(0x100), b"");
        let _ = timeout(CLOSE_TIMEOUT, self.endpoint.wait_idle()).await; // clients time out otherwise
        let Self {
            endpoint,
            socket,
            phase,
            ..
        } = self;
        drop(endpoint);
        // A drain is complete when the phase is no longer watched, and the socket must be closed by
        // then.
        let closed = async {
            while socket.strong_count() > 0 {
                yield_now().await;
            }
        };
        let _ = timeout(CLOSE_TIMEOUT, closed).await; // clients that do not answer are forgotten
        drop(phase);
    }

    /// Decides about a new client; under load it must first prove its address by a Retry.
    fn admit(&self, incoming: Incoming) -> Option<(Incoming, RunningHandshake)> {
        let address = incoming.remote_address().ip().to_canonical();
        let validated = incoming.remote_address_validated();
        let mut limiter = lock(&self.handshakes);
        match limiter.admit(address, false, validated) {
            Admission::Accept => {
                drop(limiter);
                let running = RunningHandshake {
                    limiter: self.handshakes.clone(),
                    address,
                    validated,
                };
                return Some((incoming, running));
            }
            // An attempt that already carries a token cannot be retried; drop it.
            Admission::Retry => {
                if let Err(refused) = incoming.retry() {
                    refused.into_incoming().ignore();
                }
            }
            Admission::Ignore => incoming.ignore(),
        }
        None
    }
}

/// Limits of the handshakes of one worker. Many clients may share an address.
fn handshake_limits() -> Limits {
    Limits {
        unknown: 1024,
        per_address: 256,
        unvalidated_per_address: 32,
        unvalidated: 128,
        ..Limits::default()
    }
}

/// A handshake in progress.
struct RunningHandshake {
    limiter: Arc<Mutex<HandshakeLimiter>>,
    address: IpAddr,
    validated: bool,
}

impl Drop for RunningHandshake {
    fn drop(&mut self) {
        lock(&self.limiter).release(self.address, false, self.validated);
    }
}

fn lock(limiter: &Mutex<HandshakeLimiter>) -> std::sync::MutexGuard<'_, HandshakeLimiter> {
    limiter.lock().unwrap_or_else(PoisonError::into_inner)
}
