//! Datagrams of a server.

use std::{io, net::SocketAddr, sync::Arc};

use tokio::{net::UdpSocket, task::JoinSet};
use tracing::trace;

use super::{Answer, Handler, Limits, MAX_DATAGRAM, Transport};

/// Datagrams that are handled before other tasks of the thread get their turn.
const BATCH: usize = 64;

pub(super) async fn serve(
    socket: UdpSocket,
    handler: Arc<dyn Handler>,
    limits: Limits,
) -> io::Error {
    let socket = Arc::new(socket);
    let mut pending = JoinSet::new();
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        if let Err(error) = socket.readable().await
            && !is_transient(&error)
        {
            return error;
        }
        for _ in 0..BATCH {
            let (length, client) = match socket.try_recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // An earlier answer could not be delivered.
                Err(error) if is_transient(&error) => continue,
                Err(error) => return error,
            };
            let answer = handler.handle(&buffer[..length], client, Transport::Udp);
            answer_one(&socket, client, answer, &mut pending, limits.pending);
        }
        while pending.try_join_next().is_some() {}
        tokio::task::yield_now().await;
    }
}

fn answer_one(
    socket: &Arc<UdpSocket>,
    client: SocketAddr,
    answer: Answer,
    pending: &mut JoinSet<()>,
    limit: usize,
) {
    match answer {
        // A full send buffer is congestion like any other: the client repeats its question.
        Answer::Ready(message) => log(client, socket.try_send_to(&message, client)),
        Answer::Pending(answer) => {
            while pending.try_join_next().is_some() {}
            if pending.len() >= limit {
                return trace!(subsystem = "dns", %client, "query dropped: too many pending");
            }
            let socket = Arc::clone(socket);
            pending.spawn(async move {
                if let Some(message) = answer.await {
                    log(client, socket.send_to(&message, client).await);
                }
            });
        }
        Answer::None => {}
    }
}

fn log(client: SocketAddr, sent: io::Result<usize>) {
    if let Err(error) = sent {
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
