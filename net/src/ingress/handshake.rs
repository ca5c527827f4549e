//! TLS handshake of a client connection.

use std::{io, sync::Arc};

use rustls::{ServerConfig, server::Acceptor};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::{Duration, timeout},
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use super::certificates::CertificateStore;

/// A record with the fatal alert `unrecognized_name` (RFC 8446, section 6.2), which rustls cannot
/// send for a name without a certificate.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// Parts of a TLS listener that its connections share.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) config: Arc<ServerConfig>,
    pub(super) store: Arc<CertificateStore>,
}

impl Tls {
    /// Completes the handshake within `limit`.
    ///
    /// # Errors
    /// If the client names no domain or one without a certificate, breaks the protocol, or is too
    /// slow.
    pub(super) async fn accept<S>(&self, stream: S, limit: Duration) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        timeout(limit, self.handshake(stream))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    async fn handshake<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut started = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let hello = started.client_hello();
        if hello
            .server_name()
            .is_some_and(|name| self.store.covers(name))
        {
            return started.into_stream(self.config.clone()).await;
        }
        started.io.write_all(&UNRECOGNIZED_NAME).await?;
        started.io.shutdown().await?;
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "no certificate for the requested name",
        ))
    }
}
