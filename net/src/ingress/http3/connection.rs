//! One client connection.

use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use h3::{
    error::Code,
    quic::SendStream as _,
    server::{self, RequestResolver},
};
use quinn::{Incoming, VarInt};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

use super::{
    super::{
        HEAD_MARGIN, Phase, Scheme,
        connection::{Connection, FIRST_REQUEST, peer_header},
        timeouts::ClientTimeouts,
        worker::Worker,
    },
    request,
    transport::Transport,
};

/// Longest wait for the client to take the announcement of the drain.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);
/// Code of a close without an error (RFC 9114, section 8.1).
const NO_ERROR: VarInt = VarInt::from_u32(0x100);

/// Completes the handshake of `incoming`; `None` if it fails, takes too long or everything is
/// closed. A drain lets it end: the client would see a failed request.
pub(super) async fn handshake(
    incoming: Incoming,
    limit: Duration,
    mut phase: watch::Receiver<Phase>,
) -> Option<quinn::Connection> {
    let connecting = incoming.accept().inspect_err(log_failure).ok()?;
    tokio::select! {
        connected = timeout(limit, connecting) => match connected {
            Ok(connected) => connected.inspect_err(log_failure).ok(),
            Err(_) => None,
        },
        _ = phase.wait_for(|phase| *phase == Phase::Closed) => None,
    }
}

fn log_failure(why: &quinn::ConnectionError) {
    tracing::debug!(subsystem = "ingress", %why, "QUIC handshake failed");
}

/// Serves a connection to its end.
pub(super) async fn serve(
    quic: quinn::Connection,
    worker: Arc<Worker>,
    phase: watch::Receiver<Phase>,
) {
    let settings = &worker.shared.settings;
    let (head, limit) = (settings.max_head_bytes, settings.request_head_timeout);
    let idle = settings.idle_timeout;
    let timeouts = ClientTimeouts::multiplexed(idle);
    let connection = Arc::new(Connection {
        worker,
        scheme: Scheme::Https,
        peer: peer_header(quic.remote_address()),
        peer_ip: quic.remote_address().ip().to_canonical(),
        phase: phase.clone(),
    });
    let transport = Transport::new(quic.clone(), head + HEAD_MARGIN, idle);
    let mut builder = server::builder();
    builder
        .max_field_section_size(u64::try_from(head).unwrap_or(u64::MAX))
        .send_grease(false);
    // A client may never allow the streams of the settings.
    match timeout(limit, builder.build(transport)).await {
        Ok(Ok(served)) => {
            let driver = Driver {
                served,
                connection,
                timeouts,
                asked: false,
                draining: false,
                requests: JoinSet::new(),
            };
            driver.run(phase).await;
        }
        Ok(Err(why)) => tracing::debug!(subsystem = "ingress", %why, "client connection failed"),
        Err(_) => {}
    }
    quic.close(NO_ERROR, b"");
}

struct Driver {
    served: server::Connection<Transport, Bytes>,
    connection: Arc<Connection>,
    timeouts: Arc<ClientTimeouts>,
    /// Whether the client has sent a request.
    asked: bool,
    draining: bool,
    /// Requests in progress; they end with the connection.
    requests: JoinSet<()>,
}

impl Driver {
    async fn run(mut self, mut phase: watch::Receiver<Phase>) {
        let mut first_request = pin!(sleep_until(Instant::now()));
        let mut awaits_first = false;
        while !(self.draining && self.requests.is_empty()) {
            let draining = self.draining || awaits_first;
            tokio::select! {
                biased;
                changed = next_phase(&mut phase, draining) => match changed {
                    Some(Phase::Draining) if self.asked => self.drain().await,
                    Some(Phase::Draining) => {
                        first_request.as_mut().reset(Instant::now() + FIRST_REQUEST);
                        awaits_first = true;
                    }
                    // None means that the proxy was dropped without a drain.
                    Some(Phase::Serving | Phase::Closing | Phase::Closed) | None => return,
                },
                Some(_) = self.requests.join_next() => {}
                () = idle(&self.timeouts) => return,
                () = first_request.as_mut(), if awaits_first => {
                    awaits_first = false;
                    self.drain().await;
                }
                accepted = self.served.accept() => match accepted {
                    Ok(Some(stream)) => {
                        self.request(stream);
                        if std::mem::take(&mut awaits_first) {
                            self.drain().await;
                        }
                    }
                    Ok(None) => return, // the client has announced that it leaves
                    Err(why) => {
                        if !why.is_h3_no_error() {
                            tracing::debug!(subsystem = "ingress", %why, "client connection ended");
                        }
                        return;
                    }
                },
            }
        }
    }

    fn request(&mut self, mut stream: RequestResolver<Transport, Bytes>) {
        self.asked = true;
        let given_up = self.served.inner.conn.take_given_up();
        match given_up {
            Some(given_up) if !self.draining => {
                let (connection, timeouts) = (self.connection.clone(), self.timeouts.clone());
                let served = request::serve(connection, timeouts, stream, given_up);
                self.requests.spawn(served);
            }
            // The client may send it again over another connection.
            Some(_) | None => stream.frame_stream.reset(Code::H3_REQUEST_REJECTED.value()),
        }
    }

    /// Tells the client that the requests it sends from here on are not served.
    async fn drain(&mut self) {
        self.draining = true;
        // The frame names the first stream that is not served: the one after the last accepted.
        if let Ok(Err(why)) = timeout(GOAWAY_TIMEOUT, self.served.shutdown(1)).await {
            tracing::debug!(subsystem = "ingress", %why, "failed to announce the drain");
        }
    }
}

/// Waits for the drain, or the end of one that has begun.
async fn next_phase(phase: &mut watch::Receiver<Phase>, draining: bool) -> Option<Phase> {
    let changed =
        phase.wait_for(|phase| *phase == Phase::Closed || (*phase == Phase::Draining && !draining));
    changed.await.ok().map(|phase| *phase)
}

/// Waits until the client has had no request for too long.
async fn idle(timeouts: &ClientTimeouts) {
    loop {
        match timeouts.deadline() {
            Some(deadline) if deadline <= Instant::now() => return,
            Some(deadline) => sleep_until(deadline).await,
            // The caller asks again when a request has ended.
            None => pending().await,
        }
    }
}
