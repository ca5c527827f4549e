//! Server for UDP and TCP at one address.

use std::{fmt, io, net::SocketAddr, sync::Arc};

use tokio::net::{TcpListener, UdpSocket};

use super::{Handler, Limits, tcp, udp};

/// Attempts to find a port that is free for both transports, if the system chooses it.
const PORT_ATTEMPTS: usize = 16;

/// Sockets of a server, bound and not yet served.
pub struct Server {
    udp: UdpSocket,
    tcp: TcpListener,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server")
            .field(&self.udp.local_addr())
            .finish()
    }
}

impl Server {
    /// Binds both transports to `address`; with port 0 the system chooses a port.
    ///
    /// # Errors
    /// If the address does not exist on this machine, or the port is taken or reserved.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let mut attempts = if address.port() == 0 {
            PORT_ATTEMPTS
        } else {
            1
        };
        loop {
            attempts -= 1;
            let tcp = TcpListener::bind(address).await?;
            match UdpSocket::bind(tcp.local_addr()?).await {
                Ok(udp) => return Ok(Self { udp, tcp }),
                Err(error) if attempts == 0 => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// The bound address.
    ///
    /// # Errors
    /// None in practice; reported by the kernel.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    /// Answers messages until a socket fails. Returns the error.
    ///
    /// # Cancel safety
    /// Dropping the future closes the sockets and all connections, and drops pending answers.
    pub async fn serve(self, handler: Arc<dyn Handler>, limits: Limits) -> io::Error {
        let udp = udp::serve(self.udp, Arc::clone(&handler), limits);
        let tcp = tcp::serve(self.tcp, handler, limits);
        tokio::select! {
            error = udp => error,
            error = tcp => error,
        }
    }
}
