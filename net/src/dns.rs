//! Sockets of DNS: a server for UDP and TCP at one address, and questions to other servers.
//!
//! Messages are bytes here; their meaning is that of a [`Handler`].
//!
//! Source: RFC 1035 section 4.2, RFC 7766.

mod batch;
mod exchange;
mod server;
mod tcp;
mod udp;

use std::{future::Future, net::SocketAddr, pin::Pin, time::Duration};

pub use exchange::{exchange_tcp, exchange_udp};
pub use server::Server;

/// Largest datagram of a server that is read; more than any may send without EDNS options that this
/// node never sets.
const MAX_DATAGRAM: usize = 4096;

/// Transport of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// One datagram.
    Udp,
    /// A connection, on which a length precedes each message.
    Tcp,
}

/// Answer of a [`Handler`].
pub enum Answer {
    /// Sent now, as it was written.
    Ready,
    /// Sent once the future ends, if it returns a message.
    Pending(Pin<Box<dyn Future<Output = Option<Vec<u8>>> + Send>>),
    /// Never sent.
    None,
}

/// Answers messages.
pub trait Handler: Send + Sync + 'static {
    /// Handles one message of `client`; writes an answer that is ready to `answer`, which is empty.
    /// Must not block.
    fn handle(
        &self,
        message: &[u8],
        client: SocketAddr,
        transport: Transport,
        answer: &mut Vec<u8>,
    ) -> Answer;
}

/// Limits of one server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Pending answers to datagrams; further datagrams that need one are dropped.
    pub pending: usize,
    /// Connections; further ones are closed at once.
    pub connections: usize,
    /// Connections of one client address.
    pub connections_per_client: usize,
    /// Time for which a connection may neither complete a message nor take an answer.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pending: 1024,
            connections: 256,
            connections_per_client: 32,
            idle: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests;
