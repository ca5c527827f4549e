//! Probes of the container networks, sent and answered as by a container.
//!
//! The isolation rules filter forwarded packets only. Packets of the host itself are not forwarded,
//! even with the address of a bridge as their source, so a probe of the host would pass where those
//! of a container are dropped. Each local network therefore has an [`Endpoint`]: a network namespace
//! with one link on the bridge and an address of the block, whose packets go the way of a
//! container's. It costs one namespace, one veth pair and one idle socket.
//!
//! A probe is one UDP datagram with a nonce, which the endpoint at the other end returns. Only the
//! returned nonce counts as an answer: an ICMP error may come from a firewall in between. Answers are
//! as long as requests and are not answered, so a responder neither amplifies nor loops.
//!
//! The namespace has no name. It and its link end with the process, so nothing has to be cleaned up
//! after a crash; a link that the kernel has not removed yet is recognised by its alias.

mod binder;
mod endpoint;
mod message;

use std::{
    io,
    net::{SocketAddr, SocketAddrV4},
    time::Duration,
};

use tokio::{
    net::UdpSocket,
    time::{Instant, timeout_at},
};

pub use binder::Binder;
pub use endpoint::{Endpoint, Error, PREFIX, Spec, link_name};

use self::message::{LENGTH, Message};

/// Sends one probe to `target` and returns the time to its answer, `None` without one in time.
///
/// Errors of the network, such as an unreachable host, count as no answer.
///
/// # Errors
/// When the nonce or the socket cannot be had, so that nothing was sent.
///
/// # Cancel safety
/// Cancellation gives the probe up.
pub async fn exchange(
    socket: UdpSocket,
    target: SocketAddrV4,
    limit: Duration,
) -> io::Result<Option<Duration>> {
    let mut nonce = [0; message::NONCE];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    let deadline = Instant::now() + limit;
    let began = Instant::now();
    let answered = async {
        socket.connect(SocketAddr::V4(target)).await?;
        socket.send(&Message::Request(nonce).encode()).await?;
        loop {
            let mut buffer = [0; LENGTH + 1];
            let length = socket.recv(&mut buffer).await?;
            if Message::decode(&buffer[..length]) == Some(Message::Answer(nonce)) {
                return Ok::<_, io::Error>(());
            }
        }
    };
    match timeout_at(deadline, answered).await {
        Ok(Ok(())) => Ok(Some(began.elapsed())),
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}

/// Answers probes on `socket` until it fails.
///
/// # Cancel safety
/// A probe that is being answered may stay without an answer.
pub async fn respond(socket: UdpSocket) -> io::Error {
    let mut buffer = [0; LENGTH + 1];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // The ICMP error of an earlier answer.
            Err(error) if is_network_error(&error) => continue,
            Err(error) => return error,
        };
        if let Some(Message::Request(nonce)) = Message::decode(&buffer[..length]) {
            // An answer that cannot be sent is a lost answer.
            let _ = socket.send_to(&Message::Answer(nonce).encode(), from).await;
        }
    }
}

fn is_network_error(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, NetworkDown, NetworkUnreachable,
    };
    matches!(
        error.kind(),
        ConnectionRefused | ConnectionReset | HostUnreachable | NetworkDown | NetworkUnreachable
    )
}

#[cfg(test)]
mod tests;
