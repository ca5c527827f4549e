//! The data plane of published TCP and UDP ports.
//!
//! [`Ports`] owns the listeners, the connections and the sessions; they outlive the actor that opens
//! and closes the ports. Upstreams are replaced without an effect on established connections.
//!
//! - [`upstream`]: upstreams of a port and their order, pure.
//! - `bind`: listening sockets on all addresses.
//! - `tcp`: accepting connections and connecting them to an upstream.
//! - `relay`: bytes between two connections, through pipes of the kernel.
//! - [`proxy_protocol`]: the header that names the client.
//! - `udp`: datagrams between clients and upstreams, by sessions.

mod bind;
mod ports;
pub mod proxy_protocol;
mod relay;
mod tcp;
mod udp;
pub mod upstream;

use std::{fmt, time::Duration};

pub use ports::{FreshHost, Ports};
pub use upstream::{Backends, Upstream};

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

/// A port to listen on; displayed as `5432/tcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    /// Number of the port; 0 lets the system choose.
    pub number: u16,
    /// Transport protocol.
    pub protocol: Protocol,
}

impl Port {
    /// Name of the port's socket for a successor of this process, such as `port.5432.tcp`.
    #[must_use]
    pub fn socket_name(self) -> String {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        format!("port.{}.{protocol}", self.number)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        write!(f, "{}/{protocol}", self.number)
    }
}

/// Limits and timeouts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Timeout of connecting to one upstream.
    pub connect_timeout: Duration,
    /// Time after which a UDP session without datagrams ends.
    pub session_timeout: Duration,
    /// Largest number of UDP sessions of one port, each of which has a socket.
    pub max_sessions: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            session_timeout: Duration::from_secs(60),
            max_sessions: 4096,
        }
    }
}

#[cfg(test)]
mod tests;
