//! Datagrams of a server.

use std::{io, net::SocketAddr, os::fd::AsFd as _, sync::Arc};

use tokio::{io::Interest, net::UdpSocket, task::JoinSet};
use tracing::trace;

use super::{Answer, Handler, Limits, Transport, batch::Batch};

pub(super) async fn serve(
    socket: UdpSocket,
    handler: Arc<dyn Handler>,
    limits: Limits,
) -> io::Error {
    let socket = Arc::new(socket);
    let mut pending = JoinSet::new();
    let mut batch = Batch::new();
    loop {
        if let Err(error) = socket.readable().await
            && !is_transient(&error)
        {
            return error;
        }
        let mut is_empty = true;
        let received = socket.try_io(Interest::READABLE, || {
            let has_more = batch.receive(socket.as_fd())?;
            is_empty = false;
            // The socket is drained: say so, instead of asking it again.
            let drained = || io::Error::from(io::ErrorKind::WouldBlock);
            has_more.then_some(()).ok_or_else(drained)
        });
        match received {
            Err(error) if is_empty && !is_transient(&error) => return error,
            // Nothing is there, or an earlier answer could not be delivered.
            Err(_) if is_empty => continue,
            Ok(()) | Err(_) => {}
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
        tokio::task::coop::consume_budget().await;
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
