//! Questions to other servers.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::net::{TcpStream, UdpSocket};

use super::{MAX_DATAGRAM, tcp};

/// Sends `query` in a datagram and returns the first answer that `accept` recognises; all others
/// are dropped. Waits without end, so callers set a time limit.
///
/// Each question has a socket of its own. It is connected, so the kernel drops datagrams of other
/// senders and reports an unreachable server; and its port is one that the kernel picks at random,
/// which a forged answer has to guess beside the id (RFC 5452 section 9.2).
///
/// # Errors
/// If the query cannot be sent, or the server's host reports that nothing listens.
///
/// # Cancel safety
/// Dropping the future closes the socket.
pub async fn exchange_udp(
    server: SocketAddr,
    query: &[u8],
    accept: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if accept(&buffer[..length]) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

/// Sends `query` over a connection and returns the answer. Waits without end, so callers set a time
/// limit.
///
/// # Errors
/// If the connection fails or ends, or if `accept` does not recognise the answer.
///
/// # Cancel safety
/// Dropping the future closes the connection.
pub async fn exchange_tcp(
    server: SocketAddr,
    query: &[u8],
    accept: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    tcp::write(&mut stream, query).await?;
    let answer = tcp::read(&mut stream).await?;
    let answer = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
    if accept(&answer) {
        Ok(answer)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "not the answer to the query",
        ))
    }
}
