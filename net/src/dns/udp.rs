//! Datagrams of a server.

use std::{io, net::SocketAddr, os::fd::AsFd as _, sync::Arc};

use tokio::{io::Interest, net::UdpSocket, task::JoinSet};
use tracing::trace;

use super::{Answer, Handler, Limits, Transport, batch::Batch};

/// Batches that are answered before other tasks of the thread get their turn.
const BATCHES: u32 = 8;

pub(super) async fn serve(
    socket: UdpSocket,
    handler: Arc<dyn Handler>,
    limits: Limits,
) -> io::Error {
    let socket = Arc::new(socket);
    let mut pending = JoinSet::new();
    let mut batch = Batch::new();
    let mut batches = 0;
    loop {
        // The socket is asked again until it is empty: under load, further queries arrive while
        // a batch is answered, and waiting costs more than a system call in vain.
        match socket.try_io(Interest::READABLE, || batch.receive(socket.as_fd())) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                batches = 0;
                match socket.readable().await {
                    Err(error) if !is_transient(&error) => return error,
                    Ok(()) | Err(_) => continue,
                }
            }
            // An earlier answer could not be delivered.
            Err(error) if is_transient(&error) => continue,
            Err(error) => return error,
        }
        for (message, client, answer) in batch.entries() {
            match handler.handle(message, client, Transport::Udp, answer) {
                Answer::Ready => {}
                Answer::Pending(later) => {
                    answer.clear();
                    if pending.len() >= limits.pending {
                        while pending.try_join_next().is_some() {}
                    }
                    if pending.len() >= limits.pending {
                        trace!(subsystem = "dns", %client, "query dropped: too many pending");
                        continue;
                    }
                    pending.spawn(answer_later(Arc::clone(&socket), client, later));
                }
                Answer::None => answer.clear(),
            }
        }
        batch.send(socket.as_fd());
        while pending.try_join_next().is_some() {}
        batches += 1;
        if batches == BATCHES {
            batches = 0;
            tokio::task::yield_now().await;
        }
    }
}

async fn answer_later(
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    answer: impl Future<Output = Option<Vec<u8>>>,
) {
    if let Some(message) = answer.await
        && let Err(error) = socket.send_to(&message, client).await
    {
        trace!(subsystem = "dns", %client, %error, "answer not sent");
    }
}

/// Whether the socket works after this error, which is about one datagram.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, NetworkUnreachable,
        WouldBlock,
    };
    let kinds = [
        ConnectionRefused,
        ConnectionReset,
        HostUnreachable,
        Interrupted,
        NetworkUnreachable,
        WouldBlock,
    ];
    kinds.contains(&error.kind())
}
