//! Accepting the connections of one listening socket.

use std::{io, net, sync::Arc, time::Duration};

use rustix::net::sockopt::set_tcp_nodelay;
use tokio::{net::TcpListener, sync::watch, time::sleep};

use super::{
    Phase, connection,
    worker::{Protocol, Worker},
};

/// Pause before accepting again when the process is out of descriptors or memory.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// One listening socket of a worker.
pub(super) struct Listener {
    // Dropped first: a drain is complete when the phase is no longer watched, and the socket must
    // be closed by then.
    socket: TcpListener,
    protocol: Protocol,
    worker: Arc<Worker>,
    phase: watch::Receiver<Phase>,
}

impl Listener {
    /// # Errors
    /// If the socket cannot be set up or registered with the runtime.
    pub(super) fn new(
        socket: net::TcpListener,
        protocol: Protocol,
        worker: Arc<Worker>,
        phase: watch::Receiver<Phase>,
    ) -> io::Result<Self> {
        // Accepted connections inherit the option, which saves a system call for each.
        set_tcp_nodelay(&socket, true)?;
        Ok(Self {
            socket: TcpListener::from_std(socket)?,
            protocol,
            worker,
            phase,
        })
    }

    /// Accepts connections until the drain begins.
    pub(super) async fn serve(mut self) {
        loop {
            let accepted = tokio::select! {
                biased;
                _ = self.phase.wait_for(|phase| *phase != Phase::Serving) => return,
                accepted = self.socket.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    let (worker, phase) = (self.worker.clone(), self.phase.clone());
                    match &self.protocol {
                        Protocol::Http => {
                            tokio::spawn(connection::serve_plain(stream, peer, worker, phase));
                        }
                        Protocol::Https(tls) => {
                            let tls = tls.clone();
                            let secured = connection::serve_tls(tls, stream, peer, worker, phase);
                            tokio::spawn(secured);
                        }
                    }
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
